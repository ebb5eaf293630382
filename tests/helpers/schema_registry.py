"""A real schema registry for tests: Apicurio, with the interface of Confluent's, and its schemas in memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import httpx

from headrace.jobs.spark.cache import file_lock, user_cache
from headrace.jobs.spark.ivy import IvyDownload, Progress, retrieve
from headrace.jobs.spark.java import find_java
from headrace.services.base import LocalService
from headrace.services.state import HOST

_FILES = Path(__file__).parent / "registry_jars"
_HEAP = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError"]


class SchemaRegistry(LocalService):
    """Apicurio on the loopback address. A restart forgets the schemas."""

    name: ClassVar[str] = "registry"

    @property
    def url(self) -> str:
        """The address of Confluent's interface."""
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def prepare(self, progress: Progress | None) -> None:
        """Downloads the registry."""
        del progress
        program_folder()

    def command(self) -> list[str]:
        """Returns the command of the server."""
        scratch = self.data / "tmp"
        scratch.mkdir(exist_ok=True)
        (jar,) = program_folder().glob("*-runner.jar")
        options = {
            "java.io.tmpdir": scratch,
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.port,
            "quarkus.log.level": "WARN",
        }
        java = str(find_java(os.environ.get("HEADRACE__JAVA_HOME")).path)
        return [java, *_HEAP, *(f"-D{name}={value}" for name, value in options.items()), "-jar", str(jar)]

    def ping(self) -> None:
        """Requests the subjects."""
        httpx.get(f"{self.url}/subjects", timeout=5).raise_for_status()

    def register(
        self, subject: str, schema: Any, references: list[dict[str, Any]] | None = None, kind: str = ""
    ) -> int:
        """Registers a schema and returns its id: an Avro schema as a value, or the text of another kind."""
        body: dict[str, Any] = (
            {"schema": schema, "schemaType": kind} if kind else {"schema": json.dumps(schema)}
        )
        body |= {"references": references} if references else {}
        answer = httpx.post(f"{self.url}/subjects/{subject}/versions", json=body, timeout=30)
        assert answer.is_success, answer.text
        return int(answer.json()["id"])

    def delete(self, subject: str) -> None:
        """Deletes a subject with all its versions."""
        for permanent in ("false", "true"):
            url = f"{self.url}/subjects/{subject}?permanent={permanent}"
            assert httpx.delete(url, timeout=30).status_code in (200, 404)


def program_folder() -> Path:
    """Returns the folder of the registry's jars. Downloads them at the first call."""
    digest = hashlib.sha256((_FILES / "ivy.xml").read_bytes()).hexdigest()[:16]
    target = user_cache() / "registry" / digest
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return target
    with file_lock(target.parent / "lock"):
        if not target.exists():
            fresh = Path(tempfile.mkdtemp(prefix="fetching-", dir=target.parent))
            try:
                pattern = f"{fresh}/[artifact].[ext]"
                log, cache = fresh / "ivy.log", user_cache() / "ivy" / "registry"
                program = IvyDownload(_FILES / "ivy.xml", ["registry"], pattern, log, cache, ["tar.gz"])
                retrieve([program], str(_FILES / "ivysettings.xml"))
                archive = fresh / "apicurio-registry-app.tar.gz"
                with tarfile.open(archive) as packed:
                    packed.extractall(fresh, filter="data")
                archive.unlink()
                fresh.rename(target)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return target

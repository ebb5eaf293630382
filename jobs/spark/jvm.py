"""Spark's JVM, which boots while Python imports PySpark.

PySpark starts the JVM only after its own modules are imported, and then waits for it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.pipeline.errors import ServiceError

_PORT_VARIABLE = "PYSPARK_GATEWAY_PORT"
_SECRET_VARIABLE = "PYSPARK_GATEWAY_SECRET"  # noqa: S105  the name of PySpark's variable
_POLL_SECONDS = 0.01
_LONGEST_OUTPUT = 100_000
_NO_REASONS = (
    " ", "\t", "[", "WARNING", "Picked up", "Setting default", "To adjust", "Using ", "Error occurred during"
)  # fmt: skip
_EXCEPTION = re.compile(r'^(Exception in thread "\w+" )?([\w.$]+(Exception|Error): )?')
_IGNORE_INTERRUPTS = ("/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Ctrl-C in a terminal reaches all processes. The run decides when the JVM ends."""


class JvmProcess:
    """A JVM that was started with Spark's own script. It ends with its standard input.

    `log` receives its output: messages of Java would interrupt progress lines and results.
    """

    def __init__(self, conf: Mapping[str, str], log: Path) -> None:
        options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        more = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        self._log = log
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-jvm-"))
        self._address = self._folder / "address"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                [*_IGNORE_INTERRUPTS, str(_spark_home() / "bin" / "spark-submit"), *options, *more],
                env=os.environ
                | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._address)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )

    def connect(self) -> Any:
        """Wait for the JVM, and make PySpark use it. Return PySpark's gateway.

        Raise ServiceError if the JVM ended first.
        """
        from pyspark import SparkContext

        try:
            gateway = self._launch_gateway()
        except BaseException:
            self.kill()
            raise
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        gateway.proc = self._process
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001  what PySpark does with its own JVM
        return gateway

    def _launch_gateway(self) -> Any:
        """Return a gateway to the address that the JVM writes when it listens."""
        from pyspark.java_gateway import launch_gateway
        from pyspark.serializers import UTF8Deserializer, read_int

        while not self._address.is_file():
            if (code := self._process.poll()) is not None:
                msg = f"Spark's JVM ended with exit code {code} before it was ready{self._find_reason()}"
                hint = (
                    "Check `spark.master`, `spark.driver_memory`, `spark.jvm_options` and `spark.conf`."
                    f" {self._log} has more."
                )
                raise ServiceError(msg, hint=hint)
            time.sleep(_POLL_SECONDS)
        with self._address.open("rb") as address:
            port, secret = str(read_int(address)), str(UTF8Deserializer().loads(address))
        os.environ |= {_PORT_VARIABLE: port, _SECRET_VARIABLE: secret}
        try:
            return launch_gateway()
        finally:
            del os.environ[_PORT_VARIABLE], os.environ[_SECRET_VARIABLE]

    def _find_reason(self) -> str:
        """Return the first line of the JVM's output that says why it ended."""
        with self._log.open("rb") as output:
            output.seek(self._log_start)
            lines = output.read(_LONGEST_OUTPUT).decode(errors="replace").splitlines()
        reason = next((line for line in lines if line and not line.startswith(_NO_REASONS)), "")
        return f": {_EXCEPTION.sub('', reason)[:300]}" if reason else ""

    def kill(self) -> None:
        """End the JVM. PySpark can start another one afterwards. Never raises."""
        with suppress(OSError):
            self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        context = _pyspark_context()
        if context is not None and getattr(context._gateway, "proc", None) is self._process:  # noqa: SLF001
            context._gateway = context._jvm = None  # noqa: SLF001


def needs_jvm() -> bool:
    """Return whether this process has no JVM yet: neither its own nor that of a `spark-submit` around it."""
    context = _pyspark_context()
    has_gateway = context is not None and context._gateway is not None  # noqa: SLF001
    return not has_gateway and _PORT_VARIABLE not in os.environ


def _pyspark_context() -> Any:
    """Return PySpark's class SparkContext if something has imported it."""
    module = sys.modules.get("pyspark.core.context")
    return getattr(module, "SparkContext", None)


def _spark_home() -> Path:
    """Return the folder of Spark as PySpark chooses it, without an import of PySpark."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        msg = "PySpark is not installed"
        raise ServiceError(msg, hint="Install it: pip install headrace")
    return Path(spec.submodule_search_locations[0])

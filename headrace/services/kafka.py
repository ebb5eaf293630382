"""A local Kafka: one node in KRaft mode, broker and controller in one JVM, from the jars of jars.lock."""

from __future__ import annotations

import os
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import ClassVar

from headrace.jobs.spark.ivy import Progress
from headrace.jobs.spark.jars import ensure_jars
from headrace.jobs.spark.java import find_java
from headrace.pipeline.errors import ServiceError
from headrace.services.base import LocalService
from headrace.services.state import HOST

_HEAP = [
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
]
_LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
]
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
# Kafka computes age from a record's own time, so it would delete old history as soon as it is written.
log.retention.ms=-1
message.max.bytes=16777216
num.network.threads=2
num.io.threads=4
"""


class Kafka(LocalService):
    """Kafka 3.9 without encryption or passwords, on the loopback address only.

    Topics are not created automatically.
    """

    name: ClassVar[str] = "kafka"
    ports: ClassVar[tuple[str, ...]] = ("port", "controller_port")

    @property
    def brokers(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    def prepare(self, progress: Progress | None) -> None:
        """Find Java, download the jars, choose the cluster's id."""
        find_java(self._java_setting())
        ensure_jars(progress, java=self._java_setting())
        if "cluster_id" not in self.entry:
            cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            self.state.update(self.name, cluster_id=cluster)

    def command(self) -> list[str]:
        """Return the broker's command. Format its storage before the first start, which needs the ports."""
        logs = self.data / "logs"
        settings = self.data / "server.properties"
        settings.write_text(
            _PROPERTIES.format(
                host=HOST, port=self.port, controller_port=self._read_entry("controller_port"), logs=logs
            )
        )
        if not (logs / "meta.properties").exists():
            self._format_storage(settings)
        return [*self._java_command(), *_HEAP, *_LOGGING, "kafka.Kafka", str(settings)]

    def ping(self) -> None:
        """Request the cluster's brokers. Raise KafkaException until this one is registered."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        # Log nothing: "connection refused" is expected while it starts.
        admin = AdminClient(
            {"bootstrap.servers": self.brokers, "log_level": 0, "socket.connection.setup.timeout.ms": 2000}
        )
        metadata = admin.list_topics(timeout=2.0)
        if not metadata.brokers:
            msg = "no broker has registered"
            raise KafkaException(msg)

    def environment(self) -> dict[str, str]:
        """Return this process's environment without the variables that add options to every JVM."""
        return {key: value for key, value in os.environ.items() if key not in {"KAFKA_OPTS", "CLASSPATH"}}

    def _java_command(self) -> list[str]:
        jars = ensure_jars(java=self._java_setting()).broker
        return [str(find_java(self._java_setting()).path), "-cp", os.pathsep.join(map(str, jars))]

    def _format_storage(self, settings: Path) -> None:
        command = [
            *self._java_command(),
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "kafka.tools.StorageTool",
            "format",
        ]
        # One argument, because an id can begin with a dash and would then be read as an option.
        command += [
            f"--cluster-id={self._read_entry('cluster_id')}",
            "--config",
            str(settings),
            "--ignore-formatted",
        ]
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=self.data, stdin=subprocess.DEVNULL, check=False
        )
        if result.returncode:
            msg = f"Kafka's storage cannot be formatted: {(result.stderr or result.stdout).strip()[-800:]}"
            raise ServiceError(msg, hint=f"Its data would be in {self.data}.")

    @staticmethod
    def _java_setting() -> str | None:
        return os.environ.get("HEADRACE__JAVA_HOME")

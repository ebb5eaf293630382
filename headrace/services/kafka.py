"""A local Kafka: one node in KRaft mode, broker and controller in one JVM, from the jars of ivy.xml."""

from __future__ import annotations

import os
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import ClassVar

from headrace.jobs.spark.jars import Progress, ensure_jars
from headrace.jobs.spark.java import find_java
from headrace.pipeline.errors import ServiceError
from headrace.services.base import LocalService
from headrace.services.state import HOST

_HEAP = ["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
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
# Kafka counts age by a record's own time: history of years ago would go as soon as it is written.
log.retention.ms=-1
message.max.bytes=16777216
num.network.threads=2
num.io.threads=4
"""


class Kafka(LocalService):
    """Kafka 3.9 without encryption or passwords, on the loopback address only. Topics are never created by themselves."""

    name: ClassVar[str] = "kafka"
    ports: ClassVar[tuple[str, ...]] = ("port", "controller_port")

    @property
    def brokers(self) -> str:
        """For `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    def prepare(self, progress: Progress | None) -> None:
        """Find Java, fetch the jars, choose the cluster's id."""
        find_java(self._java_setting())
        ensure_jars(progress, java=self._java_setting())
        if "cluster_id" not in self.entry:
            cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            self.state.update(self.name, cluster_id=cluster)

    def command(self) -> list[str]:
        """The broker; formats its storage before its first start (which needs the ports, hence not in `prepare`)."""
        logs = self.data / "logs"
        settings = self.data / "server.properties"
        settings.write_text(_PROPERTIES.format(host=HOST, port=self.port, controller_port=self._kept("controller_port"), logs=logs))
        if not (logs / "meta.properties").exists():
            self._format(settings)
        return [*self._jvm(), *_HEAP, *_LOGGING, "kafka.Kafka", str(settings)]

    def answers(self) -> None:
        """Ask for the cluster's brokers until this one is among them."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        # No logger of its own: "connection refused" while it starts is no news.
        admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0, "socket.connection.setup.timeout.ms": 2000})
        found = admin.list_topics(timeout=2.0)
        if not found.brokers:
            msg = "no broker has registered"
            raise KafkaException(msg)

    def environment(self) -> dict[str, str]:
        """Ours, without what would add options to every JVM."""
        return {key: value for key, value in os.environ.items() if key not in {"KAFKA_OPTS", "CLASSPATH"}}

    def _jvm(self) -> list[str]:
        jars = ensure_jars(java=self._java_setting()).broker
        return [str(find_java(self._java_setting()).path), "-cp", os.pathsep.join(map(str, jars))]

    def _format(self, settings: Path) -> None:
        command = [
            *self._jvm(),
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "kafka.tools.StorageTool",
            "format",
        ]
        # One argument: an id may begin with a dash, and would be taken for an option.
        command += [f"--cluster-id={self._kept('cluster_id')}", "--config", str(settings), "--ignore-formatted"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.data, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            msg = f"Kafka's storage cannot be formatted: {(done.stderr or done.stdout).strip()[-800:]}"
            raise ServiceError(msg, hint=f"Its data would be in {self.data}.")

    @staticmethod
    def _java_setting() -> str | None:
        return os.environ.get("HEADRACE__JAVA_HOME")

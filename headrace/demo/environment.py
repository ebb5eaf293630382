"""What all steps of the demo share: home, servers, pipeline, progress, and the console."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace import services
from headrace.connectors.delta.config import DeltaSinkConfig
from headrace.console import format_size
from headrace.demo.load import load_history
from headrace.demo.producer import FlightProducer
from headrace.demo.progress import DemoProgress
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.protocol.partitions import window_keys

POSTGRES, DELTA = "flights_pg", "flights_delta"
FILE = Path(__file__).parent / "flights.yaml"


def pipeline_path() -> Path:
    """Return the example in the current checkout, else the copy in the package."""
    example = Path("examples/flights.yaml")
    return example if example.is_file() and example.samefile(FILE) else FILE


def set_spark_options() -> None:
    """Use only the first of the JVM's two compilers, because compiling takes a third of a short run."""
    os.environ.setdefault("HEADRACE__SPARK__JVM_OPTIONS", "-XX:TieredStopAtLevel=1")


def set_delta_path(home: Path) -> None:
    """Put the Delta table into the home. `examples/flights.yaml` names the default home."""
    os.environ.setdefault("FLIGHTS_DELTA", str(home / "delta" / "flights"))


@dataclass(frozen=True, slots=True)
class DemoEnvironment:
    """Created by `prepare_environment` when servers answer and sources are filled."""

    home: Path
    settings: Settings
    file: PipelineFile
    services: services.Services
    producer: FlightProducer
    progress: DemoProgress
    console: Console

    @property
    def history_range(self) -> tuple[str, str]:
        """The first and the last partition of the history."""
        keys = window_keys(self.file.model.partitions)
        return keys[0], keys[-1]

    @property
    def delta_path(self) -> Path:
        """The path of the Delta table."""
        node = self.file.model.sinks[DELTA]
        assert isinstance(node, DeltaSinkConfig)  # noqa: S101  the demo's own file
        return Path(node.path)

    def load_state(self) -> dict[str, Any]:
        """Return what the demo stored in earlier calls."""
        path = self.home / "demo.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    def save_state(self, **values: Any) -> None:
        """Add values to the stored state."""
        (self.home / "demo.json").write_text(json.dumps(self.load_state() | values))


def prepare_environment(console: Console) -> DemoEnvironment:
    """Start the servers that do not run, and load missing data. Raise ServiceError."""
    home = load_settings().home
    set_delta_path(home)
    set_spark_options()
    with console.status("starting Postgres, Kafka and ClickHouse") as status:

        def progress(done: int, name: str) -> None:
            status.update(f"JVM libraries: {format_size(done)}, {name}")

        servers = services.up(home=home, progress=progress)
        console.print("Postgres, Kafka and ClickHouse answer, each a process of this machine.")
        status.update("loading flights")
        rows = load_history(servers, status.update)
        producer = FlightProducer(servers.kafka.brokers)
        producer.prepare()
    console.print(f"ClickHouse table flights.history: {rows:,} flights, January to November.")
    console.print(
        f"Kafka topic flights: {producer.count_sent():,} messages, the last week of November first."
    )
    settings = load_settings()  # loaded again, now that the servers have addresses
    file = load_pipeline(pipeline_path())
    return DemoEnvironment(home, settings, file, servers, producer, DemoProgress(file, settings), console)

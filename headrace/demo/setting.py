"""Everything that the demo's acts share: home, servers, pipeline, where things stand, and the console."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace import services
from headrace.console import size
from headrace.demo.feed import Feed
from headrace.demo.lane import DemoLane
from headrace.demo.load import load_history
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.model.nodes import DeltaSinkConfig
from headrace.pipeline.protocol.partitions import window_keys

POSTGRES, DELTA = "flights_pg", "flights_delta"
FILE = Path(__file__).parent / "flights.yaml"


def pipeline_path() -> Path:
    """The example in the checkout that we stand in, else the copy in the package."""
    here = Path("examples/flights.yaml")
    return here if here.is_file() and here.samefile(FILE) else FILE


def start_spark_quickly() -> None:
    """A third of a short run is the JVM's compiler at work; the first of its two is enough here."""
    os.environ.setdefault("HEADRACE__SPARK__JVM_OPTIONS", "-XX:TieredStopAtLevel=1")


def use_delta_beside(home: Path) -> None:
    """The Delta table goes into the home, wherever that is; `examples/flights.yaml` names the default one."""
    os.environ.setdefault("FLIGHTS_DELTA", str(home / "delta" / "flights"))


@dataclass(frozen=True, slots=True)
class Setting:
    """Made by `set_up`, when servers answer and sources are filled."""

    home: Path
    settings: Settings
    file: PipelineFile
    services: services.Services
    feed: Feed
    lane: DemoLane
    console: Console

    @property
    def months(self) -> tuple[str, str]:
        """The first and the last partition of the history."""
        keys = window_keys(self.file.model.partitions)
        return keys[0], keys[-1]

    @property
    def delta(self) -> Path:
        """Where the Delta table is."""
        node = self.file.model.sinks[DELTA]
        assert isinstance(node, DeltaSinkConfig)  # noqa: S101  the demo's own file
        return Path(node.path)

    def kept(self) -> dict[str, Any]:
        """What the demo remembers from one call to the next."""
        path = self.home / "demo.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    def keep(self, **values: Any) -> None:
        """Adds to that."""
        (self.home / "demo.json").write_text(json.dumps(self.kept() | values))


def set_up(console: Console) -> Setting:
    """Starts what does not run, loads what is not there. Raises ServiceError."""
    home = load_settings().home
    use_delta_beside(home)
    start_spark_quickly()
    with console.status("starting Postgres, Kafka and ClickHouse") as status:

        def progress(come: int, what: str) -> None:
            status.update(f"JVM libraries: {size(come)}, {what}")

        running = services.up(home=home, progress=progress)
        console.print("Postgres, Kafka and ClickHouse answer, each a process of this machine.")
        status.update("loading flights")
        rows = load_history(running, status.update)
        feed = Feed(running.kafka.brokers)
        feed.prepare()
    console.print(f"ClickHouse table flights.history: {rows:,} flights, January to November.")
    console.print(f"Kafka topic flights: {feed.sent():,} messages, the last week of November first.")
    settings = load_settings()  # anew: it reads where the servers listen
    file = load_pipeline(pipeline_path())
    return Setting(home, settings, file, running, feed, DemoLane(file, settings), console)

"""Pipelines as this room sees them: a file that was read, the physical things it touches, names that Dagster takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from headrace.connectors import registry
from headrace.connectors.base import Delivery, Sink
from headrace.jobs.checks.content.scope import refusal
from headrace.jobs.dynamic_tables.factory import value_tables
from headrace.jobs.run.status import has_stream_work
from headrace.pipeline.config.settings import CONFIG_NAMES, Settings, load_settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.model import graph
from headrace.pipeline.model.run_options import PartitionsConfig
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import window_keys
from headrace.pipeline.testcases.loader import is_test_file

NOT_PIPELINES = ("defs.yaml", "component.yaml", "dagster.yaml", "workspace.yaml", *CONFIG_NAMES)
PIPELINE_TAG = "headrace/pipeline"
STREAM_TAG = "headrace/stream"
ICONS = {"delta": "deltalake"}
"""Kinds that Dagster knows, with an icon, by another name."""


@dataclass(frozen=True, slots=True)
class Physical:
    """A thing outside: a table, a topic. Its key is its address, so that lineage joins across pipelines by itself."""

    key: dg.AssetKey
    kind: str
    table_name: str | None = None
    location: str | None = None

    @classmethod
    def of(cls, described: Json, fallback: tuple[str, ...]) -> Physical:
        """From a connector's `describe()`. What lies nowhere outside (print) is the pipeline's own, and has `fallback` for a key."""
        addressed = described.get("table_name") or described.get("location")
        key = dg.AssetKey([str(part) for part in (addressed and described.get("asset_key")) or fallback])
        kind = str(described.get("kind") or fallback[0])
        return cls(key, ICONS.get(kind, kind), described.get("table_name"), described.get("location"))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline file with everything that definitions are made of. Making one opens no connection and imports no Spark."""

    file: PipelineFile
    overrides: Mapping[str, Any]
    sinks: Mapping[str, Physical]
    sources: Mapping[str, tuple[Physical, ...]]
    proven: frozenset[str]
    """Sinks that keep a record: the ones that checks can say something about."""
    partitions: dg.TimeWindowPartitionsDefinition | None = field(default=None)
    comparable: frozenset[str] = field(default=frozenset())
    """Sinks whose rows can be computed again and read back, as far as the file shows."""
    tables: Mapping[str, Physical] = field(default_factory=dict)
    """Dynamic tables in Postgres, which others may write. Those in memory are the pipeline's own affair."""

    @property
    def name(self) -> str:
        """The pipeline's name as Dagster takes names: letters, digits and underscores."""
        return re.sub(r"\W", "_", self.file.name)

    @property
    def history_windows(self) -> list[str]:
        """Partition keys that history fills; later ones belong to the stream."""
        return window_keys(self.file.model.partitions)

    @property
    def has_history(self) -> bool:
        """Whether something bounded comes before the stream."""
        return any(positions.bounded_phases(node) for node in self.file.model.sources.values())

    @property
    def has_stream(self) -> bool:
        """Whether something is left to do once the history is complete."""
        return has_stream_work(self.file)

    @property
    def kinds(self) -> frozenset[str]:
        """The types of its nodes, by which Spark's extensions are chosen."""
        return frozenset(node.type for node in self.file.model.nodes().values())

    def settings(self) -> Settings:
        """The settings of this process, with what the component overrides."""
        return load_settings(**self.overrides)

    def sink_of(self, key: dg.AssetKey) -> str:
        """The sink behind an asset key."""
        return next(name for name, physical in self.sinks.items() if physical.key == key)


def pipeline_files(paths: Iterable[Path]) -> list[Path]:
    """The pipeline files at `paths`: a file is itself, a folder stands for its YAML files, without those of tests and those below it.

    Raises UserError for a path that is not there.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found |= dict.fromkeys(sorted(child for child in path.iterdir() if _may_be_pipeline(child)))
        elif path.is_file():
            found[path] = None
        else:
            msg = f"`{path}` is neither a pipeline file nor a folder of them"
            raise UserError(msg)
    return list(found)


def _may_be_pipeline(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml") and not is_test_file(path) and path.name not in NOT_PIPELINES


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Pipeline:
    """Reads one pipeline file. Raises UserError (PipelineFileError with every mistake and its place) and SettingsError."""
    file = load_pipeline(path)
    settings = load_settings(**(overrides or {}))
    model = file.model
    sinks = {
        name: Physical.of(registry.describe(name, node, settings)[0], (node.type, file.name, name)) for name, node in model.sinks.items()
    }
    sources = {
        name: tuple(Physical.of(entry, (node.type, file.name, name)) for entry in registry.describe(name, node, settings))
        for name, node in model.sources.items()
    }
    proven = [name for name, node in model.sinks.items() if registry.sink_class(node).capabilities.delivery is Delivery.EXACTLY_ONCE]
    comparable = (name for name in proven if _has_content(model.sinks[name]) and not refusal(model, name))
    tables = {name: Physical.of(table.describe(), ("table", file.name, name)) for name, table in value_tables(model, settings)}
    return Pipeline(
        file, overrides or {}, sinks, sources, frozenset(proven), partitions_of(model.partitions), frozenset(comparable), tables
    )


def _has_content(sink: Any) -> bool:
    return registry.sink_class(sink).content is not Sink.content


def partitions_of(partitions: PartitionsConfig | None) -> dg.TimeWindowPartitionsDefinition | None:
    """The file's windows as Dagster's, keyed alike: the ISO date of the first day, up to `end`."""
    if partitions is None:
        return None
    kind = dg.MonthlyPartitionsDefinition if partitions.every == "month" else dg.DailyPartitionsDefinition
    return kind(start_date=partitions.start.isoformat(), end_date=partitions.end.isoformat())


def checks_of(pipeline: Pipeline, sink: str) -> Sequence[str]:
    """The checks that can ever say something about a sink: none without a record, the handoff only after a hybrid source.

    The comparison of rows only where rows can be computed again and read back.
    """
    if sink not in pipeline.proven:
        return ()
    model = pipeline.file.model
    hybrid = any(model.sources[source].type == "hybrid" for source in graph.upstream_sources(model, sink))
    always = ("exactly_once_epochs", "row_count_matches")
    return (*always, *(["handoff_has_no_gap"] if hybrid else []), *(["content_matches"] if sink in pipeline.comparable else []))


def window_problem(pipeline: Pipeline, windows: Sequence[str] | None) -> str:
    """Why history cannot be asked for these windows: none of a partitioned pipeline, or some that the stream fills. Empty: it can."""
    if pipeline.partitions is None:
        return ""
    history = pipeline.history_windows
    if not windows:
        return f"pipeline `{pipeline.file.name}` has partitions: choose some of {history[0]} to {history[-1]}"
    foreign = [key for key in windows if key not in set(history)]
    if not foreign:
        return ""
    shown = f"partition {foreign[0]} lies" if len(foreign) == 1 else f"partitions {foreign[0]} to {foreign[-1]} lie"
    return (
        f"{shown} behind the history's end ({pipeline.file.place('partitions', 'history_end')}): the stream fills what comes after"
        f" {history[-1]}. Once the history is complete, launch the job `{pipeline.name}_stream`."
    )

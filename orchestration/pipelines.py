"""Pipelines for Dagster: the file, the physical assets that it reads and writes, Dagster-safe names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from headrace.connectors import registry
from headrace.connectors.sink_base import Sink
from headrace.jobs.checks.content.scope import refusal
from headrace.jobs.dynamic_tables.factory import value_tables
from headrace.jobs.run.status import has_stream_work
from headrace.orchestration.options import PipelineOptions, merge_asset_config
from headrace.pipeline.config.settings import Settings, load_settings
from headrace.pipeline.file.loader import PipelineFile, load_pipeline
from headrace.pipeline.model import graph
from headrace.pipeline.model.assets import AssetConfig
from headrace.pipeline.model.capabilities import Delivery
from headrace.pipeline.model.checks import SinkCheckConfig
from headrace.pipeline.model.partitions import (
    OPEN,
    IntegerPartitionsConfig,
    PartitionsConfig,
    TimePartitionsConfig,
    ValuePartitionsConfig,
)
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.partitions import HOUR_FORMAT, describe_keys, is_history_open, window_keys

PIPELINE_TAG = "headrace/pipeline"
STREAM_TAG = "headrace/stream"
REFRESH_TAG = "headrace/refresh"
"""A run with this tag and the value `false` does not read complete partitions again."""
WRITE_SUFFIX = "_write"
"""The op that writes the sinks of a pipeline has the pipeline's name and this."""
_MOST_CHARACTERS = 63
"""Of the value of a tag in Dagster."""
ICONS = {"delta": "deltalake"}
"""Storage kinds for which Dagster has an icon under another name."""


@dataclass(frozen=True, slots=True)
class PhysicalAsset:
    """A table or topic outside of Headrace.

    Its key is its address, or the end of it, so that lineage connects across pipelines. See `asset_keys`.
    """

    key: dg.AssetKey
    storage_kind: str
    name: tuple[str, ...]
    """The type and the name. Other resources can have the same ones."""
    address: tuple[str, ...]
    """The type, the outer parts of the address, and the name."""
    table_name: str | None = None
    location: str | None = None

    @classmethod
    def from_description(cls, description: Json, fallback: tuple[str, ...]) -> PhysicalAsset:
        """Create it from a connector's `describe()`.

        A sink without an address (print) gets the key `fallback`.
        """
        addressed = description.get("table_name") or description.get("location")
        name = tuple(str(part) for part in (addressed and description.get("asset_key")) or fallback)
        scope = (str(part) for part in (addressed and description.get("scope")) or ())
        kind = str(description.get("kind") or fallback[0])
        return cls(
            to_asset_key(name),
            ICONS.get(kind, kind),
            name,
            (name[0], *scope, *name[1:]),
            description.get("table_name"),
            description.get("location"),
        )


def to_asset_key(parts: Iterable[str]) -> dg.AssetKey:
    """Return an asset key. Its parts have letters, digits, `_`, `-` and `.`, which Dagster accepts."""
    return dg.AssetKey([re.sub(r"[^A-Za-z0-9_.-]+", "_", part) for part in parts])


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline file with everything that definitions need.

    Creating one opens no connection and imports no Spark.
    """

    file: PipelineFile
    overrides: Mapping[str, Any]
    sinks: Mapping[str, PhysicalAsset]
    sources: Mapping[str, tuple[PhysicalAsset, ...]]
    verifiable_sinks: frozenset[str]
    """Sinks with a commit record. Only these can be checked."""
    partitions: dg.PartitionsDefinition | None = field(default=None)
    comparable_sinks: frozenset[str] = field(default=frozenset())
    """Sinks whose rows can be recomputed and read back, as far as the file shows."""
    dynamic_tables: Mapping[str, PhysicalAsset] = field(default_factory=dict)
    """Dynamic tables in Postgres, which other programs can write. Tables in memory are internal."""
    options: PipelineOptions = field(default_factory=PipelineOptions)
    """The options of the component."""

    @property
    def name(self) -> str:
        """The pipeline's name for Dagster: letters, digits and underscores, at most 63."""
        name = re.sub(r"\W", "_", self.file.name, flags=re.ASCII)
        if name == self.file.name.replace("-", "_") and len(name) <= _MOST_CHARACTERS:
            return name
        digest = hashlib.sha256(self.file.name.encode()).hexdigest()[:8]
        return f"{name[: _MOST_CHARACTERS - 9]}_{digest}"

    @property
    def pool(self) -> str:
        """The pool of the runs that materialize the assets. The instance lets one of them start at a time.

        It is not that of the stream: next to a running stream, such a run requests a refresh from it.
        """
        return self.options.pool or f"headrace/{self.name}"

    @property
    def stream_pool(self) -> str:
        """The pool of the runs of the stream."""
        return self.options.pool or f"headrace/{self.name}/stream"

    @property
    def asset_config(self) -> AssetConfig:
        """What the assets of the sinks have."""
        return merge_asset_config(self.file.model, self.options.assets)

    @property
    def group(self) -> str:
        """The group of the assets."""
        return self.asset_config.group or self.name

    @property
    def history_partitions(self) -> list[str]:
        """The keys of the partitions that history fills. The stream fills later ones."""
        return window_keys(self.file.model.partitions)

    @property
    def has_history(self) -> bool:
        """Whether a bounded source comes before the stream."""
        return any(positions.bounded_phases(node) for node in self.file.model.sources.values())

    @property
    def has_stream(self) -> bool:
        """Whether work is left after the history is complete."""
        return has_stream_work(self.file)

    @property
    def node_types(self) -> frozenset[str]:
        """The types of the nodes, which decide about Spark's extensions."""
        return frozenset(node.type for node in self.file.model.nodes().values())

    def settings(self) -> Settings:
        """Return the settings of this process with the component's overrides."""
        return load_settings(**self.overrides)

    def sink_for_key(self, key: dg.AssetKey) -> str:
        """Return the sink with this asset key."""
        return next(name for name, physical in self.sinks.items() if physical.key == key)


def read_pipeline(path: Path, overrides: Mapping[str, Any] | None = None) -> Pipeline:
    """Read a pipeline file.

    Raise SettingsError, or UserError (PipelineFileError with all mistakes and locations).
    """
    return create_pipeline(load_pipeline(path), overrides)


def create_pipeline(file: PipelineFile, overrides: Mapping[str, Any] | None = None) -> Pipeline:
    """Return a pipeline of a valid file. Raise SettingsError."""
    settings = load_settings(**(overrides or {}))
    model = file.model
    sinks = {
        name: PhysicalAsset.from_description(
            registry.describe(name, node, settings)[0], (node.type, file.name, name)
        )
        for name, node in model.sinks.items()
    }
    sources = {
        name: tuple(
            PhysicalAsset.from_description(entry, (node.type, file.name, name))
            for entry in registry.describe(name, node, settings)
        )
        for name, node in model.sources.items()
    }
    verifiable = [
        name
        for name, node in model.sinks.items()
        if registry.sink_class(node).capabilities.delivery is Delivery.EXACTLY_ONCE
    ]
    comparable = (name for name in verifiable if _has_content(model.sinks[name]) and not refusal(model, name))
    tables = {
        name: PhysicalAsset.from_description(table.describe(), ("table", file.name, name))
        for name, table in value_tables(model, settings)
    }
    return Pipeline(
        file,
        overrides or {},
        sinks,
        sources,
        frozenset(verifiable),
        to_dagster_partitions(model.partitions, include_current=has_stream_work(file)),
        frozenset(comparable),
        tables,
    )


def _has_content(sink: Any) -> bool:
    return registry.sink_class(sink).content is not Sink.content


def to_dagster_partitions(
    partitions: PartitionsConfig | None, *, include_current: bool = False
) -> dg.PartitionsDefinition | None:
    """Return the file's partitions as Dagster's, up to `end`.

    The keys are the same: the start, or the value. `include_current` adds the partition of today, which a
    stream fills. Dagster ignores reports about a partition that it does not list, so without it no automation
    condition fires below a stream.
    """
    if isinstance(partitions, IntegerPartitionsConfig | ValuePartitionsConfig):
        return dg.StaticPartitionsDefinition(window_keys(partitions))
    return _to_time_windows(partitions, include_current=include_current) if partitions else None


def _to_time_windows(
    partitions: TimePartitionsConfig, *, include_current: bool
) -> dg.TimeWindowPartitionsDefinition:
    options: dict[str, Any] = {
        "start_date": partitions.start.isoformat(),
        "end_date": None if partitions.end == OPEN else partitions.end.isoformat(),
        "end_offset": 1 if include_current else 0,
        "timezone": partitions.timezone,
    }
    match partitions.every:
        case "hour":
            for name in ("start_date", "end_date"):
                options[name] = options[name] and f"{options[name]}T00"
            return dg.HourlyPartitionsDefinition(fmt=HOUR_FORMAT, **options)
        case "day":
            return dg.DailyPartitionsDefinition(**options)
        case "week":
            return dg.WeeklyPartitionsDefinition(day_offset=partitions.start.isoweekday() % 7, **options)
        case "month":
            return dg.MonthlyPartitionsDefinition(**options)
        case "year":
            end = options.pop("end_date")
            return dg.TimeWindowPartitionsDefinition(
                start=options.pop("start_date"), end=end, cron_schedule="0 0 1 1 *", fmt="%Y-%m-%d", **options
            )


def partition_range_tags(first: str, last: str) -> dict[str, str]:
    """Return the tags of a run over the partitions `first` to `last`."""
    return {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}


def applicable_checks(pipeline: Pipeline, sink: str) -> Sequence[str]:
    """Return the checks that apply to a sink, those of the file last.

    A sink without a commit record has none. The handoff check needs a hybrid source. The content check needs
    rows that can be recomputed and read back.
    """
    if sink not in pipeline.verifiable_sinks:
        return ()
    model = pipeline.file.model
    hybrid = any(model.sources[source].type == "hybrid" for source in graph.upstream_sources(model, sink))
    always = ("exactly_once_epochs", "row_count_matches")
    return (
        *always,
        *(["handoff_has_no_gap"] if hybrid else []),
        *(["content_matches"] if sink in pipeline.comparable_sinks else []),
        *declared_checks(pipeline, sink),
    )


def declared_checks(pipeline: Pipeline, sink: str) -> Mapping[str, SinkCheckConfig]:
    """Return the checks that the file declares for a sink."""
    return getattr(pipeline.file.model.sinks[sink], "checks", {})


def partition_error(pipeline: Pipeline, partitions: Sequence[str] | None) -> str:
    """Return why history cannot load these partitions, empty if it can.

    A partitioned pipeline needs at least one, and the stream fills those after the history's end.
    """
    if pipeline.partitions is None:
        return ""
    history = pipeline.history_partitions
    if not partitions:
        return f"pipeline `{pipeline.file.name}` has partitions: choose some ({describe_keys(history)})"
    stream_partitions = [key for key in partitions if key not in set(history)]
    if not stream_partitions:
        return ""
    subject = (
        f"partition {stream_partitions[0]} is"
        if len(stream_partitions) == 1
        else f"partitions {stream_partitions[0]} to {stream_partitions[-1]} are"
    )
    by = pipeline.file.model.partitions
    if is_history_open(by):
        return f"{subject} not over yet: a partition can be materialized when it has passed ({by.timezone})."
    return (
        f"{subject} after the end of history ({pipeline.file.place('partitions', 'history_end')}): the"
        " stream fills the partitions after"
        f" {history[-1]}. When the history is complete, launch the job `{pipeline.name}_stream`."
    )

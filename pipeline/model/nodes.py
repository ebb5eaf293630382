"""The nodes of a pipeline file. Keys follow Streamling's topology files; Headrace adds keys of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from headrace.pipeline.model.assets import AssetConfig
from headrace.pipeline.model.connectors import create_union, sink_entries, source_entries
from headrace.pipeline.model.http import EndpointConfig
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.model.partitions import PartitionsConfig
from headrace.pipeline.model.plugins import PluginNodeConfig, with_plugins
from headrace.pipeline.model.run_options import EpochOptions, Schedule, StreamOptions
from headrace.pipeline.model.testcases import CaseConfig
from headrace.pipeline.model.transforms import TransformConfig

WITHOUT_EFFECT = {
    "sources": frozenset({"parallelism", "batch_flush_interval"}),
    "transforms": frozenset({"parallelism", "batch_flush_interval"}),
    "sinks": frozenset({"parallelism", "batch_size", "batch_flush_interval", "deduplicate"}),
}
"""Keys that are taken and do nothing, by the part of the file."""
WITHOUT_ROWS = frozenset({"telemetry", "checks"})
"""Keys of all nodes that change no row, as those above: a change of one is no change of the pipeline."""

_WITH_EFFECT = {"handler": frozenset({"parallelism"})}


def without_effect(part: str, kind: str = "") -> frozenset[str]:
    """Keys without effect at a part of the file, or at nodes of one type that lack what the key needs."""
    used = _WITH_EFFECT.get(kind, frozenset())
    if part == "sinks" and (entry := sink_entries().get(kind)) is not None:
        used |= entry.config_class().keys_with_effect
    return WITHOUT_EFFECT.get(part, frozenset()) - used


def types_of_requests() -> frozenset[str]:
    """Return the types of nodes that send requests. Their strings may contain secrets."""
    entries = [*source_entries().items(), *sink_entries().items()]
    result = (kind for kind, entry in entries if issubclass(entry.config_class(), EndpointConfig))
    return frozenset({"handler", *result})


if TYPE_CHECKING:
    # A catalog that is read at run time has no static types. A node answers for its type: see `SourceConfig`,
    # `SinkConfig`.
    AnySourceConfig = Any
    AnySinkConfig = Any
    _Source = Any
    _Transform = TransformConfig
    _Sink = Any
else:
    AnySourceConfig = create_union(
        (HybridSourceConfig, *(entry.config_class() for entry in source_entries().values())), "type"
    )
    AnySinkConfig = create_union(tuple(entry.config_class() for entry in sink_entries().values()), "type")
    _Source, _Transform, _Sink = (
        with_plugins(union, part)
        for part, union in (
            ("sources", AnySourceConfig),
            ("transforms", TransformConfig),
            ("sinks", AnySinkConfig),
        )
    )


VERSION = 1
"""Of the file's format: what this release writes, and the only one so far."""


class PipelineModel(AssetConfig):
    """A whole pipeline file."""

    version: Literal[1] = Field(default=1, description="The version of the format.")
    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$",
        description="Name of the pipeline: letters, digits, `_` and `-`. Defaults to the name of the file."
        " Another name is another pipeline.",
    )
    sources: dict[str, _Source] = Field(description="What is read: node names and nodes. At least one.")
    transforms: dict[str, _Transform] = Field(
        default_factory=dict, description="What is done to rows on their way; may be left out."
    )
    sinks: Annotated[dict[str, _Sink], Field(min_length=1)] = Field(
        description="What is written: node names and nodes. At least one."
    )
    partitions: PartitionsConfig | None = Field(
        default=None,
        description="Divides history by time, by ranges of an integer column, or by values."
        " By default history is one partition.",
    )
    schedule: Schedule | None = Field(
        default=None, description="When Dagster runs the pipeline. By default only on demand."
    )
    job_mode: bool = Field(default=False, description="Ends after history and never reads a stream.")
    epoch: EpochOptions = Field(
        default=EpochOptions(), description="How large epochs are and how often they come."
    )
    stream: StreamOptions = Field(default=StreamOptions(), description="How Dagster runs the stream.")
    tests: dict[str, CaseConfig] = Field(
        default_factory=dict, description="Tests by name; `headrace test` runs them."
    )

    @model_validator(mode="after")
    def _plugins_know_their_pipeline(self) -> PipelineModel:
        for node in self.nodes().values():
            if isinstance(node, PluginNodeConfig):
                node.belongs_to(self.name)
        return self

    def nodes(self) -> dict[str, Any]:
        """Return all nodes by name."""
        return {**self.sources, **self.transforms, **self.sinks}

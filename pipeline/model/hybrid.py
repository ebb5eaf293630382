"""The hybrid source: bounded phases, then one unbounded phase."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, create_model, field_validator
from pydantic_core import PydanticCustomError

from headrace.pipeline.model.base import NodeConfig
from headrace.pipeline.model.connectors import create_union, source_entries
from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.sources import OffsetTable, SourceConfig
from headrace.pipeline.model.strict import Strict
from headrace.pipeline.sql.system_columns import ORDINALS_PER_NODE

SOURCE_TYPE = "What the phase reads."


class PhaseConfig(Strict):
    """One phase of a hybrid source: the keys of a source of that type.

    `phase_model` makes the class of each type.
    """

    config: ClassVar[type[SourceConfig]]

    def node(self) -> SourceConfig:
        """Return the same phase as a source node of its own."""
        values = self.model_dump(exclude={"source_type", "start_at"}, by_alias=True)
        return self.config.model_validate(values | dict(self.config.phase_constants))


class BoundedPhase(PhaseConfig):
    """A phase that ends by itself."""

    @field_validator("*")
    @classmethod
    def _is_given(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse an empty text for a required key: it is the value of an empty variable."""
        if value == "" and info.field_name and cls.model_fields[info.field_name].is_required():
            raise PydanticCustomError("missing", "Field required")  # noqa: EM101  pydantic's own kind and words
        return value


class UnboundedPhase(PhaseConfig):
    """A phase without an end."""

    start_at: str | None = Field(
        default=None,
        description="Handoff by time: where the stream starts, in place of `handoff_lag` before the first"
        " start: `earliest`, or milliseconds since 1970. With `offset_table`: only `earliest`, which changes"
        " nothing.",
    )


def phase_model(kind: str) -> type[PhaseConfig]:
    """Return the class of the phases for a source type: the fields of its nodes that a phase can set."""
    config: type[SourceConfig] = source_entries()[kind].config_class()
    absent = {"type", *NodeConfig.model_fields, *config.phase_constants}
    fields: dict[str, Any] = {
        name: (info.annotation, copy(info))
        for name, info in config.model_fields.items()
        if name not in absent
    }
    literal: Any = Literal[kind]  # pyright: ignore[reportInvalidTypeForm]  a type of its own per connector
    make: Any = create_model
    phase = make(
        config.__name__.replace("SourceConfig", "PhaseConfig"),
        __base__=BoundedPhase if source_entries()[kind].capabilities.bounded else UnboundedPhase,
        __module__=__name__,
        __doc__=f"A phase with `source_type: {kind}`. {config.__doc__}",
        source_type=(literal, Field(description=SOURCE_TYPE)),
        **fields,
    )
    phase.config = config
    return phase


def _phases(*, bounded: bool) -> Any:
    """Return the type of a phase: one model, or a union that `source_type` discriminates."""
    models = tuple(
        phase_model(kind)
        for kind, entry in source_entries().items()
        if entry.capabilities.bounded is bounded and entry.capabilities.phase
    )
    return create_union(models, "source_type")


if TYPE_CHECKING:
    # Phases are made of the catalog at run time.
    BoundedPhaseConfig = Any
    UnboundedPhaseConfig = Any
else:
    BoundedPhaseConfig = _phases(bounded=True)
    UnboundedPhaseConfig = _phases(bounded=False)


class Cursor(Strict):
    """How appending sinks separate history from stream: by a timestamp column and its allowed lateness."""

    column: str = Field(description="A timestamp column that history and stream both have.")
    allowed_lateness: Duration = Field(
        description="Maximum delay between the timestamp of a row and its arrival in the history."
    )


class HybridSourceConfig(NodeConfig):
    """Bounded phases in order, then one unbounded phase, with an exact handoff."""

    identity_keys: ClassVar[frozenset[str]] = frozenset(
        {"bounded_sources", "unbounded_source", "offset_table", "handoff_lag", "cursor"}
    )
    metric_labels: ClassVar[tuple[str, ...]] = ("table", "topic", "partition")
    is_unbounded: ClassVar[bool] = True

    type: Literal["hybrid"] = "hybrid"
    bounded_sources: Annotated[
        tuple[BoundedPhaseConfig, ...], Field(min_length=1, max_length=ORDINALS_PER_NODE - 1)
    ] = Field(
        description="History: read to its end, in this order. Columns are matched to the stream's by name."
    )
    unbounded_source: UnboundedPhaseConfig = Field(
        description="The stream that goes on where history ends. Its columns are the node's columns:"
        " history must have all of them, and is"
        " cast to them."
    )
    offset_table: OffsetTable | None = Field(
        default=None,
        description="Exact fence: the table that says which offsets history holds. `{}` takes the history"
        " table and its defaults.",
    )
    handoff_lag: Duration | None = Field(
        default=None,
        description="Handoff by time, without `offset_table`: how long history may lag its topic. Defaults"
        " to 1h.",
    )
    cursor: Cursor | None = Field(
        default=None,
        description="With `handoff_lag`, for sinks without a key: tells history from stream inside the"
        " overlap.",
    )

    @property
    def has_late_key(self) -> bool:
        """Whether the key of the stream may come from another system, at the start of a run."""
        return not self.primary_key and bool(self.unbounded_source.node().has_late_key)

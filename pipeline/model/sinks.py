"""What sink nodes share, and what a type of sink answers about its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PositiveInt

from headrace.pipeline.model.base import FLUSH, PARALLELISM, VERSION_COLUMN, NodeConfig
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.checks import SinkCheckConfig
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.model.run_options import Duration

if TYPE_CHECKING:
    import pyarrow as pa


class SinkConfig(NodeConfig):
    """What all sinks share. The class variables are the answers of a type; no list of types has them."""

    target_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the file that name the target: they cannot change, and no two sinks of a file have the same."""
    upserts_by_key: ClassVar[bool] = False
    """Whether the sink upserts and deletes with a primary key, and can only append without one."""
    metric_labels: ClassVar[tuple[str, ...]] = ()
    """Labels that the metrics of a node carry by themselves."""
    keys_with_effect: ClassVar[frozenset[str]] = frozenset()
    """Keys for Streamling's files that other types ignore and this one does not."""

    from_: str = Field(alias="from", description="The node whose rows are written.")
    delivery: Literal["exactly_once", "at_least_once"] | None = Field(
        default=None,
        description="Delivery guarantee. Defaults to the strongest that the sink supports."
        " If the pipeline can only deliver at least once, set `at_least_once`.",
    )
    share: bool = Field(
        default=False,
        description="Lets another pipeline write the same target, if its sink sets this too. Checks that"
        " count rows do not apply then.",
    )
    batch_size: PositiveInt | None = Field(default=None, description=FLUSH)
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)
    deduplicate: bool = Field(
        default=True, description="Taken for Streamling's files; the last row of a key always wins."
    )

    @property
    def capabilities(self) -> SinkCapabilities:
        """What the connector's sink can do."""
        return sink_entries()[str(getattr(self, "type", ""))].capabilities

    def explain_direct_obstacle(self, payload: pa.Schema, key: Sequence[str]) -> str:
        """Return why tasks cannot load rows with these columns, or an empty string.

        Called for sinks with the capability `direct`, by runs and by `explain`. The target is not read.
        """
        del payload, key
        return ""


class KeyedSinkConfig(SinkConfig):
    """What sinks into tables share: they keep one row for each key, and their rows can be checked."""

    upserts_by_key: ClassVar[bool] = True
    check_dialect: ClassVar[Literal["spark", "postgres", "clickhouse"]] = "spark"
    """The SQL of `checks`."""

    version_column: str | None = Field(default=None, description=VERSION_COLUMN)
    schema_evolution: Literal["none", "add_columns"] = Field(
        default="none",
        description="What to do if an existing table lacks columns of the rows: `none` refuses to start,"
        " `add_columns` adds them. Rows written before then have NULL there. Columns of the key and the"
        " version are never added.",
    )
    checks: dict[str, SinkCheckConfig] = Field(
        default_factory=dict, description="Checks of the target's rows, by name."
    )

"""The `delta` sink of a pipeline file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pyarrow.types import is_binary
from pydantic import Field

from headrace.connectors.direct_types import explain_unfit_columns
from headrace.pipeline.model.sinks import KeyedSinkConfig

if TYPE_CHECKING:
    import pyarrow as pa


class DeltaSinkConfig(KeyedSinkConfig):
    """A Delta table at a path: MERGE by key, or append without one."""

    target_keys: ClassVar[tuple[str, ...]] = ("path",)
    metric_labels: ClassVar[tuple[str, ...]] = ("path",)

    type: Literal["delta"] = "delta"
    path: str = Field(
        description="A folder or a URI that Spark can write; the table is made if it is missing."
    )

    def explain_direct_obstacle(self, payload: pa.Schema, key: Sequence[str]) -> str:
        """See `SinkConfig.explain_direct_obstacle`."""
        return explain_unfit_columns(payload, key, self.version_column, is_binary)

"""The `delta` source and sink of a pipeline file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pyarrow.types import is_binary
from pydantic import Field

from headrace.connectors.addresses import split_location
from headrace.connectors.direct_types import explain_unfit_columns
from headrace.pipeline.model.sinks import KeyedSinkConfig
from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Columns
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    import pyarrow as pa


def describe_table(path: str) -> Json:
    """Return the type, asset key and location of the table at a path."""
    *folders, name = split_location(path)
    return {
        "kind": "delta",
        "asset_key": ["delta", name],
        "scope": folders,
        "table_name": name,
        "location": path,
    }


class DeltaSourceConfig(SourceConfig):
    """A Delta table at a path, read once at a pinned version."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"path", "filter", "version"})
    metric_labels: ClassVar[tuple[str, ...]] = ("path",)

    type: Literal["delta"] = "delta"
    path: str = Field(description="A folder or a URI that Spark can read.")
    columns: Columns = Field(default=(), description="Columns to read. Defaults to all.")
    filter: str | None = Field(
        default=None, description="Only rows for which this holds: a predicate in Spark SQL."
    )
    version: int | None = Field(
        default=None, ge=0, description="Version to read. Defaults to the newest at the first start."
    )


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

"""The columns of sources, as the planner needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class HasSchema(Protocol):
    """What the planner needs of a source."""

    def schema(self, spark: SparkSession) -> pa.Schema:
        """Return the schema of the payload."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSchemaSource:
    """A source whose columns are known. It reads no system."""

    payload: pa.Schema

    def schema(self, spark: SparkSession) -> pa.Schema:
        """See `HasSchema`."""
        del spark
        return self.payload

"""A dynamic table in Postgres, which other programs may fill too.

Workers query it, or the driver caches it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.jobs.dynamic_tables.base import DynamicTableBackend, ValueLookup, texts
from headrace.jobs.dynamic_tables.broadcast import ValueSet
from headrace.pipeline.protocol.epochs import EpochPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headrace.jobs.dynamic_tables.lookup_table import PostgresLookup, ValueTable


class PostgresTableBackend(DynamicTableBackend):
    """A table without a cache. Every epoch looks up the values at the time when its rows are computed."""

    def __init__(self, table: ValueTable, at_most: int, committed: int) -> None:
        self._table = table
        self._committed = committed
        self._lookup = _PostgresLookup(table.lookup(at_most))

    def prepare(self) -> None:
        """See `Table`."""
        self._table.prepare()

    def needs_values(self, plan: EpochPlan) -> bool:
        """See `Table`."""
        return plan.number > self._committed

    def fill(self, plan: EpochPlan, values: pa.Array) -> None:
        """See `Table`."""
        del plan
        if len(values):
            self._table.add(values.to_pylist())

    def lookup(self, plan: EpochPlan) -> ValueLookup:
        """See `Table`."""
        del plan
        return self._lookup

    def close(self) -> None:
        """See `Table`."""
        self._table.close()


class CachedPostgresTableBackend(DynamicTableBackend):
    """A table with a cache.

    Values are read once, and new ones at most every `debounce` seconds. Own values are added at once.
    """

    def __init__(
        self,
        table: ValueTable,
        spark: SparkSession,
        committed: int,
        debounce: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._committed = committed
        self._values = ValueSet(spark)
        self._known: set[str] = set()
        self._debounce = debounce
        self._clock = clock
        self._mark: str | None = None
        self._read_at: float | None = None

    def prepare(self) -> None:
        """See `Table`."""
        self._table.prepare()

    def needs_values(self, plan: EpochPlan) -> bool:
        """See `Table`."""
        return plan.number > self._committed

    def fill(self, plan: EpochPlan, values: pa.Array) -> None:
        """See `Table`."""
        del plan
        if new := [value for value in values.to_pylist() if value not in self._known]:
            self._table.add(new)
            self._take(new)

    def lookup(self, plan: EpochPlan) -> ValueLookup:
        """See `Table`."""
        del plan
        now = self._clock()
        if self._read_at is None or now - self._read_at >= self._debounce:
            result, self._mark = self._table.since(self._mark)
            self._take(result)
            self._read_at = now
        return self._values.lookup

    def close(self) -> None:
        """See `Table`."""
        self._table.close()

    def _take(self, values: Sequence[str]) -> None:
        new = list(dict.fromkeys(value for value in values if value not in self._known))
        self._known.update(new)
        self._values.add(texts(new))


class _PostgresLookup(ValueLookup):
    """The connector's lookup under the contract of this room."""

    def __init__(self, lookup: PostgresLookup) -> None:
        self._lookup = lookup

    def contains(self, values: list[str]) -> list[bool]:
        """See `Lookup`."""
        return self._lookup.contains(values)

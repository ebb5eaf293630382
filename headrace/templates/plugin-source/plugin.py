"""A bounded source of the numbers from 1 to `upto`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, PositiveInt

from headrace import ArrowSource, Options, Plugin, SourceCapabilities

PIECE = 1_000  # rows


class NumbersOptions(Options):
    """The keys of a node."""

    upto: PositiveInt = Field(description="The last number.")


class Numbers(ArrowSource):
    """Every split is a range. The same split always has the same rows, so the source is pinned."""

    capabilities: ClassVar[SourceCapabilities] = SourceCapabilities(
        bounded=True, stable_snapshot=True, without_spark=True
    )

    def columns(self) -> pa.Schema:
        """Return the one column."""
        return pa.schema([("n", pa.int64())])

    def list_splits(self) -> Sequence[dict[str, Any]]:
        """Return ranges. `rows` is the number of rows of each."""
        last = self.options.upto
        return [{"first": at, "rows": min(PIECE, last - at + 1)} for at in range(1, last + 1, PIECE)]

    def batches(self, split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Return the rows of a split. Runs in Spark's workers: open connections here, not in `__init__`."""
        numbers = range(split["first"], split["first"] + split["rows"])
        yield pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=self.columns())


plugin = Plugin("$id", "source", Numbers, NumbersOptions)

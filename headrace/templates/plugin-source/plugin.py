"""The numbers from 1 on, as a source that ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, PositiveInt

from headrace import ArrowSource, Options, Plugin, SourceCapabilities

PIECE = 1_000  # rows


class NumbersOptions(Options):
    """What a node may say."""

    upto: PositiveInt = Field(description="The last number.")


class Numbers(ArrowSource):
    """Every piece is a range; the same piece always gives the same rows, so it is pinned."""

    capabilities: ClassVar[SourceCapabilities] = SourceCapabilities(
        bounded=True, stable_snapshot=True, without_spark=True
    )

    def columns(self) -> pa.Schema:
        """One column."""
        return pa.schema([("n", pa.int64())])

    def list_splits(self) -> Sequence[dict[str, Any]]:
        """Ranges; `rows` says how many rows each has."""
        last = self.options.upto
        return [{"first": at, "rows": min(PIECE, last - at + 1)} for at in range(1, last + 1, PIECE)]

    def batches(self, split: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Return the rows of a piece. Runs in Spark's workers: open connections here, not in `__init__`."""
        numbers = range(split["first"], split["first"] + split["rows"])
        yield pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=self.columns())


plugin = Plugin("$id", "source", Numbers, NumbersOptions)

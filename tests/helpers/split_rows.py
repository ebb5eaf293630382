"""Splits of given rows, which direct loads read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.source_base import SplitReader
from headrace.pipeline.errors import DataError
from headrace.pipeline.protocol.epochs import Json


@dataclass
class GivenSplits(SplitReader):
    """Splits of given rows, by name; a row of None is an error. `reads` are the splits that were read."""

    schema: pa.Schema
    rows: Mapping[str, list[Any]]
    reads: list[str]

    @property
    def splits(self) -> list[Json]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One split per name."""
        return [{"name": name} for name in self.rows]

    def fetch(self, split: Json) -> Iterator[pa.RecordBatch]:
        """Yield a batch per row."""
        self.reads.append(split["name"])
        for row in self.rows[split["name"]]:
            if row is None:
                msg = "the row cannot be read"
                raise DataError(msg)
            yield pa.RecordBatch.from_arrays(
                [pa.array([value], kind) for value, kind in zip(row, self.schema.types, strict=True)],
                schema=self.schema,
            )

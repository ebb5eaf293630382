"""Makes one row for every word of a column."""

from __future__ import annotations

import pyarrow as pa
from pydantic import Field

from headrace import ArrowTransform, Options, Plugin, UserError, fan_out


class WordsOptions(Options):
    """The keys of a node."""

    column: str = Field(default="text", description="The column to split into words.")


class Words(ArrowTransform):
    """Makes one row per word. `fan_out` gives each row a position of its own."""

    def columns(self, payload: pa.Schema) -> pa.Schema:
        """Return the columns of the result: those of the input, and the word."""
        if self.options.column not in payload.names or payload.field(self.options.column).type != pa.string():
            msg = f"there is no text column `{self.options.column}`"
            raise UserError(msg, hint=f"There are: {', '.join(payload.names)}.")
        return payload.append(pa.field("word", pa.string()))

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return one row per word. Runs in Spark's workers, on batches of any size."""
        words = [(text or "").split() for text in batch.column(self.options.column).to_pylist()]
        rows = [row for row, result in enumerate(words) for _ in result]
        flat = [word for result in words for word in result]
        return fan_out(batch, rows).append_column("word", pa.array(flat, pa.string()))


plugin = Plugin("$id", "transform", Words, WordsOptions)

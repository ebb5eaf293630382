"""Sinks that store nothing: `print` writes rows to standard error, `blackhole` computes and discards them.

Both are at-least-once and hold no record: after a crash the ledger alone says where the lane stands, and the
epoch that was open is shown, or computed, once more.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar, TextIO

from headrace.connectors.frame import EpochFrame
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.stateless_sink import StatelessSink
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Observation

_KINDS = {"i": "Insert", "u": "Update", "d": "Delete"}


class BlackholeSink(StatelessSink):
    """Rows are computed in full and thrown away. At-least-once."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["blackhole"].capabilities

    def write_rows(self, plan: EpochPlan, frame: EpochFrame) -> int:
        """See `StatelessSink.write_rows`."""
        del plan
        rows, seen = _observe_count(frame.rows)
        rows.write.format("noop").mode("overwrite").save()
        return int(seen.get["rows"])


class PrintSink(StatelessSink):
    """Prints a line per row to standard error; with `sample_every: N`, every Nth row per task. At-least-once.

    `<rows so far> -> (sample_every=N) [Insert|Update|Delete] {json}`, with all columns, `_gs_op` and explicit
    nulls; binary is hexadecimal.
    """

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["print"].capabilities

    def __init__(self, context: SinkContext, out: TextIO | None = None) -> None:
        super().__init__(context)
        self._out = out
        self._total = 0

    def write_rows(self, plan: EpochPlan, frame: EpochFrame) -> int:
        """See `StatelessSink.write_rows`."""
        del plan
        every = self._context.node.sample_every
        rows, seen = _observe_count(frame.rows)
        table = _lines(rows, frame.schema, every, self._total).toArrow()
        count = int(seen.get["rows"])
        self._total += count
        out = self._out or sys.stderr
        for batch in table.to_batches():
            for op, line in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                out.write(f"{self._total} -> (sample_every={every}) [{_KINDS[op]}] {line}\n")
        out.flush()
        return count


def _observe_count(rows: DataFrame) -> tuple[DataFrame, Observation]:
    """Return the rows and an observation that counts them. A retried task counts its rows twice."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    seen = Observation()
    return rows.observe(seen, F.count(F.lit(1)).alias("rows")), seen


def _lines(rows: DataFrame, schema: pa.Schema, every: int, before: int) -> DataFrame:
    """Return the operation and the JSON of the rows to print."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    number = F.monotonically_increasing_id().bitwiseAND(F.lit(2**33 - 1)) + F.lit(before + 1)
    shown = rows.where(number % every == 0) if every > 1 else rows
    columns = [
        F.lower(F.hex(f"`{field.name}`")).alias(field.name)
        if pa.types.is_binary(field.type)
        else F.col(f"`{field.name}`")
        for field in schema
    ]
    return shown.select(OP, F.to_json(F.struct(*columns, OP), {"ignoreNullFields": "false"}).alias("line"))

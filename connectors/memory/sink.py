"""A table in the memory of the process. At-least-once, because no other process has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.fencing import check_generation
from headrace.connectors.filters import quote_identifier
from headrace.connectors.frame import EpochFrame
from headrace.connectors.keys import canonical_frame
from headrace.connectors.lakehouse_rows import last_by_key, last_of_sorted, sort_by_position
from headrace.connectors.memory.config import MemorySinkConfig
from headrace.connectors.memory.tables import MemoryTableState, change_table
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.stateless_sink import StatelessSink
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.epochs import EpochPlan, WriteCounts
from headrace.pipeline.sql.system_columns import OP, POS
from headrace.pipeline.types.int256 import storage_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""


class MemorySink(StatelessSink):
    """A table in memory: one row per key, or without a key all rows with their operations.

    The atomic act is the replacement of the table's state, which includes the last epoch: inside one process
    an epoch that is repeated writes nothing.
    """

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["memory"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without creating the table."""
        super().__init__(context)
        node: MemorySinkConfig = context.node
        self._table = node.table or context.key.sink
        self._has_operations = not node.exclude_gs_op
        self._key: tuple[str, ...] = tuple(context.extra.get("key", node.primary_key))
        self._generation = -1

    def prepare(self, schema: pa.Schema, generation: int) -> None:
        """Create the table, or check that it has the columns; then fence older generations."""
        wanted = pa.schema(
            [*storage_schema(schema), *([(OP, pa.string())] if self._keeps_operations else [])]
        )
        sink = self._context.key

        def change(table_state: MemoryTableState | None) -> MemoryTableState:
            if table_state is None:
                return MemoryTableState(wanted.empty_table(), sink, generation)
            self._check_owner(table_state, generation)
            if not table_state.rows.schema.equals(wanted):
                names = ", ".join(table_state.rows.schema.names)
                msg = f"memory table `{self._table}` has other columns: {names}"
                hint = "Name another `table`, or call headrace.connectors.memory.tables.drop_table first."
                raise SchemaError(msg, hint=hint, node=sink.sink)
            return replace(table_state, sink=sink, generation=generation)

        change_table(self._table, change)
        self._generation = generation

    def write(self, plan: EpochPlan, frame: EpochFrame) -> WriteCounts:
        """Apply the epoch's rows in one step. An epoch that the table has is not applied again."""
        rows = self._collect_rows(frame)
        counts = WriteCounts(rows.num_rows, None, None, None)

        def change(table_state: MemoryTableState | None) -> MemoryTableState:
            table = table_state or MemoryTableState(
                rows.schema.empty_table(), self._context.key, self._generation
            )
            self._check_owner(table, self._generation)
            if table.sink == self._context.key and table.plan == plan:
                return table
            return replace(table, rows=self._apply(table.rows, rows), plan=plan, counts=counts)

        return change_table(self._table, change).counts or counts

    def write_rows(self, plan: EpochPlan, frame: EpochFrame) -> int:
        """See `StatelessSink.write_rows`."""
        return self.write(plan, frame).rows

    @property
    def _keeps_operations(self) -> bool:
        return not self._key and self._has_operations

    def _check_owner(self, table: MemoryTableState, generation: int) -> None:
        if table.sink == self._context.key:
            target = f"memory table `{self._table}`"
            check_generation(table.generation, generation, target=target, sink=self._context.key.sink)

    def _collect_rows(self, frame: EpochFrame) -> pa.Table:
        """Return the payload and `_gs_op`: the last row of each key, or all rows in their order."""
        names = [*frame.schema.names, OP]
        result = frame.table
        if result is None:
            rows = canonical_frame(frame.rows, frame.schema, self._key)
            result = rows.select(*map(quote_identifier, names), POS).toArrow()
        if self._key:
            result = last_by_key(self._context.key.sink, result, self._key)
        elif result.num_rows:
            result = sort_by_position(result)
        return result.select(names)

    def _apply(self, table: pa.Table, rows: pa.Table) -> pa.Table:
        """Return the table with the rows of an epoch."""
        if not self._key:
            return _concatenate(table, rows.select(table.column_names))
        before = table.append_column(OP, pa.repeat("i", table.num_rows))
        last = last_of_sorted(_concatenate(before, rows), self._key)
        return last.filter(pc.not_equal(last[OP], "d")).drop_columns([OP])


def _concatenate(table: pa.Table, rows: pa.Table) -> pa.Table:
    """Return both tables as one, with the columns and types of the first."""
    columns: Sequence[Any] = [rows[name].cast(table.schema.field(name).type) for name in table.column_names]
    return pa.concat_tables([table, pa.table(columns, schema=table.schema)])

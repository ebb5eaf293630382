"""Totals in Postgres as a sink, exactly once.

The sink writes the current row of each key to the landing table, like a `postgres` sink. Triggers of that
table change the totals in the same transaction, which also has the commit record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.postgres_aggregate.config import PostgresAggregateSinkConfig
from headrace.connectors.sink_base import SinkContext
from headrace.pipeline.errors import SchemaError, UserError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.types.arrow import is_nested, postgres_type

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.postgres_aggregate.totals import TotalsTable


class PostgresAggregateSink(PostgresSink):
    """A landing table and a table of totals. Delivery is exactly once: all of an epoch is one transaction."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["postgres_aggregate"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context. The drivers are imported when the sink is first used."""
        self._totals_node: PostgresAggregateSinkConfig = context.node
        super().__init__(replace(context, node=context.node.landing))

    def prepare_target(self, schema: pa.Schema) -> None:
        """Create or check both tables, and the triggers."""
        self._check(schema)
        super().prepare_target(schema)
        with self._connections.control.transaction() as session:
            self._totals(schema).create(session)

    def validate_target(self) -> None:
        """Check existing tables. Missing ones are fine: `prepare` would create them."""
        self._check(self._context.schema)
        super().validate_target()
        with self._connections.control.transaction() as session:
            self._totals(self._context.schema).check(session)

    def describe(self) -> Json:
        """Return the type, and asset key and name of the table of totals."""
        schema, table = self._totals_node.schema_, self._totals_node.agg_table
        result = super().describe()
        database = result["table_name"].split(".")[0]
        return result | {
            "kind": "postgres_aggregate",
            "asset_key": ["postgres", schema, table],
            "table_name": f"{database}.{schema}.{table}",
        }

    def _totals(self, schema: pa.Schema) -> TotalsTable:
        from headrace.connectors.postgres_aggregate.totals import TotalsTable

        types = {field.name: postgres_type(field.type) for field in schema}
        return TotalsTable(self._totals_node, self._name, types)

    def _check(self, schema: pa.Schema) -> None:
        """Raise an error for columns that the rows do not have, or that have no total."""
        node = self._totals_node
        if not self._context.extra.get("key", node.primary_key):
            msg = "type `postgres_aggregate` needs a primary key: an update replaces the values of its row"
            raise UserError(msg, hint="Set `primary_key` at the source or at the sink.", node=self._name)
        wanted = [("group_by", name, group.from_ or name) for name, group in node.group_by.items()]
        wanted += [
            ("aggregate", name, total.from_ or name)
            for name, total in node.aggregate.items()
            if total.from_ is not None or total.fn != "count"
        ]
        for part, name, column in wanted:
            if column not in schema.names:
                columns = ", ".join(schema.names)
                msg = f"`{part}.{name}` reads `{column}`, which is not among the columns {columns}"
                raise SchemaError(msg, node=self._name, keys=(part, name))
            kind = schema.field(column).type
            if is_nested(kind):
                msg = f"`{part}.{name}` reads `{column}`, which is {kind}"
                raise SchemaError(
                    msg, hint="Use a column of a plain type.", node=self._name, keys=(part, name)
                )
            is_number = postgres_type(kind).split("(")[0].lower() in _NUMBERS
            if part == "aggregate" and node.aggregate[name].fn in ("sum", "avg") and not is_number:
                msg = f"`{part}.{name}` adds `{column}`, which is {kind}"
                raise SchemaError(
                    msg, hint="Convert it to a number in a transform.", node=self._name, keys=(part, name)
                )


_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")

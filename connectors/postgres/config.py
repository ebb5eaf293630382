"""The `postgres` sink of a pipeline file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PositiveInt

from headrace.pipeline.model.sinks import KeyedSinkConfig
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from headrace.pipeline.config.sections import PostgresConnection

UpdateOp = Literal[">", ">=", "<", "<=", "=", "!=", "<>"]


def describe_table(connection: PostgresConnection, schema: str, table: str) -> Json:
    """Return the type, asset key and table name of a table."""
    place = f"{connection.host}:{connection.port}"
    return {
        "kind": "postgres",
        "asset_key": ["postgres", schema, table],
        "scope": [place, connection.db],
        "table_name": f"{connection.db}.{schema}.{table}",
        "location": place,
    }


class PostgresSinkConfig(KeyedSinkConfig):
    """A Postgres table, created if missing: upserts and deletes by key, or appends without one."""

    target_keys: ClassVar[tuple[str, ...]] = ("schema", "table")
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)
    check_dialect: ClassVar[Literal["spark", "postgres", "clickhouse"]] = "postgres"

    type: Literal["postgres"] = "postgres"
    schema_: str = Field(
        default="public", alias="schema", description="The table's schema; made if it is missing."
    )
    table: str = Field(description="The table's name; made from the rows' columns if it is missing.")
    on_conflict: Literal["update", "nothing"] = Field(
        default="update",
        description="With a key: `update` lets the last row of a key win, `nothing` the first one.",
    )
    update_where: dict[str, UpdateOp] = Field(
        default_factory=dict,
        description="`{column: op}`: update only if EXCLUDED.column op t.column holds for all of them. By"
        " default always updates.",
    )
    on_error: Literal["fail", "dead_letter"] = Field(
        default="fail",
        description="What happens with a row that the table refuses, as by a constraint or the range of a"
        " column: it fails the epoch, or it goes to `errors_table` in the transaction of the epoch. A row"
        " costs about log2(n) merges then, and history is not loaded by bulk copy.",
    )
    errors_table: str | None = Field(
        default=None,
        description="With `on_error: dead_letter`: the table of refused rows in the same schema, made if it"
        " is missing. Defaults to `<table>_errors`.",
    )
    max_error_rate: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="With `on_error: dead_letter`: the largest fraction of refused rows in an epoch of at"
        " least 100 rows. More fail the epoch, and nothing of it is written.",
    )
    max_driver_rows: PositiveInt = Field(
        default=100_000,
        description="Epochs of up to this many rows go out by one connection of the driver, larger ones by"
        " Spark's tasks. By default rows that are in the driver already have no limit, and epochs of up to"
        " 1,000,000 rows and 128 MiB are collected if the driver can choose the last row of each key.",
    )

    @property
    def most_local_rows(self) -> int:
        """The most rows of the driver that its connection writes."""
        return self.max_driver_rows if "max_driver_rows" in self.model_fields_set else sys.maxsize

    @property
    def errors_table_name(self) -> str | None:
        """The table of refused rows, or None if a refused row fails the epoch."""
        return (self.errors_table or f"{self.table}_errors") if self.on_error == "dead_letter" else None

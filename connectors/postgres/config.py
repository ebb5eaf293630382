"""The `postgres` sink of a pipeline file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from headrace.pipeline.model.sinks import KeyedSinkConfig

UpdateOp = Literal[">", ">=", "<", "<=", "=", "!=", "<>"]


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
    max_driver_rows: PositiveInt = Field(
        default=100_000,
        description="Epochs of up to this many rows go out by one connection of the driver, larger ones by"
        " Spark's tasks.",
    )

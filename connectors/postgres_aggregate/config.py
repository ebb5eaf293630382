"""The `postgres_aggregate` sink of a pipeline file."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from headrace.connectors.postgres.config import PostgresSinkConfig
from headrace.pipeline.model.sinks import KeyedSinkConfig
from headrace.pipeline.model.strict import Strict

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_ ]*(\(\s*\d+\s*(,\s*\d+\s*)?\))?[A-Za-z ]*")


def _check_type(value: str) -> str:
    if not _TYPE.fullmatch(value):
        msg = "must be a Postgres type, such as numeric(38, 2)"
        raise ValueError(msg)
    return value


PostgresType = Annotated[str, AfterValidator(_check_type)]


class GroupColumn(Strict):
    """A column by which rows are grouped."""

    from_: str | None = Field(
        default=None, alias="from", description="Column of the rows. Defaults to the name."
    )
    type: PostgresType | None = Field(
        default=None, description="Postgres type. Defaults to that of the landing table's column."
    )


class AggregateColumn(Strict):
    """A total of the rows of a group."""

    from_: str | None = Field(
        default=None,
        alias="from",
        description="Column of the rows. Defaults to the name; `count` without it counts all rows.",
    )
    fn: Literal["sum", "count", "avg", "min", "max"] = Field(
        description="The function. Nulls are left out; a `sum` of none is 0. `avg` also has the columns"
        " `<name>_sum` and `<name>_count`."
    )
    type: PostgresType | None = Field(
        default=None,
        description="Postgres type. Defaults to `numeric` for `sum` and `avg`, `bigint` for `count`, and the"
        " column's type.",
    )


class PostgresAggregateSinkConfig(KeyedSinkConfig):
    """The current rows in a landing table, and their totals by group in another table."""

    target_keys: ClassVar[tuple[str, ...]] = ("schema", "landing_table")
    metric_labels: ClassVar[tuple[str, ...]] = ("agg_table",)
    check_dialect: ClassVar[Literal["spark", "postgres", "clickhouse"]] = "postgres"

    type: Literal["postgres_aggregate"] = "postgres_aggregate"
    schema_: str = Field(
        default="public", alias="schema", description="The schema of both tables; made if it is missing."
    )
    landing_table: str = Field(description="The table with the current row of each key.")
    agg_table: str = Field(description="The table with the totals, one row for each group.")
    group_by: dict[str, GroupColumn] = Field(
        default_factory=dict,
        description="Columns of the totals' groups. By default one row has the totals of all rows, with the"
        " column `key` = `value`.",
    )
    aggregate: dict[str, AggregateColumn] = Field(description="Columns of the totals.")
    max_driver_rows: PositiveInt = Field(
        default=100_000,
        description="Epochs of up to this many rows go out by one connection of the driver, larger ones by"
        " Spark's tasks. By default rows that are in the driver already have no limit.",
    )

    @model_validator(mode="after")
    def _check_columns(self) -> PostgresAggregateSinkConfig:
        if not self.aggregate:
            msg = "at least one aggregate column is required"
            raise ValueError(msg)
        names = [*self.group_by, *self.total_columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            msg = f"the column `{twice}` of `agg_table` is there twice"
            raise ValueError(msg)
        if self.landing_table == self.agg_table:
            msg = "`landing_table` and `agg_table` must be different tables"
            raise ValueError(msg)
        return self

    @property
    def total_columns(self) -> list[str]:
        """The columns of `aggregate` in the table."""
        columns: list[str] = []
        for name, column in self.aggregate.items():
            columns += [f"{name}_sum", f"{name}_count", name] if column.fn == "avg" else [name]
        return columns

    @property
    def landing(self) -> PostgresSinkConfig:
        """The node of a sink into the landing table."""
        limit = (
            {"max_driver_rows": self.max_driver_rows} if "max_driver_rows" in self.model_fields_set else {}
        )
        return PostgresSinkConfig.model_validate(
            {
                "from": self.from_,
                "schema": self.schema_,
                "table": self.landing_table,
                "primary_key": self.primary_key,
                "version_column": self.version_column,
                "schema_evolution": self.schema_evolution,
                "share": self.share,
                **limit,
            }
        )

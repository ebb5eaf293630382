"""Transforms of a pipeline file.

Keys follow Streamling's topology files, with additional keys of Headrace.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt
from sqlglot import exp

from headrace.pipeline.model.base import PARALLELISM, RejectingConfig
from headrace.pipeline.model.handler import HandlerTransformConfig
from headrace.pipeline.model.scripts import PythonTransformConfig, ScriptTransformConfig
from headrace.pipeline.model.strict import Columns, Strict
from headrace.pipeline.model.telemetry import Telemetry
from headrace.pipeline.sql import statements as sql
from headrace.pipeline.sql.dialects.translation import DialectName

_DIALECT = (
    "Whose SQL it is. Spark runs it in any case: another dialect is translated, and what cannot be"
    " is an error."
)


class SqlTransformConfig(RejectingConfig):
    """A projection, a filter, an unnest or a union in SQL."""

    type: Literal["sql"] = "sql"
    sql: str = Field(
        description="One SELECT over sources and other transforms by their names: columns, WHERE, unnest,"
        " UNION ALL."
    )
    dialect: DialectName = Field(default="spark", description=_DIALECT)
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    def inputs(self, node: str) -> tuple[str, ...]:
        """Return the nodes that the statement reads.

        Raise UserError, naming `node`, if it cannot be parsed.
        """
        return sql.input_nodes(self.sql, node=node, dialect=self.dialect)

    def query(self, node: str = "") -> exp.Query:
        """Return the query in Spark's SQL, for inspection. Raise UserError for `node` if not allowed."""
        return sql.parse(self.sql, node=node, dialect=self.dialect)

    def spark_sql(self, node: str = "") -> str:
        """Return the query in Spark's SQL, as a string."""
        return sql.spark_text(self.sql, node=node, dialect=self.dialect)


def _backend(value: object) -> object:
    """Return the backend in one spelling: `In-Memory`, `in_memory` and `INMEMORY` are the same."""
    names = {"inmemory": "InMemory", "postgres": "Postgres"}
    result = names.get(re.sub(r"[^a-z0-9]", "", value.lower())) if isinstance(value, str) else None
    if result is None:
        msg = f"invalid dynamic table backend_type '{value}' (expected 'Postgres' or 'InMemory')"
        raise ValueError(msg)
    return result


def _check_not_empty(value: str) -> str:
    if not value.strip():
        msg = "it is empty"
        raise ValueError(msg)
    return value


_Name = Annotated[str, AfterValidator(_check_not_empty)]


class DynamicTableConfig(Strict):
    """A set of texts that SQL or other programs fill, and that `dynamic_table_check` looks up."""

    primary_key: ClassVar[Columns] = ()

    type: Literal["dynamic_table"] = "dynamic_table"
    backend_type: Annotated[Literal["InMemory", "Postgres"], BeforeValidator(_backend)] = Field(
        description="`InMemory`: values of this pipeline alone, kept across restarts. `Postgres`: a table"
        " that others may write as well."
    )
    backend_entity_name: _Name = Field(description="The set's name; for Postgres `table` or `schema.table`.")
    sql: str | None = Field(
        default=None,
        description="Query that fills the table: one text column of one source or transform, with or"
        " without WHERE. By default nothing fills it.",
    )
    dialect: DialectName = Field(default="spark", description=_DIALECT)
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description="Postgres: the table's schema; from the name, else `public`.",
    )
    column: _Name = Field(default="value", description="Postgres: the column of the values, a text.")
    time_column: _Name | None = Field(
        default=None, description="Postgres: the column that says when a value came; `cache` needs it."
    )
    cache: bool | None = Field(
        default=None,
        description="Postgres: cache the values and read new ones. Defaults to the setting `cache_enabled`.",
    )
    cache_refresh_debounce_ms: NonNegativeInt | None = Field(
        default=None,
        description="Postgres: minimum interval between reads of new values. Defaults to the setting, else"
        " 1000.",
    )
    telemetry: Telemetry | None = Field(
        default=None, description="Labels of the node's metrics, which tell how many rows it was given."
    )

    @property
    def in_memory(self) -> bool:
        """Whether only this pipeline has the values."""
        return self.backend_type == "InMemory"

    def inputs(self, node: str) -> tuple[str, ...]:
        """Return the node whose rows fill the table, if any. Raise UserError if its SQL cannot be parsed."""
        return sql.input_nodes(self.sql, node=node, dialect=self.dialect) if self.sql is not None else ()

    def query(self, node: str = "") -> exp.Query:
        """Return the table's SQL, which must be set, in Spark's dialect."""
        return sql.parse(self.sql or "", node=node, dialect=self.dialect)


TransformConfig = Annotated[
    SqlTransformConfig
    | HandlerTransformConfig
    | ScriptTransformConfig
    | PythonTransformConfig
    | DynamicTableConfig,
    Field(discriminator="type"),
]

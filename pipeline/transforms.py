"""Transforms of a pipeline file. Keys follow Streamling's topology files; keys of our own stand beside theirs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from sqlglot import exp

from headrace.pipeline import sql
from headrace.pipeline.dialects import DialectName
from headrace.pipeline.node import PARALLELISM, Node


class SqlTransform(Node):
    """A projection, a filter, an unnest or a union in SQL."""

    type: Literal["sql"] = "sql"
    sql: str = Field(description="One SELECT over sources and other transforms by their names: columns, WHERE, unnest, UNION ALL.")
    dialect: DialectName = Field(
        default="spark",
        description="Whose SQL it is. Spark runs it in any case: another dialect is translated, and what cannot be is an error.",
    )
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    def inputs(self, node: str) -> tuple[str, ...]:
        """The nodes that it reads. Raises UserError, naming `node`, where its SQL cannot be parsed."""
        return sql.tables(self.sql, node=node, dialect=self.dialect)

    def query(self, node: str = "") -> exp.Query:
        """What it means in Spark's SQL, to look at. Raises UserError, naming `node`, for what is not allowed."""
        return sql.parse(self.sql, node=node, dialect=self.dialect)

    def spark_sql(self, node: str = "") -> str:
        """What it means in Spark's SQL, as text."""
        return sql.spark_text(self.sql, node=node, dialect=self.dialect)


TransformNode = Annotated[SqlTransform, Field(discriminator="type")]

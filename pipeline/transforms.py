"""Transforms of a pipeline file. Keys follow Streamling's topology files; keys of our own stand beside theirs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from headrace.pipeline import sql
from headrace.pipeline.handler import HandlerTransform
from headrace.pipeline.node import PARALLELISM, Node


class SqlTransform(Node):
    """A projection, a filter or a union in Spark SQL."""

    type: Literal["sql"] = "sql"
    sql: str = Field(description="One SELECT over sources and other transforms by their names: columns, WHERE, UNION ALL.")
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    def inputs(self, node: str) -> tuple[str, ...]:
        """The nodes that it reads. Raises UserError, naming `node`, where its SQL cannot be parsed."""
        return sql.tables(self.sql, node=node)


TransformNode = Annotated[SqlTransform | HandlerTransform, Field(discriminator="type")]

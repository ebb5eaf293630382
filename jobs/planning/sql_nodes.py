"""Plans the SQL of transforms and dynamic tables: the statements that Spark gets, and their frames."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.connectors.spark_plan import refuse_relative_timestamps
from headrace.connectors.spark_types import mark_column, wide_columns
from headrace.jobs.dynamic_tables.base import check_arguments
from headrace.jobs.functions import provide
from headrace.jobs.functions.plugins import register_functions
from headrace.jobs.spark.analysis_errors import explain_analysis_error
from headrace.jobs.spark.columns import types_of
from headrace.pipeline.errors import PluginError, SchemaError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.lineage.retractions import Retractions
from headrace.pipeline.model import graph
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.dialects.translation import double_quoted
from headrace.pipeline.sql.filter_marking import Marking
from headrace.pipeline.sql.system_columns import HIDDEN
from headrace.pipeline.sql.types import WideColumns, apply_types, needs_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlglot import exp


class SqlNodePlanner:
    """The SQL of one pipeline file on one Spark session. Inputs of a node are temporary views."""

    def __init__(self, file: PipelineFile, spark: SparkSession, retractions: Retractions) -> None:
        self._file = file
        self._spark = spark
        self._retractions = retractions
        self.texts: dict[str, str] = {}
        """The last SQL that Spark got for each sql node."""
        self._statements: dict[str, tuple[exp.Query, WideColumns]] = {}
        self._timeless: dict[str, str] = {}
        """The compiled SQL of nodes, by name, whose text does not depend on the time of the epoch."""
        self._tables = frozenset(graph.dynamic_tables(file.model))
        self._upstream_sources = {name: frozenset({name}) for name in file.model.sources}
        """The sources that each node reads, directly or not."""
        for name in graph.in_order(file.model):
            inputs = graph.inputs_of(file.model, name)
            self._upstream_sources[name] = frozenset[str]().union(
                *(self._upstream_sources.get(upstream, ()) for upstream in inputs)
            )

    def register_plugin_functions(self) -> None:
        """Register functions of plugins, by the names that the SQL calls them by."""
        nodes: dict[str, Any] = {**self._file.model.transforms}
        for name, node in nodes.items():
            if text := getattr(node, "sql", None):
                try:
                    register_functions(
                        self._spark, [statements.spark_text(text, node=name, dialect=node.dialect)]
                    )
                except PluginError as error:
                    error.node, error.keys = name, ("sql",)
                    raise

    def select(self, name: str, views: dict[str, str], plan: EpochPlan | None) -> DataFrame:
        """Return the result of a node's SQL, with the system columns."""
        node: Any = self._file.model.transforms[name]
        query = self._statement(name, node, views)
        text = self._compile(name, query, views, plan)
        provide(self._spark, text, name)
        frame = self._sql(name, text)
        if plan is None:
            if graph.looked_up_tables(self._file.model, name):
                check_arguments(frame, name)
            if statements.may_have_relative_timestamps(node.sql):
                still = self._compile_at(name, query, views, datetime.now(UTC), marking=None)
                calls = statements.nondeterministic_calls(node.sql, dialect=node.dialect)
                refuse_relative_timestamps(self._spark.sql(still), node.sql, name, calls)
        return frame

    def is_plain(self, name: str) -> bool:
        """Return whether a node's SQL needs no frames to be compiled: no types decide what it means.

        Raise UserError if it cannot be compiled.
        """
        node: Any = self._file.model.transforms[name]
        if _double_quoted_texts(node):
            return False
        query = node.query(name)
        if needs_types(query, wide=False):
            return False
        self._compile_at(name, query, {}, None, self.find_marking(name))
        return True

    def _compile(self, name: str, query: exp.Query, views: dict[str, str], plan: EpochPlan | None) -> str:
        """Return the SQL that Spark gets. `views` are the same in all epochs."""
        if name in self._timeless:
            return self._timeless[name]
        marking = self.find_marking(name)
        text = self._compile_at(name, query, views, plan.planned_at if plan else None, marking)
        if plan is not None:
            other = plan.planned_at + timedelta(days=1, seconds=1, microseconds=1)
            if self._compile_at(name, query, views, other, marking) == text:
                self._timeless[name] = text
        return text

    def _compile_at(
        self,
        name: str,
        query: exp.Query,
        views: dict[str, str],
        now: datetime | None,
        marking: Marking | None,
    ) -> str:
        return statements.compile_statement(
            query,
            HIDDEN,
            now=now,
            rename=views,
            node=name,
            sources=self._upstream_sources,
            marking=marking,
        )

    def _statement(self, name: str, node: Any, views: Mapping[str, str]) -> exp.Query:
        """Return a sql node's query in Spark SQL, adapted to the types of its inputs.

        The result is cached.
        """
        if name not in self._statements:
            frames = {upstream: self._spark.table(views[upstream]) for upstream in node.inputs(name)}
            self._check_double_quotes(name, node, frames)
            query = node.query(name)
            wide = {upstream: wide_columns([frame]) for upstream, frame in frames.items()}
            nested = {
                upstream: self._statements[upstream][1].nested if upstream in self._statements else {}
                for upstream in frames
            }
            columns = WideColumns({}, {})
            if needs_types(query, any([*wide.values(), *nested.values()])):
                types = {
                    upstream: types_of(frame, wide[upstream], nested[upstream])
                    for upstream, frame in frames.items()
                }
                columns = apply_types(query, types, node=name)
            self._statements[name] = query, columns
        return self._statements[name][0]

    def _check_double_quotes(self, name: str, node: Any, frames: Mapping[str, DataFrame]) -> None:
        """Raise SchemaError if a column name is in double quotes, which Spark reads as a string.

        Such a file comes from another system.
        """
        quoted = _double_quoted_texts(node)
        for upstream, frame in frames.items() if quoted else ():
            names = {column.lower(): column for column in frame.columns}
            if text := next((text for text in quoted if text.lower() in names), None):
                msg = (
                    f'"{text}" is a text in Spark\'s SQL, and a column of `{upstream}` is called'
                    f" `{names[text.lower()]}`"
                )
                hint = (
                    "For the column add `dialect: datafusion` (or postgres) to the node, or write"
                    f" `{text}` in backticks;"
                )
                hint += f" for the text write '{text}'."
                raise SchemaError(msg, hint=hint, node=name)

    def find_marking(self, name: str) -> Marking | None:
        """Return how a node's SQL keeps rows that its filter rejects, or None.

        A dynamic table is filled only by rows that pass.
        """
        is_marked = not self._retractions.marked.isdisjoint(graph.inputs_of(self._file.model, name))
        if name in self._tables:
            return Marking(frozenset(), marked=is_marked) if is_marked else None
        return self._retractions.marking(name, marked=is_marked)

    def _sql(self, name: str, text: str) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        node: Any = self._file.model.transforms[name]
        self.texts[name] = text
        try:
            frame = self._spark.sql(text)
        except (AnalysisException, ParseException) as error:
            message, hint = explain_analysis_error(error, node.sql)
            raise SchemaError(message, hint=hint, node=name) from None
        names = [column for column in frame.columns if column not in HIDDEN]
        if doubled := sorted(
            {column for column in names if [other.lower() for other in names].count(column.lower()) > 1}
        ):
            msg = f"column `{doubled[0]}` appears twice"
            raise SchemaError(msg, hint="Give one of them another name with AS.", node=name)
        kinds = self._statements[name][1].numbers
        if not kinds:
            return frame
        return frame.select(
            *[mark_column(frame, column, kinds.get(column.lower())) for column in names], *HIDDEN
        )


def _double_quoted_texts(node: Any) -> tuple[str, ...]:
    """Return the texts in double quotes of a node's SQL. In other dialects they are names."""
    return double_quoted(node.sql) if node.dialect == "spark" else ()

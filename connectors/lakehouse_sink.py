"""The base of sinks into tables of files (Delta, Iceberg): the key, and the rows that audits read."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connectors.content import TargetContent
from headrace.connectors.filters import is_in_partition, quote_identifier
from headrace.connectors.lakehouse_rows import bounds_of
from headrace.connectors.local_relation import frame_of_table
from headrace.connectors.schema_evolution import find_new_columns
from headrace.connectors.target_query import QueryResult, TargetQuery, to_query_column
from headrace.connectors.transactional_sink import SinkState, TransactionalSink
from headrace.pipeline.errors import InternalError, TargetError
from headrace.pipeline.protocol.epochs import CommitRecord
from headrace.pipeline.protocol.partitions import HistoryPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

LOOKUP_ROWS = 5_000_000
"""Keys are looked up in tables of at most this many rows, because a table of files has no index."""


class LakehouseSink(TransactionalSink):
    """A sink into a table whose versions Spark reads."""

    @abstractmethod
    def read_rows(self, state: SinkState) -> DataFrame:
        """Return all rows of the table version that `state` was read from."""

    @property
    def _spark(self) -> SparkSession:
        if self._context.spark is None:
            msg = f"a sink of type `{self._context.node.type}` was opened without a Spark session"
            raise InternalError(msg, node=self._name)
        return self._context.spark

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self._context.extra.get("key", self._context.node.primary_key))

    def _find_new(self, schema: pa.Schema) -> Callable[[Iterable[str]], list[pa.Field]]:
        """Return what finds, among the columns of the table, those that the sink adds."""
        return lambda existing: find_new_columns(
            self._context.node, schema, self._key, existing, fold=str.lower
        )

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the row count of one table version; None and 0 if there is no table.

        Return None if other sinks share the table.
        """
        if self._context.owner.others(self.claims()):
            return None
        state = self.read_state()
        return (state.record, self.count_rows(state)) if state else (None, 0)

    def count_rows(self, state: SinkState) -> int:
        """Return the number of rows of the table version that `state` was read from."""
        return self.read_rows(state).count()

    def read_keys(self, partition: HistoryPartition | None, folder: Path) -> DataFrame:
        """Return the keys of one table version. Files without rows of the partition are skipped."""
        del folder
        state = self.read_state()
        if state is None:
            msg = "the keys of a target that does not exist were requested"
            raise InternalError(msg, node=self._name)
        rows = self.read_rows(state)
        if partition is not None:
            rows = rows.where(_is_within(rows, partition))
        return rows.select(*map(quote_identifier, self._key))

    def content(self, schema: pa.Schema, folder: Path, limit: int | None = None) -> TargetContent | None:
        """Return the record and the rows of one table version."""
        del folder
        state = self.read_state()
        if state is None or state.record is None:
            return None
        columns = tuple(schema.names)
        rows = 0 if limit is None else self.count_rows(state)
        is_whole = limit is None or rows <= limit
        if is_whole or rows <= LOOKUP_ROWS:
            result = self.read_local_content(state, state.record, columns, is_whole=is_whole)
            if result is not None:
                return result
        frame = self.read_rows(state)
        if is_whole:
            return TargetContent(state.record, frame, columns)
        return TargetContent(
            state.record,
            None,
            columns,
            lookup=lambda keys: _rows_of_keys(frame, keys) if rows <= LOOKUP_ROWS else None,
        )

    def read_local_content(
        self, state: SinkState, record: CommitRecord, columns: Sequence[str], *, is_whole: bool
    ) -> TargetContent | None:
        """Return the rows of a table version without Spark, or a lookup if it is not to be read as a whole.

        Return None if only Spark reads them.
        """
        del state, record, columns, is_whole
        return None

    def query_target(self) -> TargetQuery | None:
        """Return SQL over one table version, as a temporary view of the session."""
        state = self.read_state()
        if state is None:
            return None
        frame, view = self.read_rows(state), f"headrace_check_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(view)
        session = frame.sparkSession
        return TargetQuery(
            "spark",
            view,
            {field.name: to_query_column("spark", field.dataType.simpleString()) for field in frame.schema},
            lambda text: _fetch(session, text),
            state.record,
            is_shared=bool(self._context.owner.others(self.claims())),
            close=lambda: _drop_view(session, view),
        )


def missing_table_error(target: str, sink: str) -> TargetError:
    """Return the error of an operation on a table that does not exist."""
    return TargetError(f"{target} does not exist", hint="A run of the pipeline creates it.", node=sink)


def _fetch(session: SparkSession, text: str) -> QueryResult:
    result = session.sql(text)
    return QueryResult(result.columns, result.collect())


def _drop_view(session: SparkSession, view: str) -> None:
    session.catalog.dropTempView(view)


def _is_within(rows: DataFrame, partition: HistoryPartition) -> Column:
    """Return whether a row is in the partition."""
    from pyspark.sql import functions as F  # noqa: N812

    (field,) = [field for field in rows.schema if field.name.lower() == partition.column.lower()]
    column = F.col(quote_identifier(field.name))
    return is_in_partition(column, field.dataType, partition.start, partition.end)


def _rows_of_keys(frame: DataFrame, keys: pa.Table) -> DataFrame:
    """Return the rows of these keys. The bounds of the keys let Spark skip files."""
    from pyspark.sql import functions as F  # noqa: N812

    for name, (low, high) in bounds_of(keys, tuple(keys.column_names)).items():
        frame = frame.where(F.col(quote_identifier(name)).between(low, high))
    schema = frame.select(*map(quote_identifier, keys.column_names)).schema
    listed = frame_of_table(frame.sparkSession, keys, schema)
    return frame.join(F.broadcast(listed), keys.column_names, "left_semi")

"""A function of the user that yields Arrow batches, as a bounded source."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.connectors.staged.source import StagedSource, cast_column
from headrace.connectors.user_functions import (
    check_allowed,
    check_options,
    describe_user_error,
    load_function,
)
from headrace.pipeline.errors import DataError, HeadraceError, SchemaError
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.connectors.python.config import PythonSourceConfig

_END = object()


class PythonRowSource(StagedSource):
    """The rows that a function yields when the pipeline starts for the first time."""

    capabilities: ClassVar[SourceCapabilities] = source_entries()["python"].capabilities
    node: PythonSourceConfig

    def check(self, spark: SparkSession, columns: Sequence[str]) -> None:
        """Check that the function is allowed, loads and takes the options; then filter and columns."""
        self._load()
        super().check(spark, columns)

    def read_batches(self) -> Generator[pa.Table]:
        """Call the function and return its rows in the declared types.

        Raise DataError for an exception of the function, and SchemaError for a result that is no batch.
        """
        path, schema = self.node.function, self.declared_schema
        rows = 0
        batches = self._call()
        while True:
            try:
                result: Any = next(batches, _END)
            except HeadraceError:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001  errors of the user's function are reported
                msg = f"`{path}` failed after {rows} rows: {self._describe(error)}"
                hint = "Fix the function. Nothing was stored; the next run calls it again."
                raise DataError(msg, hint=hint, node=self.name) from None
            if result is _END:
                return
            if not isinstance(result, pa.RecordBatch | pa.Table):
                raise self._wrong_result(result)
            columns = [self._column(result, field) for field in schema]
            yield pa.table(columns, names=schema.names)
            rows += result.num_rows

    def _load(self) -> Any:
        path = self.node.function
        check_allowed(path, self.settings.python_transforms.allow, self.name)
        function = load_function(path, self.name)
        check_options(function, path, self.node.options, self.name)
        return function

    def _call(self) -> Iterator[Any]:
        """Return what the function returns as an iterator. The call itself is its first step."""
        result = self._load()(**self.node.options)
        if isinstance(result, pa.RecordBatch | pa.Table):
            yield result
        elif isinstance(result, Iterable):
            yield from result
        else:
            raise self._wrong_result(result)

    def _column(self, rows: pa.RecordBatch | pa.Table, field: pa.Field) -> pa.ChunkedArray:
        names = rows.schema.names
        if names.count(field.name) != 1:
            what = f"`{field.name}` twice" if field.name in names else f"no column `{field.name}`"
            msg = f"`{self.node.function}` returned {what}"
            hint = f"It must return {', '.join(self.declared_schema.names)}; it returned {', '.join(names)}."
            raise SchemaError(msg, hint=hint, node=self.name)
        return cast_column(self.name, rows.column(field.name), field, f"`{self.node.function}`")

    def _wrong_result(self, result: object) -> SchemaError:
        msg = f"`{self.node.function}` returned {type(result).__name__}"
        return SchemaError(
            msg, hint="Return or yield pyarrow.RecordBatch or pyarrow.Table objects.", node=self.name
        )

    def _describe(self, error: BaseException) -> str:
        return describe_user_error(error, self.node.function.partition(":")[0])

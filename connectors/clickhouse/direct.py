"""Direct loads: tasks bring Arrow from the source into the staging table, split by split.

Only the way into the staging table differs. The epoch is announced, attached and recorded as in `sink`,
so readers see all splits of an epoch at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.arrow_batches import cast_batch
from headrace.connectors.clickhouse.loader import StageLoad
from headrace.connectors.keys import canonical
from headrace.connectors.lakehouse_rows import check_null_keys, last_of_sorted
from headrace.connectors.source_base import SplitReader
from headrace.connectors.split_tasks import run_split_tasks
from headrace.connectors.task_failures import TaskFailure, raise_task_failure
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.sql.system_columns import OP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class DirectSplits:
    """The splits of an epoch, in place of its frame. `payload` are the columns of the sink."""

    fetch: SplitReader
    payload: pa.Schema
    key: tuple[str, ...]
    spark: SparkSession
    threads: int

    def stage(self, load: StageLoad) -> int:
        """Insert the rows of all splits. Return their number, or raise the error of a task.

        A task that Spark ran twice inserts its rows twice: compare the result with the staging table.
        """
        splits = self.fetch.splits
        task = StageTask(load, self.fetch, self.payload, self.key)
        results = run_split_tasks(task, splits, self.spark, self.threads, in_turn=False) if splits else []
        raise_task_failure(result["failure"] for result in results)
        return sum(result["rows"] for result in results)


@dataclass(frozen=True, slots=True)
class StageTask:
    """Inserts the rows of one split: with a key the last row of each. Picklable."""

    load: StageLoad
    fetch: SplitReader
    payload: pa.Schema
    key: tuple[str, ...]

    def __call__(self, split: Json) -> Json:
        """Return the number of rows, or the failure. A failed insert is not repeated: see `StageLoad`."""
        try:
            return {"rows": self.load.load(self._batches(split)), "failure": None}
        except HeadraceError as error:
            return {"rows": 0, "failure": TaskFailure.of(error).to_json()}

    def _batches(self, split: Json) -> Iterator[pa.RecordBatch]:
        batches = (cast_batch(batch, self.payload, self.load.node) for batch in self.fetch.fetch(split))
        if not self.key:
            yield from batches
            return
        rows = pa.Table.from_batches(batches, self.payload)
        check_null_keys(self.load.node, rows, self.key)
        # The batches are in reading order, and splits have no key in common.
        rows = last_of_sorted(canonical(rows, self.key), self.key)
        yield from rows.append_column(OP, pa.repeat("i", rows.num_rows)).to_batches()

"""Rows of a bulk copy whose values Arrow leaves to Spark, computed in the threads that copy splits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connectors.arrow_batches import cast_batch
from headrace.connectors.lazy_session import ensure_session
from headrace.connectors.local_relation import collect_arrow
from headrace.connectors.parquet_frame import frame_through_file
from headrace.connectors.spark_types import POS_ARROW, row_schema
from headrace.jobs.planning.planner import PipelinePlanner
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.spark.job_tags import inherit_job_tag
from headrace.jobs.transforms.retractions import without_marked
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class SplitSql:
    """Computes the transforms between a source and a sink, in order, by Spark. Starts Spark if necessary."""

    planner: PipelinePlanner
    source: str
    transforms: tuple[str, ...]
    plan: EpochPlan
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """One local relation at a time: options of the session hold for all threads."""

    def compute(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the payload of the last transform for rows of the source. Raise the errors of the rows."""
        last = self.transforms[-1]
        with TemporaryDirectory(prefix="headrace-") as folder:
            try:
                frame = self._select(batches, Path(folder))
                with self._lock:
                    local = self.planner.local_nodes.compute_node(last, frame)
                return collect_arrow(frame if local is None else local).to_batches()
            except Exception as error:
                raise as_headrace_error(error, node=last, texts=self.planner.texts) from error

    def _select(self, batches: Sequence[pa.RecordBatch], folder: Path) -> DataFrame:
        planner = self.planner
        spark = ensure_session(planner.spark)
        inherit_job_tag(spark)
        payload = planner.source_schemas[self.source]
        rows = pa.Table.from_batches([cast_batch(batch, payload, self.source) for batch in batches])
        position = pa.scalar({"source": 0, "part": 0, "off": 0, "sub": 0}, POS_ARROW)
        rows = rows.append_column(OP, pa.repeat("i", rows.num_rows))
        rows = rows.append_column(POS, pa.repeat(position, rows.num_rows))
        result = {self.source: frame_through_file(spark, rows, row_schema(payload), folder)}
        for name in self.transforms:
            result[name] = planner.select(name, result, self.plan)
        frame = result[self.transforms[-1]]
        if self.transforms[-1] in planner.retractions.marked:
            frame = without_marked(frame)
        return frame.drop(*HIDDEN)

"""Computes nodes in the driver, where Catalyst evaluates SQL over local rows without a Spark job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from headrace.connectors.lazy_session import create_frame
from headrace.connectors.local_relation import collect_local_rows, compute_by_job, compute_locally
from headrace.jobs.planning.column_checks import has_types
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.errors import DataError
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class LocalNodes:
    """The nodes of one pipeline that need no Spark job.

    `texts` are the statements of transforms (`PipelinePlanner.texts`), `schemas` the payloads of nodes.
    """

    def __init__(
        self,
        model: PipelineModel,
        spark: SparkSession,
        texts: Mapping[str, str],
        schemas: Mapping[str, pa.Schema],
    ) -> None:
        self._model = model
        self._spark = spark
        self._texts = texts
        self._schemas = schemas
        self._needs_jobs: set[str] = set()
        """The nodes that Spark did not compute in the driver from local rows: joins, functions in Python …"""

    def compute(
        self,
        views: Mapping[str, DataFrame],
        readings: Mapping[str, SourceBatch],
        nodes: Collection[str],
        known: Mapping[str, pa.Table],
    ) -> tuple[dict[str, DataFrame], dict[str, pa.Table]]:
        """Compute nodes in the driver if they need no Spark job.

        Return their frames, and their rows as Arrow where they have the types of the payload. `known` are
        rows that need not be computed. Raise the errors of the rows.
        """
        frames: dict[str, DataFrame] = {}
        tables: dict[str, pa.Table] = {}
        for name in nodes:
            sources = graph.upstream_sources(self._model, name)
            if not all(readings[source].is_local for source in sources):
                continue
            if name in known:
                tables[name] = known[name]
                frames[name] = views[name] if name in readings else self._create_frame(name, known[name])
                continue
            try:
                frame = None if name in self._needs_jobs else self.compute_node(name, views[name])
                table = collect_local_rows(frame) if frame is not None else None
            except Exception as error:
                raise as_headrace_error(error, node=name, texts=self._texts) from error
            if frame is None:
                self._needs_jobs.add(name)
                continue
            frames[name] = frame
            if table is not None and has_types(table, self._schemas[name]):
                tables[name] = table
        return frames, tables

    def _create_frame(self, name: str, rows: pa.Table) -> DataFrame:
        # Spark makes no frame of a table without batches.
        return create_frame(self._spark, rows if rows.num_rows else [], self._schemas[name])

    def compute_node(self, name: str, view: DataFrame) -> DataFrame | None:
        """Return the rows of a node in the driver, or None if they need a Spark job."""
        try:
            return compute_locally(view)
        except Exception as error:
            if not isinstance(as_headrace_error(error, node=name, texts=self._texts), DataError):
                raise
            return compute_by_job(view)

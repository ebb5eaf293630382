"""Columns of a pipeline's nodes and where they come from, for Dagster's pages. Read from the file, without Spark.

What cannot be told from the file alone (a table whose columns it does not list) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from headrace.jobs.sources.pipeline_source import create_pipeline_sources, declared_columns
from headrace.orchestration.pipelines import Physical, Pipeline
from headrace.pipeline.lineage.columns import lineage
from headrace.pipeline.model import graph


class ColumnBook:
    """Columns and their origins for every node of one pipeline that they can be told for."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._model = pipeline.file.model
        self._nodes = lineage(self._model, declared_columns(create_pipeline_sources(self._model.sources, pipeline.settings())))

    def schema(self, name: str) -> dg.TableSchema | None:
        """The columns of a node for people; a sink has those of what it reads. None where they are not known."""
        found = self._nodes[name]
        if found.unknown:
            return None
        key = graph.key_of(self._model, name)
        return dg.TableSchema(
            columns=[
                dg.TableColumn(column, kind, constraints=dg.TableColumnConstraints(nullable=column not in key, other=[]))
                for column, kind in found.types.items()
            ]
        )

    def lineage(self, sink: str, sources: Mapping[str, tuple[Physical, ...]]) -> dg.TableColumnLineage | None:
        """The source columns behind each column of a sink, at the sources' physical keys. None where they are not known."""
        found = self._nodes[sink]
        if found.unknown:
            return None
        deps = {
            column: [
                dg.TableColumnDep(asset_key=physical.key, column_name=origin.column)
                for origin in derived.origins
                for physical in sources[origin.node]
            ]
            for column, derived in found.columns.items()
        }
        return dg.TableColumnLineage(deps_by_column={column: known for column, known in deps.items() if known})

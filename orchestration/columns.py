"""Columns of a pipeline's nodes and their origins, for the Dagster UI. Read from the file, without Spark.

Columns that the file alone does not show (a table whose columns it does not list) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from headrace.jobs.sources.declared_columns import declared_columns
from headrace.jobs.sources.pipeline_source import create_pipeline_sources
from headrace.orchestration.pipelines import PhysicalAsset, Pipeline
from headrace.pipeline.lineage.columns import lineage
from headrace.pipeline.model import graph


class ColumnCatalog:
    """The columns of a pipeline's nodes, and their origins, where the file shows them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._model = pipeline.file.model
        self._nodes = lineage(
            self._model, declared_columns(create_pipeline_sources(self._model.sources, pipeline.settings()))
        )

    def schema(self, name: str) -> dg.TableSchema | None:
        """Return the columns of a node, None if they are unknown. A sink has the columns of its input."""
        node_columns = self._nodes[name]
        if node_columns.unknown:
            return None
        key = graph.key_of(self._model, name)
        return dg.TableSchema(
            columns=[
                dg.TableColumn(
                    column,
                    type_name,
                    constraints=dg.TableColumnConstraints(nullable=column not in key, other=[]),
                )
                for column, type_name in node_columns.types.items()
            ]
        )

    def lineage(
        self, sink: str, sources: Mapping[str, tuple[PhysicalAsset, ...]]
    ) -> dg.TableColumnLineage | None:
        """Return the source columns of each column of a sink, at the sources' asset keys. None if unknown."""
        node_columns = self._nodes[sink]
        if node_columns.unknown:
            return None
        deps = {
            column: [
                dg.TableColumnDep(asset_key=physical.key, column_name=origin.column)
                for origin in derived.origins
                for physical in sources[origin.node]
            ]
            for column, derived in node_columns.columns.items()
        }
        return dg.TableColumnLineage(
            deps_by_column={column: known for column, known in deps.items() if known}
        )

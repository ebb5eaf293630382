"""`dg scaffold defs headrace.orchestration.PipelineComponent NAME`: a component and its first pipeline."""

from __future__ import annotations

from typing import Any

import dagster as dg

_PIPELINE = """\
# A first pipeline: replace the table of ClickHouse and the one of Postgres with your own.
# Check it with: headrace validate {name}
version: 1
sources:
  orders: {{type: clickhouse, table_name: shop.orders, primary_key: id}}
sinks:
  orders_pg: {{type: postgres, from: orders, table: orders}}
"""


class PipelineScaffolder(dg.Scaffolder):
    """Writes defs.yaml, and a pipeline file that it names."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the files. A pipeline file that exists is kept."""
        folder = request.target_path.parent if request.append else request.target_path
        path = folder / "orders.yaml"
        if not path.exists():
            path.write_text(_PIPELINE.format(name=path.name), encoding="utf-8")
        dg.scaffold_component(request, {"path": path.name})

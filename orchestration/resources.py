"""Dagster resources. Importing this module must stay cheap, because definitions import it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from headrace.orchestration.spark import PipelineSparkResource

SPARK = "headrace_spark"


@dg.resource(
    config_schema={
        "spark_config": dg.Field(
            dg.Permissive(), default_value={}, description="Spark configuration that overrides the settings."
        )
    },
    description="The run's Spark session (dagster-pyspark's PySparkResource). It starts on first use and"
    " stops with the run.",
)
def spark_resource(context: dg.InitResourceContext) -> Iterator[PipelineSparkResource]:
    """Yield the Spark resource.

    A function, because its class imports Spark: 0.7 s that only runs should pay.
    """
    from headrace.orchestration.spark import PipelineSparkResource

    spark = PipelineSparkResource(spark_config=context.resource_config["spark_config"])
    try:
        yield spark
    finally:
        spark.teardown_after_execution(context)

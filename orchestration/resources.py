"""Resources of this room, as light as definitions have to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from headrace.orchestration.spark import LaneSpark

SPARK = "headrace_spark"


@dg.resource(
    config_schema={
        "spark_config": dg.Field(dg.Permissive(), default_value={}, description="Spark's own keys, over those of the settings.")
    },
    description="The run's Spark session on dagster-pyspark's PySparkResource: started when first asked for, stopped with the run.",
)
def spark_resource(context: dg.InitResourceContext) -> Iterator[LaneSpark]:
    """A function and not a class, because dagster-pyspark imports Spark: 0.7 s that only runs should pay."""
    from headrace.orchestration.spark import LaneSpark

    spark = LaneSpark(spark_config=context.resource_config["spark_config"])
    try:
        yield spark
    finally:
        spark.teardown_after_execution(context)

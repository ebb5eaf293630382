"""How tests start Spark: for a short life, in which the JVM has no second compiler, or for a whole session.

`make test` also switches off what pays only for large data: adaptive
execution, generated code, and more than one partition after a shuffle. The demo, and the tests of `run` and
`init` in tests/system, use the product's own session, and so does `make test-faults`.
"""

import json

from headrace.pipeline.config.sections import SparkSettings
from helpers.depth import FULL

_SMALL_DATA = {
    "spark.default.parallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}

SHORT_LIVED_SPARK = SparkSettings(
    master="local[2]",
    driver_memory="1g",
    jvm_options="-XX:TieredStopAtLevel=1",
    conf={} if FULL else _SMALL_DATA,
)

SESSION_SPARK = SHORT_LIVED_SPARK.model_copy(update={"jvm_options": "-XX:+UseSerialGC"})
"""Of the fixture `spark`. After some minutes the second compiler saves a fifth of the processor time."""

PRODUCT_SPARK_ENVIRONMENT = {
    "HEADRACE__SPARK__MASTER": SHORT_LIVED_SPARK.master,
    "HEADRACE__SPARK__DRIVER_MEMORY": SHORT_LIVED_SPARK.driver_memory,
    "HEADRACE__SPARK__JVM_OPTIONS": SHORT_LIVED_SPARK.jvm_options,
}
"""Of a process with the product's session."""

SHORT_LIVED_SPARK_ENVIRONMENT = PRODUCT_SPARK_ENVIRONMENT | {
    "HEADRACE__SPARK__CONF": json.dumps(SHORT_LIVED_SPARK.conf)
}

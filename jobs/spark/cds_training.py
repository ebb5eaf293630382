"""The training run of the class-data archive: `python -m headrace.jobs.spark.cds_training FILE`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.jobs.spark.session import start_session, stop_session
from headrace.pipeline.config.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DUMP_TIMEOUT = 120.0


def main() -> None:
    """Run what most pipelines make Spark load, then end in order: at its end Java writes the archive."""
    target = Path(sys.argv[1])
    home = target.parent
    options = f"-XX:ArchiveClassesAtExit={target}"
    settings = Settings.model_validate(
        {"home": home, "spark": {"master": "local[2]", "driver_memory": "1g", "jvm_options": options}}
    )
    spark = start_session(settings, ["delta"])
    _rows(spark)
    _delta(spark, home / "table")
    _kafka(spark)
    stop_session(spark, patience=_DUMP_TIMEOUT)


def _rows(spark: SparkSession) -> None:
    """Arrow in, SQL, Arrow out, and Python workers."""
    import pyarrow as pa

    table = pa.table(
        {"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"], "doc": ['{"a": 1}', '{"a": 2}']}
    )
    frame = spark.createDataFrame(table)
    frame.createOrReplaceTempView("trained")
    picked = spark.sql(
        "SELECT id, upper(name) AS name, from_json(doc, 'a INT').a AS a, current_timestamp() AS at FROM"
        " trained WHERE id > 0"
        " UNION ALL SELECT id, name, NULL, NULL FROM trained"
    )
    picked.repartition(2, "id").mapInArrow(lambda batches: batches, picked.schema).toArrow()
    picked.groupBy("id").count().orderBy("id").toArrow()


def _delta(spark: SparkSession, path: Path) -> None:
    """Create a keyed table, merge into it, and read it."""
    from delta.tables import DeltaTable

    builder: Any = (
        DeltaTable.createIfNotExists(spark)
        .location(str(path))
        .property("delta.enableDeletionVectors", "true")
    )
    builder.addColumn("id", "bigint").addColumn("name", "string").execute()
    table: Any = DeltaTable.forPath(spark, str(path))
    for rows in (3, 5):
        source = spark.range(rows).selectExpr("id", "'x' AS name").alias("s")
        merge = table.alias("t").merge(source, "t.id = s.id").whenMatchedUpdateAll().whenNotMatchedInsertAll()
        merge.execute()
    spark.range(3).selectExpr("id", "'x' AS name").write.format("delta").mode("append").save(str(path))
    spark.read.format("delta").load(str(path)).toArrow()


def _kafka(spark: SparkSession) -> None:
    """Load the client's classes. There is no broker to connect to."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "none", "fetchOffset.numRetries": "0"}
    short = {"kafka.default.api.timeout.ms": "500", "kafka.request.timeout.ms": "400"}
    with contextlib.suppress(Exception):
        spark.read.format("kafka").options(**options, **short).load().toArrow()
    jvm: Any = spark._jvm  # noqa: SLF001
    names = jvm.java.util.Properties()
    for key, value in {"bootstrap.servers": "127.0.0.1:9", "group.id": "none"}.items():
        names.setProperty(key, value)
    for side in ("key", "value"):
        names.setProperty(
            f"{side}.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        )
    with contextlib.suppress(Exception):
        jvm.org.apache.kafka.clients.consumer.KafkaConsumer(names).close()


if __name__ == "__main__":
    main()

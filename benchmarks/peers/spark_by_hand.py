"""Spark by hand: what a good script does, with Arrow and COPY, and structured streaming for Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.peers.bare import CREATE_KEYED, CREATE_LATEST, UPSERT
from benchmarks.peers.task import BATCH, PeerTask, print_step, read_batches, read_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPLITS = 8
ROW_TYPES = "id bigint, at timestamp, name string, amount double"
MESSAGE_TYPES = "id bigint, name string, amount double"


def start_session(task: PeerTask) -> SparkSession:
    """Return a session with the connectors of Kafka and Delta."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(task.jars))
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
        .config("spark.driver.extraJavaOptions", "-XX:+UseParallelGC")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )


def execute(task: PeerTask, *statements: str) -> None:
    """Execute statements in one transaction of Postgres."""
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(task.postgres_uri) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def read_table(spark: SparkSession, task: PeerTask) -> DataFrame:
    """Return the ClickHouse table, read by a query per split."""
    size = -(-task.rows // SPLITS)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for split in batch.column(0).to_pylist():
                yield from read_batches(task, split * size, min((split + 1) * size, task.rows))

    return spark.range(0, SPLITS, 1, SPLITS).mapInArrow(read, ROW_TYPES)


def copy_rows(task: PeerTask, frame: DataFrame, table: str) -> None:
    """Copy the rows of a frame into a table, a transaction per Spark partition."""

    def copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from adbc_driver_postgresql import dbapi

        count = 0
        with dbapi.connect(task.postgres_uri) as connection, connection.cursor() as cursor:
            for batch in batches:
                count += batch.num_rows
                cursor.adbc_ingest(table, batch, mode="append")
            connection.commit()
        yield pa.RecordBatch.from_pydict({"n": [count]})

    frame.mapInArrow(copy, "n bigint").collect()


def stream(spark: SparkSession, task: PeerTask, write: Any) -> None:
    """Pass each batch of decoded messages to `write`, until the topic's end."""
    from pyspark.sql import functions as f

    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", task.brokers)
        .option("subscribe", task.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH)
        .load()
        .select(f.from_json(f.col("value").cast("string"), MESSAGE_TYPES).alias("m"), "offset")
        .select("m.*", "offset")
    )
    query = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{task.state}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def upsert_batch(task: PeerTask, frame: DataFrame) -> None:
    """Merge one batch. A batch that is written again does no harm, because a merge of the same rows is the same."""
    execute(task, f"CREATE UNLOGGED TABLE IF NOT EXISTS {task.target}_stage (n BIGINT, LIKE {task.target})")
    execute(task, f"TRUNCATE {task.target}_stage")
    copy_rows(
        task,
        frame.withColumnRenamed("offset", "n").select("n", "id", "name", "amount"),
        f"{task.target}_stage",
    )
    execute(task, UPSERT.format(target=task.target).replace("FROM stage", f"FROM {task.target}_stage"))


def main() -> None:
    """Run the scenario."""
    task = read_task()
    spark = start_session(task)
    print_step("ready")
    if task.scenario == "A":
        execute(task, CREATE_KEYED.format(task.target))
        copy_rows(task, read_table(spark, task), task.target)
    elif task.scenario == "B":
        execute(task, CREATE_LATEST.format(task.target))
        stream(spark, task, lambda frame, _: upsert_batch(task, frame))
    elif task.scenario == "C":
        stream(
            spark,
            task,
            lambda frame, _: frame.drop("offset").write.format("delta").mode("append").save(task.lake),
        )
    else:
        read_table(spark, task).write.format("delta").mode("append").save(task.lake)
    print_step("end")
    spark.stop()


if __name__ == "__main__":
    main()

"""The bare way: Arrow from the driver, COPY or delta-rs, no more."""

from __future__ import annotations

from multiprocessing import get_context

import pyarrow as pa
from adbc_driver_postgresql import dbapi
from deltalake import write_deltalake

from benchmarks.peers.task import (
    ROW,
    PeerTask,
    parse_messages,
    print_step,
    read_batches,
    read_messages,
    read_task,
)

CREATE_KEYED = (
    "CREATE TABLE IF NOT EXISTS {} (id BIGINT PRIMARY KEY, at TIMESTAMPTZ, name TEXT, amount FLOAT8)"
)
CREATE_LATEST = "CREATE TABLE IF NOT EXISTS {} (id BIGINT PRIMARY KEY, name TEXT, amount FLOAT8)"
UPSERT = (
    "INSERT INTO {target} SELECT DISTINCT ON (id) id, name, amount FROM stage ORDER BY id, n DESC"
    " ON CONFLICT (id) DO UPDATE SET name = excluded.name, amount = excluded.amount"
)


def copy_range(task: PeerTask, first: int, last: int) -> None:
    """Copy the rows with ids from `first` up to `last`, exclusive, in one transaction."""
    with dbapi.connect(task.postgres_uri) as connection, connection.cursor() as cursor:
        for batch in read_batches(task, first, last):
            cursor.adbc_ingest(task.target, batch, mode="append")
        connection.commit()


def create_history_table(task: PeerTask) -> None:
    """Create the keyed target of a history if it is missing."""
    with dbapi.connect(task.postgres_uri) as connection, connection.cursor() as cursor:
        cursor.execute(CREATE_KEYED.format(task.target))
        connection.commit()


def copy_history(task: PeerTask) -> None:
    """A: two processes, each with half of the ids."""
    create_history_table(task)
    half = task.rows // 2
    with get_context("spawn").Pool(2) as pool:
        pool.starmap(copy_range, [(task, 0, half), (task, half, task.rows)])


def create_stage(connection: dbapi.Connection, target: str) -> None:
    """Create the keyed target if it is missing, and a temporary table for its next messages."""
    with connection.cursor() as cursor:
        cursor.execute(CREATE_LATEST.format(target))
        cursor.execute(f"CREATE TEMP TABLE stage (n BIGINT, LIKE {target})")
    connection.commit()


def merge_messages(connection: dbapi.Connection, target: str, values: list[bytes]) -> None:
    """Copy messages into the temporary table and merge the newest of each key, in one transaction."""
    table = parse_messages(values)
    table = table.add_column(0, "n", pa.array(range(len(table)), pa.int64()))
    with connection.cursor() as cursor:
        cursor.adbc_ingest("stage", table, mode="append", temporary=True)
        cursor.execute(UPSERT.format(target=target))
        cursor.execute("TRUNCATE stage")
    connection.commit()


def upsert_messages(task: PeerTask) -> None:
    """B: merge a batch, then commit the offsets."""
    with dbapi.connect(task.postgres_uri) as connection:
        create_stage(connection, task.target)
        for values, consumer in read_messages(task, task.target):
            merge_messages(connection, task.target, values)
            consumer.commit(asynchronous=False)


def append_messages(task: PeerTask) -> None:
    """C: a commit of the table per batch, then the offsets."""
    for values, consumer in read_messages(task, task.target):
        write_deltalake(task.lake, parse_messages(values), mode="append")
        consumer.commit(asynchronous=False)


def copy_to_lake(task: PeerTask) -> None:
    """D: one stream of batches into one commit."""
    write_deltalake(task.lake, pa.RecordBatchReader.from_batches(ROW, read_batches(task)), mode="append")


WORK = {"A": copy_history, "B": upsert_messages, "C": append_messages, "D": copy_to_lake}

if __name__ == "__main__":
    print_step("ready")
    task_ = read_task()
    WORK[task_.scenario](task_)
    print_step("end")

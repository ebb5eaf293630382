"""A Postgres table, parquet and csv files into Delta and Postgres, compared with bare Arrow. Whole runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi
from deltalake import DeltaTable, write_deltalake
from psycopg import sql
from pyarrow import csv

from benchmarks.kit import ARROW_TRANSFORM, TRANSFORM, BenchmarkRunner, format_rate, random_name, read_clock
from benchmarks.peers.bare import CREATE_KEYED

_PIPELINE = """
name: {name}
sources:
  src: {source}
{transforms}
sinks:
  out: {sink}
epoch: {{history_rows: 1000000}}
"""
_FILES = 8


def tables(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Measure whole runs: Postgres to keyed Delta, as it is and after SQL; files and Delta to Postgres."""
    name = _fill_table(runner, rows)
    bare = _seconds(lambda: _copy_table(runner, name))
    _add(runner, f"bare: COPY of a Postgres table to Delta, {rows:,} rows", rows, bare, bare)
    source = f"{{type: postgres, table: {name}, primary_key: id}}"
    for what, transforms, last in (
        ("", "", "src"),
        (", after SQL that tasks compute", ARROW_TRANSFORM, "shout"),
        (", after SQL of Spark", TRANSFORM, "shout"),
    ):
        lake = runner.folder / f"lake_{secrets.token_hex(4)}"
        sink = f"{{type: delta, from: {last}, path: {lake}}}"
        seconds = _run(runner, source, transforms, sink)
        assert sum(DeltaTable(lake).get_add_actions()["num_records"].to_pylist()) == rows
        _add(runner, f"headrace, Postgres to keyed Delta{what}", rows, seconds, bare)
    _measure_files(runner, rows, name)
    return []


def _measure_files(runner: BenchmarkRunner, rows: int, table: str) -> None:
    folder, bare_target = runner.folder / "parquet", random_name()
    _write_files(runner, folder, table)
    bare = _seconds(lambda: _copy_files(runner, folder, bare_target))
    assert runner.count_rows(bare_target) == rows
    _add(runner, f"bare: parquet files to Postgres by COPY, {rows:,} rows", rows, bare, bare)
    lake = runner.folder / "original_lake"
    for path in sorted(folder.iterdir()):
        write_deltalake(lake, pq.read_table(path), mode="append")
    for what, source in (
        ("parquet files", f"{{type: file, path: {folder}/*.parquet, format: parquet, mode: bounded}}"),
        ("a Delta table of these files", f"{{type: delta, path: {lake}}}"),
    ):
        target = random_name()
        seconds = _run(runner, source, "", f"{{type: postgres, from: src, table: {target}}}")
        assert runner.count_rows(target) == rows
        _add(runner, f"headrace, {what} to Postgres", rows, seconds, bare)
    _measure_csv(runner, rows, folder)


def _measure_csv(runner: BenchmarkRunner, rows: int, folder: Path) -> None:
    """Measure csv files, as a whole and in partitions. Headrace reads them twice: it counts their rows first."""
    texts, bare_target = runner.folder / "csv", random_name()
    texts.mkdir()
    for path in sorted(folder.iterdir()):
        csv.write_csv(pq.read_table(path), texts / f"{path.stem}.csv")
    bare = _seconds(lambda: _copy_csv(runner, texts, bare_target))
    assert runner.count_rows(bare_target) == rows
    _add(runner, f"bare: csv files to Postgres by COPY, {rows:,} rows", rows, bare, bare)
    columns = "schema: {id: int64, at: timestamp, name: string, amount: float64}"
    source = f"{{type: file, path: {texts}, format: csv, mode: bounded, {columns}}}"
    end = (date(2024, 1, 1) + timedelta(days=rows // 86_400)).replace(day=1) + timedelta(days=32)
    partitions = f"partitions: {{column: at, every: month, start: 2024-01, end: {end:%Y-%m}}}"
    for what, more in (("csv files", ""), ("csv files in partitions of a month", partitions)):
        target = random_name()
        seconds = _run(runner, source, more, f"{{type: postgres, from: src, table: {target}}}")
        assert runner.count_rows(target) == rows
        _add(runner, f"headrace, {what} to Postgres", rows, seconds, bare)


def _run(runner: BenchmarkRunner, source: str, transforms: str, sink: str) -> float:
    text = _PIPELINE.format(name=random_name(), source=source, transforms=transforms, sink=sink)
    settings = {"postgres_source": runner.postgres_settings()}
    return _seconds(lambda: runner.run_pipeline(text, settings))


def _add(runner: BenchmarkRunner, what: str, rows: int, seconds: float, bare: float) -> None:
    runner.add_figure("tables", what, format_rate(rows, seconds), f"{bare / seconds:.2f}")


def _seconds(work: Callable[[], object]) -> float:
    began = read_clock()
    work()
    return read_clock() - began


def _uri(runner: BenchmarkRunner) -> str:
    return runner.create_task("A", 0).postgres_uri


def _fill_table(runner: BenchmarkRunner, rows: int) -> str:
    name = random_name()
    query = (
        "INSERT INTO {} SELECT n, timestamptz '2024-01-01' + n * interval '1 second',"
        " 'customer-' || n % 100003, n / 7.0 FROM generate_series(0, {}) n"
    )
    with psycopg.connect(runner.services.postgres.conninfo()) as connection:
        connection.execute(CREATE_KEYED.format(name).encode())
        connection.execute(sql.SQL(query).format(sql.Identifier(name), sql.Literal(rows - 1)))
    return name


def _copy_table(runner: BenchmarkRunner, table: str) -> None:
    with dbapi.connect(_uri(runner)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, at, name, amount FROM {table}")
        write_deltalake(runner.folder / f"lake_{secrets.token_hex(4)}", cursor.fetch_record_batch())


def _write_files(runner: BenchmarkRunner, folder: Path, table: str) -> None:
    folder.mkdir()
    with dbapi.connect(_uri(runner)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, at, name, amount FROM {table}")
        rows = cursor.fetch_arrow_table()
    step = -(-rows.num_rows // _FILES)
    for at in range(_FILES):
        pq.write_table(rows.slice(at * step, step), folder / f"{at}.parquet", row_group_size=250_000)


def _copy_csv(runner: BenchmarkRunner, folder: Path, target: str) -> None:
    kinds = {"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "name": pa.string(), "amount": pa.float64()}
    with dbapi.connect(_uri(runner)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {target} (id BIGINT, at TIMESTAMPTZ, name TEXT, amount FLOAT8)")
        for path in sorted(folder.iterdir()):
            with csv.open_csv(path, convert_options=csv.ConvertOptions(column_types=kinds)) as reader:
                cursor.adbc_ingest(target, reader, mode="append")
        connection.commit()


def _copy_files(runner: BenchmarkRunner, folder: Path, target: str) -> None:
    with dbapi.connect(_uri(runner)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {target} (id BIGINT, at TIMESTAMPTZ, name TEXT, amount FLOAT8)")
        for path in sorted(folder.iterdir()):
            reader = pq.ParquetFile(path)
            batches = pa.RecordBatchReader.from_batches(reader.schema_arrow, reader.iter_batches(100_000))
            cursor.adbc_ingest(target, batches, mode="append")
        connection.commit()

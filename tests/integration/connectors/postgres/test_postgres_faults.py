"""Real processes that die or pause at a critical step."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import ROOT
from helpers.depth import FULL
from helpers.postgres_epochs import SCHEMA, STAGED, Bench, eventually, plan
from helpers.postgres_writer import EACH, write_next
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import functions as f

from headrace import services as local
from headrace.connectors.frame import EpochFrame
from headrace.connectors.postgres import staging
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.sink import PostgresSink
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.errors import FencedError, TransientError
from headrace.pipeline.protocol.epochs import WriteCounts
from headrace.services.base import LocalService


@pytest.fixture
def fragile(fresh_home: Path, spark: Any) -> Iterator[tuple[LocalService, Bench]]:
    """A server that the test may kill, and a bench on it."""
    server = local.up(["postgres"], home=fresh_home).postgres
    parameters = {name: str(value) for name, value in conninfo_to_dict(server.conninfo()).items()}
    with Bench(parameters, spark).cleaned() as bench:
        yield server, bench


@contextmanager
def writer(bench: Bench, generation: int, progress: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that writes epochs as fast as it can."""
    parameters = {
        "parameters": bench.parameters,
        "schema": bench.schema,
        "pipeline": bench.pipeline,
        "generation": generation,
        "progress": str(progress),
    }
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/helpers/postgres_writer.py"), json.dumps(parameters)],
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_progress(progress: Path) -> int:
    return int(progress.read_text() or 0) if progress.exists() else 0


def check_books(bench: Bench, generation: int) -> int:
    """Every epoch up to the record's is there exactly once; returns its number."""
    sink = bench.joined(SCHEMA, generation, key=())
    result = sink.read_row_count()
    assert result is not None
    record, rows = result
    assert record is not None
    assert rows == record.epoch * EACH == record.totals.rows
    assert bench.run("SELECT count(*) FROM (SELECT id FROM {t} GROUP BY id HAVING count(*) > 1) s") == [(0,)]
    return record.epoch


@pytest.mark.sampled
def test_a_driver_killed_at_any_moment_leaves_whole_epochs(bench: Bench, tmp_path: Path) -> None:
    chance = random.Random(7)
    epoch = 0
    for generation in range(1, 7 if FULL else 4):
        progress = tmp_path / str(generation)
        wait_for = epoch + chance.randrange(1, 30)
        with writer(bench, generation, progress) as process:
            eventually(lambda progress=progress, wait_for=wait_for: read_progress(progress) >= wait_for)
            os.killpg(process.pid, signal.SIGKILL)
        epoch = check_books(bench, 100 * generation)
        assert epoch >= wait_for
        bench.run(
            "UPDATE headrace.records SET generation = %s WHERE pipeline = %s", generation, bench.pipeline
        )


def test_a_driver_that_slept_through_a_takeover_writes_nothing_more(bench: Bench, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    with writer(bench, 1, progress) as process:
        eventually(lambda: read_progress(progress) >= 3)
        os.killpg(process.pid, signal.SIGSTOP)
        new = bench.joined(SCHEMA, 2, key=())
        taken = write_next(new)
        os.killpg(process.pid, signal.SIGCONT)
        assert process.wait(timeout=300) != 0
    assert check_books(bench, 2) == taken


# Daily samples: test_a_server_killed_between_staging_and_merge_is_staged_again, and
# test_a_connection_lost_at_the_commit_does_not_double.
@pytest.mark.slow
def test_a_server_killed_in_a_transaction_is_tried_again(
    fragile: tuple[LocalService, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bench = fragile
    sink = bench.joined(key=())
    advance = RecordStore.advance

    def advance_and_kill(self: RecordStore, *arguments: Any) -> None:
        advance(self, *arguments)
        server.kill()

    frame = bench.frame([("i", 1, "a")], key=())
    monkeypatch.setattr(RecordStore, "advance", advance_and_kill)
    with pytest.raises(TransientError):
        sink.write(plan(1), frame)
    monkeypatch.undo()
    server.start()
    assert sink.write(plan(1), frame) == WriteCounts(1, 1, 0, 0)
    assert bench.rows() == [(1, "a")]


@pytest.mark.parametrize("estimate", [0, STAGED], ids=["driver", "staged"])
def test_a_connection_lost_at_the_commit_does_not_double(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, estimate: int
) -> None:
    """The server has committed, the answer never came: trying again finds the epoch held."""
    sink = bench.joined(key=())
    frame = bench.frame([("i", 1, "a")], key=(), estimate=estimate)
    lose_answer(sink, monkeypatch, of_write=estimate == 0)
    with pytest.raises(TransientError):
        sink.write(plan(1), frame)
    assert bench.rows() == [(1, "a")]
    assert sink.write(plan(1), frame) == WriteCounts(1, 1, 0, 0)
    assert bench.rows() == [(1, "a")]


def lose_answer(sink: PostgresSink, monkeypatch: pytest.MonkeyPatch, *, of_write: bool) -> None:
    """Makes the commit of the next merge happen and look as if it had not."""
    import adbc_driver_manager
    import psycopg

    if of_write:
        with sink._connections.loader.transaction():
            pass
        connection = sink._connections.loader._connection

        class Lossy:
            def __getattr__(self, name: str) -> Any:
                return getattr(connection, name)

            def commit(self) -> None:
                connection.commit()
                msg = "server closed the connection unexpectedly"
                raise adbc_driver_manager.OperationalError(
                    msg, status_code=adbc_driver_manager.AdbcStatusCode.IO
                )

        sink._connections.loader._connection = Lossy()
        return
    advance = sink._store.advance

    def advancing(session: Any, *args: Any) -> None:
        advance(session, *args)
        monkeypatch.setattr(psycopg.Connection, "commit", lossy)

    def lossy(self: psycopg.Connection) -> None:
        monkeypatch.undo()
        self.commit()
        self.close()
        msg = "server closed the connection unexpectedly"
        raise psycopg.OperationalError(msg)

    monkeypatch.setattr(sink._store, "advance", advancing)


def test_a_server_killed_between_staging_and_merge_is_staged_again(
    fragile: tuple[LocalService, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bench = fragile
    sink = bench.joined(key=())
    stage = staging.copy_to_staging
    staged: list[list[staging.StagedAttempt]] = []

    def crashing(*args: Any) -> list[staging.StagedAttempt]:
        staged.append(stage(*args))
        if len(staged) == 1:
            server.kill()
            server.start()
        return staged[-1]

    monkeypatch.setattr(staging, "copy_to_staging", crashing)
    counts = sink.write(plan(1), bench.frame([("i", at, "a") for at in range(1000)], key=(), estimate=STAGED))
    assert counts == WriteCounts(1000, 1000, 0, 0)
    assert [sum(one.rows for one in attempt) for attempt in staged] == [1000, 1000]
    assert len(bench.rows()) == 1000
    assert bench.run("SELECT count(*) FROM pg_tables WHERE tablename LIKE %s", "stage%") == [(0,)]


def test_rows_of_an_attempt_that_nobody_returned_are_not_merged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task committed its COPY and died before it could say so; another attempt did it again."""
    sink = bench.joined(key=())
    stage = staging.copy_to_staging

    def twice(rows: Any, task: staging.StagingCopyTask) -> list[staging.StagedAttempt]:
        ghost = rows.toArrow().to_batches()
        assert next(task(iter(ghost))).column("rows")[0].as_py() == 3
        return stage(rows, task)

    monkeypatch.setattr(staging, "copy_to_staging", twice)
    frame = bench.frame([("i", at, "a") for at in range(3)], key=(), estimate=STAGED)
    assert sink.write(plan(1), frame) == WriteCounts(3, 3, 0, 0)
    assert len(bench.rows()) == 3


def tried_again(write: Callable[[], WriteCounts]) -> WriteCounts:
    """As a lane does: what passes is tried again.

    Spark may hand out another worker that has died and that it has not noticed yet.
    """
    for attempt in range(5):
        try:
            return write()
        except Exception as error:
            if attempt == 4 or not as_headrace_error(error).retriable:
                raise
    raise AssertionError


# Daily samples: test_a_worker_killed_in_copy_leaves_nothing_of_its_split, and
# test_rows_of_an_attempt_that_nobody_returned_are_not_merged.
@pytest.mark.slow
def test_a_worker_killed_in_copy_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    flag = str(tmp_path / "killed")
    sink = bench.joined(key=())

    def killing(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if not os.path.exists(flag):
                open(flag, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

    plain = bench.frame([("i", at, "a") for at in range(2000)], key=())
    rows = plain.rows.repartition(2).mapInArrow(killing, plain.rows.schema)
    frame = EpochFrame(rows, SCHEMA, (), STAGED, bench.spark)
    with pytest.raises(Exception, match="Python worker exited"):
        sink.write(plan(1), frame)
    assert bench.rows() == []
    assert tried_again(lambda: sink.write(plan(1), frame)) == WriteCounts(2000, 2000, 0, 0)
    assert len(bench.rows()) == 2000


def test_a_zombie_that_wakes_between_staging_and_merge_is_fenced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = bench.joined(key=(), generation=1)
    stage = staging.copy_to_staging

    def overtaken(*args: Any) -> list[staging.StagedAttempt]:
        result = stage(*args)
        new = bench.joined(key=(), generation=2)
        new.write(plan(1), bench.frame([("i", 1, "new")], key=()))
        return result

    monkeypatch.setattr(staging, "copy_to_staging", overtaken)
    with pytest.raises(FencedError):
        old.write(plan(1), bench.frame([("i", 1, "old")], key=(), estimate=STAGED))
    assert bench.rows() == [(1, "new")]
    assert bench.run("SELECT count(*) FROM pg_tables WHERE tablename LIKE %s", "stage%") == [(0,)]


def test_an_unreachable_server_is_transient_and_a_wrong_database_is_not(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.connectors.postgres_client.session.CONNECT_SECONDS", 1.0)
    from headrace.pipeline.errors import TargetError

    for wrong, message in (
        ({"dbname": "nope"}, 'database "nope" does not exist'),
        ({"password": "hunter2"}, "password authentication failed"),
    ):
        with pytest.raises(TargetError, match=message) as refused:
            Bench(bench.parameters | wrong, None).sink().prepare(SCHEMA, 1)
        assert "hunter2" not in str(refused.value)
    gone = Bench(bench.parameters | {"host": str(tmp_path)}, None)
    with pytest.raises(TransientError, match="node 'out'"):
        gone.sink().prepare(SCHEMA, 1)


def test_a_wide_stage_is_merged_by_attempts(bench: Bench) -> None:
    """Several tasks, several attempts, one merge; Spark's own rows, not a local table."""
    sink = bench.joined()
    rows = bench.spark.range(0, 2_000, 1, 4).select(
        f.col("id"),
        f.concat(f.lit("v"), f.col("id")).alias("v"),
        f.lit("i").alias("_gs_op"),
        f.struct(
            f.lit(0).alias("source"),
            f.lit(0).alias("part"),
            f.col("id").alias("off"),
            f.lit(0).cast("bigint").alias("sub"),
        ).alias("_gs_pos"),
    )
    assert sink.write(plan(1), EpochFrame(rows, SCHEMA, ("id",), STAGED, bench.spark)) == WriteCounts(
        2_000, 2_000, 0, 0
    )
    assert sink.write(plan(2), EpochFrame(rows, SCHEMA, ("id",), None, bench.spark)) == WriteCounts(
        2_000, 0, 2_000, 0
    )
    assert len(bench.rows()) == 2_000

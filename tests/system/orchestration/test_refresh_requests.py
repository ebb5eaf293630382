"""Materializing a complete partition next to a run that owns the pipeline. The runs are fake, the ledger is real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from helpers.dagster_runs import FLIGHTS, LAKE, PARTITIONS, PG
from helpers.pipeline_world import until

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.run.events import Until
from headrace.orchestration.build import build_definitions
from headrace.orchestration.execution import run_pipeline
from headrace.orchestration.pipelines import read_pipeline
from headrace.orchestration.spark import PipelineSparkResource
from headrace.pipeline.errors import TransientError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts
from headrace.pipeline.protocol.ledger import Ledger, RefreshRequest, RefreshState, StopAction

JANUARY, FEBRUARY = "2013-01-01", "2013-02-01"
COUNTS = {"flights_pg": WriteCounts(10, 4, 3, 3), "lake": WriteCounts(10, None, None, None)}
HOLDER = {"launched_by": "dagster", "host": "here", "pid": 1}


class Owner:
    """A run that owns the pipeline `flights`, whose history is complete."""

    def __init__(self, path: Path) -> None:
        self.file = load_pipeline(path)
        self.ledger: Ledger = open_ledger(read_pipeline(path).settings())
        self.lease = self.ledger.acquire("flights", "main", HOLDER, 600)
        model = self.file.model
        position: Any = {"pins": [{}], "fence": None, "cursor": None, "history": positions.no_history()}
        for key in positions.windows_of(model):
            position = positions.advance_partition(model, model.sources["flights"], position, key, (1, 0, ""))
        self.ledger.begin(self.lease, lambda: {"flights": position})

    def read(self) -> RefreshRequest | None:
        return next(iter(self.ledger.pending_refreshes("flights")), None)

    def wait(self) -> RefreshRequest:
        return until(self.read, "the request", 60)

    def begin(self) -> RefreshRequest:
        request = self.wait()
        self.ledger.begin_refresh(self.lease, request.number, self._state().committed + 1)
        return request

    def execute(self) -> None:
        """Refresh the partitions: an epoch for the snapshot, one for each, then one of the stream."""
        request = self.begin()
        for window in (None, *request.partitions):
            self.write_epoch(Phase.HISTORY, window)
        self.ledger.end_refresh(self.lease, request.number, self._state().committed)
        self.write_epoch(Phase.LIVE, None)

    def write_epoch(self, phase: Phase, window: str | None) -> None:
        state = self._state()
        number = state.committed + 1
        plan = EpochPlan(number, phase, state.position, state.position, "h", datetime.now(UTC), window=window)
        self.ledger.plan(self.lease, plan, {})
        has_rows = window is not None or phase is Phase.LIVE
        self.ledger.commit(self.lease, number, COUNTS if has_rows else dict.fromkeys(COUNTS, WriteCounts()))

    def _state(self) -> Any:
        return self.ledger.state("flights")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.orchestration.partition_load._POLL_SECONDS", 0.02)


@pytest.fixture
def owner(written: Callable[..., Path]) -> Iterator[Owner]:
    result = Owner(written(FLIGHTS + PARTITIONS))
    yield result
    result.ledger.close()


@contextmanager
def meanwhile(work: Callable[[], Any]) -> Iterator[None]:
    """Do the work in a thread during the block. Raise its error at the end."""
    errors: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.fixture
def materialize(owner: Owner) -> Iterator[Callable[..., dg.ExecuteInProcessResult]]:
    with dg.DagsterInstance.ephemeral() as instance:

        def go(first: str, last: str = "", **tags: str) -> dg.ExecuteInProcessResult:
            job = build_definitions([Path(owner.file.path)]).resolve_implicit_global_asset_job_def()
            keys = {"start": first, "end": last or first}
            ranged = {f"dagster/asset_partition_range_{name}": key for name, key in keys.items()}
            return job.execute_in_process(instance=instance, tags=ranged | tags, raise_on_error=False)

        go.instance = instance  # type: ignore[attr-defined]
        yield go


def latest(materialize: Any, key: dg.AssetKey) -> Any:
    event = materialize.instance.get_latest_materialization_event(key)
    return event.asset_materialization if event else None


def test_refresh_is_requested_from_the_run_that_owns_the_pipeline(
    owner: Owner, materialize: Any, stand_in: Any
) -> None:
    with meanwhile(owner.execute):
        result = materialize(JANUARY, FEBRUARY)
    assert result.success
    assert stand_in.calls == [], "this process wrote nothing"
    request = owner.ledger.refresh_request("flights", 1)
    assert request
    assert (request.partitions, request.by) == (
        (JANUARY, FEBRUARY),
        f"Dagster run {result.run_id[:8]}",
    )
    for key, inserted in ((PG, 8), (LAKE, None)):
        assert sorted(materialize.instance.get_materialized_partitions(key)) == [JANUARY, FEBRUARY]
        metadata = latest(materialize, key).metadata
        assert (metadata["rows_written"].value, metadata["epochs"].value) == (20, 3)
        assert (metadata["inserted"].value if "inserted" in metadata else None) == inserted
        assert metadata["last epoch"].value == 3, "without the epochs of the stream that followed"
    assert latest(materialize, PG).metadata["dagster/partition_row_count"].value == 1
    assert stand_in.audits == [["flights_pg", "lake"]]


def test_refresh_that_the_owner_refuses_fails_the_run_with_the_reason(
    owner: Owner, materialize: Any, stand_in: Any
) -> None:
    def refuse() -> None:
        number = owner.wait().number
        owner.ledger.refuse_refresh(owner.lease, number, "the topic is compacted", "Start over.")

    with meanwhile(refuse):
        result = materialize(JANUARY)
    assert not result.success
    failure = result.failure_data_for_node("flights_write").user_failure_data
    assert "the refresh of 2013-01-01 was refused: the topic is compacted" in failure.description
    assert failure.metadata["what to do"].value == "Start over."
    assert stand_in.calls == []


def test_refresh_whose_owner_ends_is_executed_by_the_run_that_requested_it(
    owner: Owner, materialize: Any, stand_in: Any
) -> None:
    """The row counts are those of the epochs of the request, not those of the run that ended it."""

    def end() -> None:
        owner.wait()
        owner.ledger.release(owner.lease)

    def execute(**_: Any) -> None:
        owner.lease = owner.ledger.acquire("flights", "main", HOLDER, 600)
        owner.execute()
        owner.ledger.release(owner.lease)

    stand_in.during = execute
    with meanwhile(end):
        assert materialize(JANUARY).success
    (requests,) = stand_in.calls
    assert (requests["partitions"], requests["refresh"], requests["until"]) == (
        [JANUARY],
        False,
        Until.HISTORY,
    )
    assert latest(materialize, PG).metadata["rows_written"].value == COUNTS["flights_pg"].rows


@pytest.mark.parametrize("tags", [{"headrace/refresh": "false"}, {}])
def test_refresh_that_is_not_possible_leaves_nothing_to_wait_for(
    owner: Owner, materialize: Any, stand_in: Any, written: Callable[..., Path], tags: dict[str, str]
) -> None:
    """The partition is complete, and the stream would keep its lease for days."""
    if not tags:
        written(FLIGHTS.replace("table: flights}", "table: flights, on_conflict: nothing}") + PARTITIONS)
    for key in (PG, LAKE):
        event = dg.AssetMaterialization(key, partition=JANUARY)
        materialize.instance.report_runless_asset_event(event)
    assert materialize(JANUARY, **tags).success
    assert stand_in.calls == []
    assert owner.read() is None
    (record,) = materialize.instance.fetch_observations(PG, limit=5).records
    assert record.asset_observation.metadata["rows_written"].value == 0
    assert latest(materialize, PG).metadata == {}


def refresh(
    owner: Owner, *, run_id: str = "0123456789", retries: int = 0, is_canceled: Callable[[], bool] = bool
) -> tuple[Any, list[str]]:
    """Run as the step of a Dagster run does. Return its result and its messages, also if it is canceled."""
    shown: list[str] = []
    result = None
    try:
        result = run_pipeline(
            read_pipeline(Path(owner.file.path)),
            PipelineSparkResource(spark_config={}),
            until=Until.HISTORY,
            run_id=run_id,
            retries=retries,
            partitions=[JANUARY],
            refresh=True,
            on_event=lambda event: shown.append(getattr(event, "message", "")),
            is_canceled=is_canceled,
        )
    except dg.DagsterExecutionInterruptedError:
        shown.append("canceled")
    return result, shown


def test_refresh_that_has_not_begun_is_withdrawn_by_a_termination(owner: Owner, stand_in: Any) -> None:
    _, shown = refresh(owner, is_canceled=lambda: owner.read() is not None)
    request = owner.ledger.refresh_request("flights", 1)
    assert request
    assert request.state is RefreshState.WITHDRAWN
    assert shown[0].startswith("waiting for the refresh of 2013-01-01 by Dagster run 01234567, ")
    assert shown[0].endswith(
        ": queued; another run of the pipeline is active (host here, pid 1, launched by dagster)"
    )
    assert shown[1:] == ["the refresh of 2013-01-01 was withdrawn", "canceled"]
    assert stand_in.calls == []


def test_refresh_that_has_begun_is_finished_after_a_termination(owner: Owner, stand_in: Any) -> None:
    def has_begun() -> bool:
        if (request := owner.read()) is not None and request.first_epoch is None:
            owner.begin()
        return request is not None

    _, shown = refresh(owner, is_canceled=has_begun)
    request = owner.read()
    assert request
    assert request.state is RefreshState.REQUESTED
    assert shown[-2].startswith("the run that owns the pipeline executes the refresh of 2013-01-01 by ")
    assert shown[-2].endswith(": begun with epoch 1")
    assert stand_in.calls == []


def test_refresh_of_another_requester_is_joined_and_stays_after_a_termination(
    owner: Owner, stand_in: Any
) -> None:
    owner.ledger.request_refresh("flights", [JANUARY], by="ann@a")
    seen: list[str] = []
    refresh(owner, is_canceled=lambda: bool(seen.append("") or len(seen) > 2))
    request = owner.read()
    assert request
    assert (request.number, request.by, request.state) == (1, "ann@a", RefreshState.REQUESTED)
    assert stand_in.calls == []


def test_refresh_that_another_requester_withdraws_is_requested_again(owner: Owner, stand_in: Any) -> None:
    owner.ledger.request_refresh("flights", [JANUARY], by="ann@a")

    def withdraw() -> None:
        threading.Event().wait(0.3)
        assert owner.ledger.withdraw_refresh("flights", 1, by="ann@a")
        until(lambda: (request := owner.read()) and request.number == 2, "the second request", 60)
        owner.execute()

    with meanwhile(withdraw):
        result, _ = refresh(owner)
    assert result.counts["flights_pg"].rows == 10
    assert stand_in.calls == []


def test_refresh_of_a_retry_is_that_of_the_first_attempt(owner: Owner, stand_in: Any) -> None:
    """The attempt that failed had requested it. Its owner ended, and the next owner executes it."""

    def end() -> None:
        owner.wait()
        owner.ledger.release(owner.lease)

    def fail(**_: Any) -> None:
        raise TransientError("the server is away")

    stand_in.during = fail
    with meanwhile(end), pytest.raises(dg.RetryRequested):
        refresh(owner)
    assert owner.wait().number == 1
    owner.lease = owner.ledger.acquire("flights", "main", HOLDER, 600)
    owner.execute()
    result, _ = refresh(owner, retries=1)
    assert result.counts["flights_pg"].rows == 10
    assert len(stand_in.calls) == 1
    assert owner.ledger.refresh_request("flights", 2) is None


def test_refresh_waits_during_a_pause(owner: Owner, stand_in: Any) -> None:
    """The owner ended by the pause. Nothing is requested, since no run may start."""
    owner.ledger.release(owner.lease)
    owner.ledger.request_stop("flights", StopAction.PAUSE, by="ann@a")
    seen: list[str] = []
    _, shown = refresh(owner, is_canceled=lambda: bool(seen.append("") or len(seen) > 2))
    assert "waiting: the pipeline is paused by ann@a" in shown[0]
    assert (owner.read(), stand_in.calls) == (None, [])

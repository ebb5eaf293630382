"""The queue of requests over a real ledger: what is refused, postponed, begun once and finished by the next run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headrace.jobs.run import history, refresh_queue
from headrace.jobs.run.history import HistoryLoad
from headrace.jobs.run.refresh_queue import RefreshQueue
from headrace.jobs.sources.backfill import EpochRange
from headrace.pipeline.errors import DataError, HeadraceError, ServiceError, TransientError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts
from headrace.pipeline.protocol.ledger import Ledger, RefreshRequest, RefreshState, open_sqlite

FILE = """
name: sales
sources: {src: {type: clickhouse, table_name: sales}}
sinks: {pg: {type: postgres, from: src, table: sales, primary_key: id}}
partitions: {column: day, every: day, start: 2024-03-01, end: 2024-03-04, any_order: true}
"""
DAYS = ["2024-03-01", "2024-03-02", "2024-03-03"]


class Died(BaseException):
    """The process dies."""


class FakeRun:
    """A run over a real ledger. Its epochs have no rows. `steps` are the partitions of its epochs, None for snapshots."""

    def __init__(self, ledger: Ledger) -> None:
        self.file = parse_pipeline(FILE, "sales.yaml")
        self.stopping = False
        self.steps: list[str | None] = []
        self.messages: list[str] = []
        self.before_epoch: dict[str | None, Any] = {}
        """By partition: called before the epoch is planned."""
        self.session = SimpleNamespace(translate_errors=nullcontext)
        self.reporter = SimpleNamespace(
            publish=lambda event: self.messages.append(event.message), enter=lambda *_: None
        )
        self.assembly = SimpleNamespace(sources={}, planner=SimpleNamespace(spark=None))
        lease = ledger.acquire("sales", "main", {"host": "elsewhere"}, 0.0)
        model = self.file.model
        position: Any = {
            "pins": [{"token": 0}],
            "fence": None,
            "cursor": None,
            "history": positions.no_history(),
        }
        for day in DAYS:
            position = positions.advance_partition(model, model.sources["src"], position, day, (1, 0, ""))
        ledger.begin(lease, lambda: {"src": position})
        state = ledger.state("sales")
        assert state is not None
        self.coordinator: Any = SimpleNamespace(
            ledger=ledger,
            lease=lease,
            sinks={},
            heartbeat=SimpleNamespace(),
            has_open_epoch=False,
            position=state.position,
            committed=state.committed,
        )

    def run_epoch(self, step: EpochRange) -> None:
        self.before_epoch.get(step.window, lambda: None)()
        coordinator = self.coordinator
        number = coordinator.committed + 1
        plan = EpochPlan(
            number, step.phase, coordinator.position, step.end, "h", datetime.now(UTC), window=step.window
        )
        coordinator.ledger.plan(coordinator.lease, plan, {})
        coordinator.ledger.commit(coordinator.lease, number, {"pg": WriteCounts(1)})
        coordinator.position, coordinator.committed = dict(step.end), number
        self.steps.append(step.window)


class FakePlanner:
    """Plans an epoch per partition that is not complete."""

    unreadable: ClassVar[dict[str, HeadraceError]] = {}
    """By partition: why it cannot be read."""

    def __init__(self, model: Any, *_: Any) -> None:
        self._model = model

    def next(self, _: Any, position: Any, windows: Any) -> EpochRange | None:
        here = position["src"]
        for key in windows:
            if not positions.is_partition_done(self._model, here, key):
                if key in self.unreadable:
                    raise self.unreadable[key]
                end = positions.advance_partition(
                    self._model, self._model.sources["src"], here, key, (1, 0, "")
                )
                return EpochRange(Phase.HISTORY, {"src": end}, key)
        return None


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    def renew(_: Any, coordinator: Any, refreshed: Any) -> EpochRange:
        model = parse_pipeline(FILE, "sales.yaml").model
        token = [{"token": coordinator.committed + 1}]
        renewed = positions.renew_snapshots(coordinator.position["src"], token, {})
        coordinator.ledger.store_content(token)
        return EpochRange(Phase.HISTORY, {"src": positions.start_refresh(model, renewed, refreshed)})

    for module in (history, refresh_queue):
        monkeypatch.setattr(module, "drop_unused_snapshots", lambda *_: None)
    monkeypatch.setattr(history, "renew_snapshots", renew)
    monkeypatch.setattr(history, "BackfillPlanner", FakePlanner)
    monkeypatch.setattr(FakePlanner, "unreadable", {})
    opened = open_sqlite(tmp_path / "ledger.db")
    yield opened
    opened.close()


def start(ledger: Ledger) -> tuple[FakeRun, RefreshQueue]:
    run: Any = FakeRun(ledger)
    return run, RefreshQueue(run)


def read(ledger: Ledger, number: int) -> RefreshRequest:
    request = ledger.refresh_request("sales", number)
    assert request is not None
    return request


def fail(error: BaseException) -> Any:
    def raise_it() -> None:
        raise error

    return raise_it


def test_requests_are_executed_in_their_order_and_only_when_they_wait(ledger: Ledger) -> None:
    run, queue = start(ledger)
    assert queue.execute() is False
    ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    assert queue.execute() is False, "the heartbeat has not reported it"
    ledger.request_refresh("sales", DAYS[1:], by="ann@a")
    run.coordinator.heartbeat.on_refresh()
    assert queue.execute() is True
    assert run.steps == [None, DAYS[0], None, DAYS[1], DAYS[2]]
    assert [(read(ledger, at).first_epoch, read(ledger, at).last_epoch) for at in (1, 2)] == [(1, 2), (3, 5)]
    assert [message.split(" by ")[0] for message in run.messages] == [
        "refreshing 2024-03-01",
        "refreshed 2024-03-01",
        "refreshing 2024-03-02, 2024-03-03",
        "refreshed 2024-03-02, 2024-03-03",
    ]
    run.coordinator.heartbeat.on_refresh()
    assert queue.execute() is False


@pytest.mark.parametrize(
    ("partition", "epochs"),
    [
        pytest.param(None, [None, DAYS[0], DAYS[1]], id="begun, not planned"),
        pytest.param(DAYS[0], [DAYS[0], DAYS[1]], id="snapshots committed"),
        pytest.param(DAYS[1], [DAYS[1]], id="one partition committed"),
    ],
)
def test_the_next_run_finishes_what_has_begun(
    ledger: Ledger, partition: str | None, epochs: list[str]
) -> None:
    former, queue = start(ledger)
    former.before_epoch[partition] = fail(Died())
    ledger.request_refresh("sales", DAYS[:2], by="ann@a")
    with pytest.raises(Died):
        queue.execute()
    run, queue = start(ledger)
    assert queue.execute() is True
    assert run.steps == epochs
    result = read(ledger, 1)
    assert result.state is RefreshState.DONE
    assert (result.first_epoch, result.last_epoch) == (1, 3)


def test_a_refresh_whose_result_was_not_stored_is_not_repeated(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, queue = start(ledger)
    ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "end_refresh", lambda *_: fail(TransientError("away"))())
        assert queue.execute() is True
    assert read(ledger, 1).state is RefreshState.REQUESTED
    run, queue = start(ledger)
    assert queue.execute() is False
    assert run.steps == []
    assert read(ledger, 1).state is RefreshState.DONE


def test_another_epoch_with_the_number_of_one_that_was_not_planned_is_no_beginning(ledger: Ledger) -> None:
    former, queue = start(ledger)
    former.before_epoch[None] = fail(Died())
    ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    with pytest.raises(Died):
        queue.execute()
    run, queue = start(ledger)
    run.run_epoch(EpochRange(Phase.HISTORY, run.coordinator.position, DAYS[2]))
    assert queue.execute() is True
    assert run.steps == [DAYS[2], None, DAYS[0]]
    assert (read(ledger, 1).first_epoch, read(ledger, 1).last_epoch) == (2, 3)


@pytest.mark.parametrize(
    ("partitions", "obstacle", "message"),
    [
        (["2024-03-09"], None, "`2024-03-09` is not a partition of this pipeline's history"),
        (DAYS[:1], ServiceError("ClickHouse cannot be reached", node="src"), "node 'src': ClickHouse cannot"),
    ],
)
def test_what_cannot_begin_is_refused_and_the_run_goes_on(
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    partitions: list[str],
    obstacle: HeadraceError | None,
    message: str,
) -> None:
    run, queue = start(ledger)
    if obstacle is not None:
        monkeypatch.setattr(history, "renew_snapshots", lambda *_: fail(obstacle)())
    ledger.request_refresh("sales", partitions, by="ann@a")
    assert queue.execute() is False
    result = read(ledger, 1)
    assert (result.state, run.steps) == (RefreshState.REFUSED, [])
    assert result.message.startswith(message)
    assert message in run.messages[-1]


def complete(run: FakeRun) -> list[str]:
    return positions.completed_partitions(run.file.model, run.coordinator.position)


@pytest.mark.parametrize("error", [ServiceError("the clone is lost", node="src"), TransientError("away")])
def test_a_partition_that_cannot_be_read_keeps_its_rows_and_the_run_goes_on(
    ledger: Ledger, error: HeadraceError
) -> None:
    run, queue = start(ledger)
    FakePlanner.unreadable[DAYS[1]] = error
    ledger.request_refresh("sales", DAYS, by="ann@a")
    ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    assert queue.execute() is True
    assert run.steps == [None, DAYS[0], None, None, DAYS[0]], "snapshots, a partition, the end of the refresh"
    assert read(ledger, 1).state is RefreshState.REFUSED
    assert error.message in read(ledger, 1).message
    assert read(ledger, 2).state is RefreshState.DONE
    assert complete(run) == DAYS


def test_the_next_run_refuses_what_has_begun_and_cannot_be_read(ledger: Ledger) -> None:
    former, queue = start(ledger)
    former.before_epoch[DAYS[0]] = fail(Died())
    ledger.request_refresh("sales", DAYS[:2], by="ann@a")
    with pytest.raises(Died):
        queue.execute()
    run, queue = start(ledger)
    FakePlanner.unreadable[DAYS[0]] = TransientError("ClickHouse cannot be reached")
    queue.finish_begun()
    assert read(ledger, 1).state is RefreshState.REFUSED
    assert (run.steps, complete(run)) == ([None], DAYS)


def test_a_refresh_that_was_cancelled_and_not_refused_begins_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the epoch that ends the refresh and the result of the request."""
    _, queue = start(ledger)
    FakePlanner.unreadable[DAYS[0]] = ServiceError("the clone is lost")
    ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "refuse_refresh", lambda *_: fail(Died())())
        with pytest.raises(Died):
            queue.execute()
    FakePlanner.unreadable.clear()
    run, queue = start(ledger)
    queue.finish_begun()
    assert queue.execute() is True
    assert run.steps == [None, DAYS[0]]
    assert read(ledger, 1).state is RefreshState.DONE


@pytest.mark.parametrize("refresh", [True, False])
def test_a_partition_that_cannot_be_read_does_not_block_later_runs(ledger: Ledger, refresh: bool) -> None:
    """A load without a request: it fails, and the partition keeps its rows. A first load has none to keep."""
    run: Any = start(ledger)[0]
    model = run.file.model
    run.coordinator.position = {
        "src": positions.start_refresh(
            model, positions.renew_snapshots(run.coordinator.position["src"], [{"token": 1}], {}), DAYS[:1]
        )
    }
    if not refresh:
        run.coordinator.position["src"]["history"].pop("refresh")
    steps: list[EpochRange] = []
    run.run_epoch = steps.append
    FakePlanner.unreadable[DAYS[0]] = ServiceError("the clone is lost")
    with pytest.raises(ServiceError):
        HistoryLoad(run, DAYS, refresh=False).run()
    ends = [positions.completed_partitions(model, step.end) for step in steps]
    assert ends == ([DAYS] if refresh else [])


def test_a_request_that_was_withdrawn_is_not_begun(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run, queue = start(ledger)
    request = ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    pending = ledger.pending_refreshes("sales")
    assert ledger.withdraw_refresh("sales", request.number, by="ann@a")
    monkeypatch.setattr(ledger, "pending_refreshes", lambda *_: pending)
    assert queue.execute() is False
    assert (run.steps, complete(run)) == ([], DAYS)
    assert read(ledger, 1).state is RefreshState.WITHDRAWN
    assert "was withdrawn" in run.messages[-1]


def test_an_epoch_that_fails_ends_the_run_and_the_request_stays(ledger: Ledger) -> None:
    run, queue = start(ledger)
    run.before_epoch[DAYS[0]] = fail(DataError("a row is refused"))
    ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    with pytest.raises(DataError):
        queue.execute()
    assert read(ledger, 1).state is RefreshState.REQUESTED


@pytest.mark.parametrize("partition", [None, DAYS[0]])
def test_a_run_that_stops_leaves_the_request(ledger: Ledger, partition: str | None) -> None:
    run, queue = start(ledger)

    def stop() -> None:
        run.stopping = True

    run.before_epoch[partition] = stop
    ledger.request_refresh("sales", DAYS[:2], by="ann@a")
    queue.execute()
    assert run.steps == ([None] if partition is None else [None, DAYS[0]])
    assert read(ledger, 1).state is RefreshState.REQUESTED
    run, queue = start(ledger)
    queue.execute()
    assert run.steps == (DAYS[:2] if partition is None else DAYS[1:2])
    assert read(ledger, 1).state is RefreshState.DONE


def test_a_run_that_stops_before_it_begins_stores_no_result(ledger: Ledger) -> None:
    """All partitions are complete then, as they were before."""
    run, queue = start(ledger)

    def stop(_: Any) -> None:
        run.stopping = True

    run.reporter.publish = stop
    ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    assert queue.execute() is False
    assert run.steps == []
    assert read(ledger, 1).state is RefreshState.REQUESTED


def test_a_ledger_that_is_away_for_a_moment_postpones_requests(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, queue = start(ledger)
    ledger.request_refresh("sales", DAYS[:1], by="ann@a")
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "pending_refreshes", lambda *_: fail(TransientError("away"))())
        assert queue.execute() is False
    run.coordinator.heartbeat.on_refresh()
    assert queue.execute() is True

"""`headrace status --watch`: the progress of pipelines from the ledger, refreshed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.connectors.ledger.factory import open_ledger
from headrace.console import format_count, stdout_console
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.epochs import largest_row_count
from headrace.pipeline.protocol.ledger.model import EpochRow, PipelineState
from headrace.pipeline.protocol.ledger.writer import Ledger

_RATE_SECONDS = 10.0
"""Rows per second are an average over this time."""
_MAX_EPOCHS = 200


@dataclass(slots=True)
class PipelineStatusLine:
    """The state of a pipeline as one line. `age` is the number of seconds since its last committed epoch."""

    name: str
    phase: str
    epoch: int
    rate: float | None
    backlog: int | None
    age: float | None
    owner: str
    error: str = ""
    waiting: str = ""
    refreshes: tuple[str, ...] = ()
    """The requests for a refresh that wait or are executed."""


@dataclass(slots=True)
class _SeenEpochs:
    """The last known epoch of a pipeline, and (time, rows) of the epochs since then."""

    epoch: int
    since: float
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    last: datetime | None = None
    phase: str = ""


class StatusWatcher:
    """Reads the state of pipelines repeatedly. `clock` is monotonic."""

    def __init__(self, ledger: Ledger, name: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._name, self._clock = ledger, name, clock
        self._seen: dict[tuple[str, str], _SeenEpochs] = {}

    @property
    def empty_message(self) -> str:
        """The message if there is no pipeline."""
        return (
            f"{self._name} has not been started yet"
            if self._name
            else "Nothing has been started yet: the ledger is empty"
        )

    def read_status(self) -> list[PipelineStatusLine]:
        """Return the current state of all pipelines, or of the chosen one."""
        return [self._read_line(lane) for lane in self._ledger.lanes() if self._name in (None, lane.name)]

    def _read_line(self, lane: PipelineState) -> PipelineStatusLine:
        now, open_row = self._clock(), None
        first = (lane.name, lane.lane) not in self._seen
        seen = self._seen.setdefault((lane.name, lane.lane), _SeenEpochs(max(0, lane.committed - 1), now))
        rows: list[EpochRow] = list(
            self._ledger.epochs(lane.name, lane.lane, first=max(seen.epoch + 1, lane.committed - _MAX_EPOCHS))
        )
        for row in rows:
            if row.committed_at is None:
                open_row = row
                continue
            seen.epoch, seen.last, seen.phase = row.plan.number, row.committed_at, str(row.plan.phase)
            if not first:
                seen.recent.append((now, largest_row_count(row.counts)))
        while seen.recent and seen.recent[0][0] < now - _RATE_SECONDS:
            seen.recent.popleft()
        seconds = min(_RATE_SECONDS, now - seen.since)
        running = lane.holder is not None
        return PipelineStatusLine(
            name=lane.name if lane.lane == "main" else f"{lane.name}/{lane.lane}",
            phase=((str(open_row.plan.phase) if open_row else seen.phase) or "starting").replace("_", " ")
            if running
            else "paused"
            if lane.request and lane.request.is_pause
            else "stopped",
            epoch=lane.committed,
            rate=sum(number for _, number in seen.recent) / seconds if running and seconds > 0 else None,
            backlog=lane.progress.get("backlog") if running else None,
            age=max(0.0, (datetime.now(UTC) - seen.last).total_seconds()) if seen.last else None,
            owner=_format_owner(lane),
            error=(
                open_row.error
                if open_row and open_row.error
                else lane.progress.get("error")
                if running
                else ""
            )
            or "",
            waiting=(lane.progress.get("waiting") if running else "") or "",
            refreshes=tuple(
                f"refresh of {request.describe()}"
                for request in self._ledger.pending_refreshes(lane.name, lane.lane)
            ),
        )


def _format_owner(lane: PipelineState) -> str:
    if lane.holder is None:
        return "-"
    return (
        f"{lane.holder.get('launched_by', 'run')}"
        f" {lane.holder.get('pid', '?')}@{lane.holder.get('host', '?')}"
    )


def format_age(seconds: float | None) -> str:
    """Format an age as `4 s`, `12 min`, `3 h` or `5 d`."""
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_short(number: float | None) -> str:
    """Format 12345 as `12,345` and 1234567 as `1.23 M`: at most six characters."""
    if number is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if number >= size:
            return f"{number / min(size, 1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{number:,.0f}"


def build_table(lines: list[PipelineStatusLine], empty_message: str = "") -> Group:
    """Return the screen: a line per pipeline, then refreshes, waits and last errors, or `empty_message`."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("pipeline", overflow="ellipsis", no_wrap=True, min_width=8, max_width=15)
    table.add_column("phase", no_wrap=True)
    for name in ("epoch", "rows/s", "backlog", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("owner", overflow="ellipsis", no_wrap=True, max_width=17)
    for line in lines:
        rate, backlog = format_short(line.rate), format_short(line.backlog)
        style = "red" if line.error else "dim" if line.phase in ("paused", "stopped") else ""
        table.add_row(
            line.name,
            line.phase,
            str(line.epoch),
            rate,
            backlog,
            format_age(line.age),
            line.owner,
            style=style,
        )
    refreshes = [
        Text(f"{line.name}: {refresh}", overflow="ellipsis", no_wrap=True)
        for line in lines
        for refresh in line.refreshes
    ]
    waits = [
        Text(f"{line.name}: waiting for {line.waiting}", style="yellow", overflow="ellipsis", no_wrap=True)
        for line in lines
        if line.waiting
    ]
    errors = [
        Text(f"{line.name}: {line.error}", style="red", overflow="ellipsis", no_wrap=True)
        for line in lines
        if line.error
    ]
    return Group(table, *refreshes, *waits, *errors) if lines else Group(Text(""), Text(f"{empty_message}."))


def format_lines(views: list[PipelineStatusLine], empty_message: str = "") -> list[str]:
    """Return the same as text lines, for output without a terminal."""
    at = datetime.now(UTC).strftime("%H:%M:%S")
    lines = []
    for view in views:
        rate = "" if view.rate is None else f", {view.rate:,.0f} rows/s"
        backlog = "" if view.backlog is None else f", backlog {format_count(view.backlog)}"
        last = "" if view.age is None else f", last commit {format_age(view.age)} ago"
        details = "".join(f", {refresh}" for refresh in view.refreshes)
        details += f", waiting for {view.waiting}" if view.waiting else ""
        details += f", error: {view.error}" if view.error else ""
        lines.append(
            f"{at} {view.name}: {view.phase}, epoch {view.epoch}{rate}{backlog}{last}, {view.owner}{details}"
        )
    return lines or [f"{at} {empty_message}"]


def watch(
    path: Path | None, interval: float, *, refreshes: int | None = None, console: Console | None = None
) -> None:
    """Show pipelines until Ctrl-C, or `refreshes` times.

    Without a terminal print a line per pipeline and refresh.
    """
    name = load_pipeline(path).name if path else None
    ledger = open_ledger(load_settings())
    console = console or stdout_console()
    try:
        watcher = StatusWatcher(ledger, name)
        if console.is_terminal:
            with Live(
                build_table(watcher.read_status(), watcher.empty_message), console=console, auto_refresh=False
            ) as live:
                _repeat(
                    lambda: live.update(
                        build_table(watcher.read_status(), watcher.empty_message), refresh=True
                    ),
                    interval,
                    refreshes,
                )
        else:
            _repeat(
                lambda: console.print(
                    "\n".join(format_lines(watcher.read_status(), watcher.empty_message)),
                    markup=False,
                    soft_wrap=True,
                ),
                interval,
                refreshes,
            )
    except KeyboardInterrupt:
        return
    finally:
        ledger.close()


def _repeat(refresh: Callable[[], None], interval: float, refreshes: int | None) -> None:
    done = 0
    while True:
        refresh()
        done += 1
        if done == refreshes:
            return
        time.sleep(interval)

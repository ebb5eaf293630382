"""`headrace status --watch`: pipelines as they run, by the ledger alone, looked at again and again."""

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

from headrace.connectors.ledger_factory import open_ledger
from headrace.console import count, out
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.ledger.model import EpochRow, PipelineState
from headrace.pipeline.protocol.ledger.writer import Ledger

_SPAN_SECONDS = 10.0
"""Rows per second are those of so many last seconds."""
_EPOCHS_SEEN = 200


@dataclass(slots=True)
class View:
    """A pipeline as one line shows it. `age` is how many seconds ago its last epoch was committed."""

    name: str
    phase: str
    epoch: int
    rate: float | None
    behind: int | None
    age: float | None
    holder: str
    error: str = ""
    waiting: str = ""


@dataclass(slots=True)
class _Seen:
    """What was learned of a lane: its last epoch then, and (moment, rows) of epochs that came since."""

    epoch: int
    since: float
    came: deque[tuple[float, int]] = field(default_factory=deque)
    last: datetime | None = None
    phase: str = ""


class Watcher:
    """Looks at a ledger again and again. `clock` is a monotonic one."""

    def __init__(self, ledger: Ledger, name: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._name, self._clock = ledger, name, clock
        self._seen: dict[tuple[str, str], _Seen] = {}

    @property
    def nothing(self) -> str:
        """What is said where there is no lane to look at."""
        return f"{self._name} has not been started yet" if self._name else "Nothing has been started yet: the ledger is empty"

    def look(self) -> list[View]:
        """All lanes, or those of one pipeline, as they stand now."""
        return [self._view(lane) for lane in self._ledger.lanes() if self._name in (None, lane.name)]

    def _view(self, lane: PipelineState) -> View:
        now, open_row = self._clock(), None
        first = (lane.name, lane.lane) not in self._seen
        seen = self._seen.setdefault((lane.name, lane.lane), _Seen(max(0, lane.committed - 1), now))
        rows: list[EpochRow] = list(self._ledger.epochs(lane.name, lane.lane, first=max(seen.epoch + 1, lane.committed - _EPOCHS_SEEN)))
        for row in rows:
            if row.committed_at is None:
                open_row = row
                continue
            seen.epoch, seen.last, seen.phase = row.plan.number, row.committed_at, str(row.plan.phase)
            if not first:
                seen.came.append((now, max((counts.rows for counts in row.counts.values()), default=0)))
        while seen.came and seen.came[0][0] < now - _SPAN_SECONDS:
            seen.came.popleft()
        spent = min(_SPAN_SECONDS, now - seen.since)
        running = lane.holder is not None
        return View(
            name=lane.name if lane.lane == "main" else f"{lane.name}/{lane.lane}",
            phase=((str(open_row.plan.phase) if open_row else seen.phase) or "starting").replace("_", " ") if running else "stopped",
            epoch=lane.committed,
            rate=sum(number for _, number in seen.came) / spent if running and spent > 0 else None,
            behind=lane.progress.get("backlog") if running else None,
            age=max(0.0, (datetime.now(UTC) - seen.last).total_seconds()) if seen.last else None,
            holder=_holder(lane),
            error=(open_row.error if open_row and open_row.error else lane.progress.get("error") if running else "") or "",
            waiting=(lane.progress.get("waiting") if running else "") or "",
        )


def _holder(lane: PipelineState) -> str:
    if lane.holder is None:
        return "nobody"
    return f"{lane.holder.get('launched_by', 'run')} {lane.holder.get('pid', '?')}@{lane.holder.get('host', '?')}"


def age(seconds: float | None) -> str:
    """`4 s`, `12 min`, `3 h`, `5 d`."""
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def short(number: float | None) -> str:
    """12345 as `12,345`, 1234567 as `1.23 M`: six characters at most."""
    if number is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if number >= size:
            return f"{number / min(size, 1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{number:,.0f}"


def table(views: list[View], nothing: str = "") -> Group:
    """The screen: a line per pipeline, and below it what is waited for, and what went wrong last. Without any: `nothing`."""
    found = Table(box=None, padding=(0, 1), pad_edge=False)
    found.add_column("pipeline", overflow="ellipsis", no_wrap=True, min_width=8, max_width=15)
    found.add_column("phase", no_wrap=True)
    for name in ("epoch", "rows/s", "behind", "age"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("holder", overflow="ellipsis", no_wrap=True, max_width=17)
    for view in views:
        rate, behind = short(view.rate), short(view.behind)
        style = "red" if view.error else "dim" if view.phase == "stopped" else ""
        found.add_row(view.name, view.phase, str(view.epoch), rate, behind, age(view.age), view.holder, style=style)
    waits = [
        Text(f"{view.name}: waiting for {view.waiting}", style="yellow", overflow="ellipsis", no_wrap=True)
        for view in views
        if view.waiting
    ]
    errors = [Text(f"{view.name}: {view.error}", style="red", overflow="ellipsis", no_wrap=True) for view in views if view.error]
    return Group(found, *waits, *errors) if views else Group(Text(""), Text(f"{nothing}."))


def plain(views: list[View], nothing: str = "") -> list[str]:
    """The same as lines, for where there is no terminal."""
    at = datetime.now(UTC).strftime("%H:%M:%S")
    lines = []
    for view in views:
        rate = "" if view.rate is None else f", {view.rate:,.0f} rows/s"
        behind = "" if view.behind is None else f", {count(view.behind)} behind"
        last = "" if view.age is None else f", last commit {age(view.age)} ago"
        said = f", waiting for {view.waiting}" if view.waiting else ""
        said += f", error: {view.error}" if view.error else ""
        lines.append(f"{at} {view.name}: {view.phase}, epoch {view.epoch}{rate}{behind}{last}, {view.holder}{said}")
    return lines or [f"{at} {nothing}"]


def watch(path: Path | None, interval: float, *, looks: int | None = None, console: Console | None = None) -> None:
    """Shows pipelines until Ctrl-C, or so many `looks`. Without a terminal it prints lines, one per pipeline and look."""
    name = load_pipeline(path).name if path else None
    ledger = open_ledger(load_settings())
    console = console or out()
    try:
        watcher = Watcher(ledger, name)
        if console.is_terminal:
            with Live(table(watcher.look(), watcher.nothing), console=console, auto_refresh=False) as live:
                _again(lambda: live.update(table(watcher.look(), watcher.nothing), refresh=True), interval, looks)
        else:
            _again(lambda: console.print("\n".join(plain(watcher.look(), watcher.nothing)), markup=False, soft_wrap=True), interval, looks)
    except KeyboardInterrupt:
        return
    finally:
        ledger.close()


def _again(look: Callable[[], None], interval: float, looks: int | None) -> None:
    done = 0
    while True:
        look()
        done += 1
        if done == looks:
            return
        time.sleep(interval)

"""Tables in the memory of the process, by name. They end with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.pipeline.errors import TargetError
from headrace.pipeline.protocol.epochs import EpochPlan, SinkKey, WriteCounts


@dataclass(frozen=True, slots=True)
class MemoryTableState:
    """One state of a table: its rows, and the last epoch that was written. A write replaces the whole."""

    rows: pa.Table
    sink: SinkKey
    generation: int
    plan: EpochPlan | None = None
    counts: WriteCounts | None = None


_tables: dict[str, MemoryTableState] = {}
_lock = threading.Lock()


def read_table(name: str) -> pa.Table:
    """Return the rows of a table after its last epoch. Raise TargetError if there is no such table."""
    table = find_table(name)
    if table is None:
        msg = f"there is no memory table `{name}` in this process"
        raise TargetError(msg, hint=f"Tables: {', '.join(sorted(_tables)) or 'none'}.")
    return table.rows


def drop_table(name: str) -> None:
    """Remove a table if it exists."""
    with _lock:
        _tables.pop(name, None)


def find_table(name: str) -> MemoryTableState | None:
    """Return the state of a table, or None."""
    with _lock:
        return _tables.get(name)


def change_table(
    name: str, change: Callable[[MemoryTableState | None], MemoryTableState]
) -> MemoryTableState:
    """Replace the state of a table by the result of `change` in one step. Return the new state.

    If `change` raises, the state stays.
    """
    with _lock:
        _tables[name] = table = change(_tables.get(name))
        return table

"""Rows and event times of nodes whose rows are in the driver."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.jobs.monitoring.spark_observation import MILLIS, NodeFigures
from headrace.pipeline.model.telemetry import EventTime
from headrace.pipeline.sql.system_columns import POS

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DAY_MILLIS = 86_400_000
_LARGEST = 2**63


def figures_of_table(rows: pa.Table, times: Mapping[str, EventTime]) -> NodeFigures:
    """Return what Spark's observation of the same rows returns. Rows that a filter marks do not count."""
    passed = rows.filter(pc.greater_equal(pc.struct_field(rows[POS], "sub"), 0))
    result = {asker: _latest(passed, time_) for asker, time_ in times.items()}
    return NodeFigures(passed.num_rows, {asker: at for asker, at in result.items() if at is not None})


def _latest(rows: pa.Table, event_time: EventTime) -> int | None:
    """Return the latest event time in milliseconds since 1970. None without one, or for another type."""
    name = next((one for one in rows.schema.names if one.lower() == event_time.column.lower()), None)
    if name is None:
        return None
    kind = rows.schema.field(name).type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _millis(pc.max(rows[name]).as_py())
    if not pa.types.is_integer(kind):
        return None
    latest = pc.max(rows[name]).as_py()
    millis = None if latest is None else float(latest) * MILLIS[event_time.unit or "milliseconds"]
    return None if millis is None or not -_LARGEST <= millis < _LARGEST else int(millis)


def _millis(at: date | datetime | None) -> int | None:
    if isinstance(at, datetime):
        return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // _MILLISECOND
    return None if at is None else (at - _EPOCH.date()).days * _DAY_MILLIS

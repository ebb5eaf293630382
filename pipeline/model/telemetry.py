"""A node's options for metrics: labels, and the column with the event time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pyarrow as pa
from pyarrow import types as kinds
from pydantic import BaseModel, ConfigDict, Field

from headrace.pipeline.config.metric_labels import RESERVED
from headrace.pipeline.errors import SchemaError, UserError

MOST_LABELS = 20
LONGEST_VALUE = 256
"""Bytes of a label's value."""

_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RESERVED_OF: Mapping[str, tuple[str, ...]] = {
    "handler": ("outcome", "status_class"),
    "script": ("language",),
}
"""By transform type: labels that its metrics carry by themselves.

Sources and sinks say theirs: `metric_labels`.
"""


class EventTime(BaseModel):
    """Which column says when a row happened."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str = Field(description="A timestamp, a date, or a whole number since 1970 in `unit`.")
    unit: Literal["seconds", "milliseconds", "microseconds"] | None = Field(
        default=None, description="For whole numbers, which need it; timestamps and dates have their own."
    )


class Telemetry(BaseModel):
    """What metrics of a node carry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event_time: EventTime | None = Field(
        default=None, description="Column with the time of the event. Defaults to none."
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description=f"Up to {MOST_LABELS} labels; values of up to {LONGEST_VALUE} bytes of text.",
    )


def label_problems(node: Any) -> Iterator[tuple[str, UserError]]:
    """Yield (label, problem) for a node of a pipeline file. The label is "" if there are too many."""
    labels = node.telemetry.labels if node.telemetry else {}
    if len(labels) > MOST_LABELS:
        yield "", UserError(f"{len(labels)} labels are too many", hint=f"A node may have {MOST_LABELS}.")
    by_type = getattr(
        node, "metric_labels", _RESERVED_OF.get(node.type, ("type",) if hasattr(node, "plugin") else ())
    )
    own = (*RESERVED, *by_type)
    for key, value in labels.items():
        if key in own:
            yield (
                key,
                UserError(
                    f"the label `{key}` is set by Headrace itself",
                    hint=f"Choose another name than {', '.join(own)}.",
                ),
            )
        elif key.startswith("__") or not _KEY.fullmatch(key):
            hint = "Write letters, digits and underscores; begin with a letter, or with one underscore."
            yield key, UserError(f"`{key}` cannot be the name of a label", hint=hint)
        if len(value.encode()) > LONGEST_VALUE:
            yield (
                key,
                UserError(
                    f"the value of label `{key}` has {len(value.encode())} bytes",
                    hint=f"At most {LONGEST_VALUE}.",
                ),
            )
        if any((ord(char) < 0x20 and char != "\t") or ord(char) == 0x7F for char in value):
            yield (
                key,
                UserError(
                    f"the value of label `{key}` holds a control character", hint="Remove it; a tab may stay."
                ),
            )


def event_time_problem(event_time: EventTime, columns: Mapping[str, pa.DataType]) -> UserError | None:
    """Return the problem with an event time over rows of these columns, if there is one."""
    kind = next((kind for name, kind in columns.items() if name.lower() == event_time.column.lower()), None)
    if kind is None:
        msg = f"event time: there is no column `{event_time.column}`"
        return SchemaError(msg, hint=f"Available columns: {', '.join(columns)}.")
    if kinds.is_integer(kind):
        if event_time.unit is None:
            msg = f"event time: `{event_time.column}` is a whole number, and its unit is not set"
            return SchemaError(msg, hint="Add `unit: seconds`, `milliseconds` or `microseconds`.")
        return None
    if not (kinds.is_timestamp(kind) or kinds.is_date(kind)):
        return SchemaError(
            f"event time: `{event_time.column}` is {kind}",
            hint="Use a timestamp, a date, or a whole number with its unit.",
        )
    return None

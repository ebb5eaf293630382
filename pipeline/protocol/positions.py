"""The position of a source in a pipeline, as JSON.

A source with history::

    {"source": reference to its fixed keys, "pins": [snapshot handle per bounded phase],
     "fence": unbounded position or null, "cursor": ISO time or null,
     "history": {"by": partitions or null, "done": [[first day, day after the last]],
                 "open": {"2013-01-01": [phase, splits done, mark]}},
     "stream": unbounded position, "began": unbounded position, "catch_up": unbounded position}

`history` is the history that the sinks have. `by` are the partitions of the history, as the file had them.
`done` are the days of complete partitions, with adjacent ones joined. For ranges of integers it has numbers
with 19 digits, for values `[value, value]` for each. `[["", ""]]` is a complete history without partitions.
`open` are partitions that are partly read, by their keys. `mark` is the fingerprint of the phase's splits.
Once all partitions of the file are complete, `"complete": true` replaces `open`, and `pins` moves into
`history` as a reference.

With an open end of `partitions`, `history` also has `"as_of"`, the end of history when the snapshots were
created: later partitions need new ones. Ranges of integers have their end there, and values their list.
`"renewed": true` means that new snapshots replaced the first ones, and `since` are the days of partitions
that were read from the present ones. `"refresh"` are the days of partitions that are read again from the
present snapshots and replace their rows in the sinks; they are not `done`.

A reference is the hash under which the ledger stores a value. If the handles are large, `pins` is
`{"ref": reference}` from the start.

A history with a cursor also has `"overlap": {"end": unbounded position, "nulls": true}`. It is the end of the
stream right after the snapshots were created, and whether history has rows without a cursor.

`source` refers to the identity of the source at the first start; see `source_identity`.

The last three keys exist once the stream has begun: its position, its first position, and its end at that
time. After that end `catch_up` is removed. `began` is removed there too if it equals `fence`. A source
without history has only `source` and `stream`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.partitions import UTC_ZONE, PartitionsConfig
from headrace.pipeline.protocol.epochs import Json, Position, content_ref
from headrace.pipeline.protocol.partitions import (
    WHOLE,
    HistoryPartition,
    partition_at,
    partition_span,
    snapshot_coverage,
    window_keys,
)

FIXED = ("column", "every", "start", "timezone")
"""Keys of `partitions` that decide the rows of a partition."""


def fingerprint(value: Any) -> str:
    """Return eight hex digits that change when a JSON value changes, for example a list of splits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def bounded_phases(node: Any) -> int:
    """Return the number of bounded phases of a source node."""
    if node.type == "hybrid":
        return len(node.bounded_sources)
    return 0 if is_unbounded(node) else 1


def is_unbounded(node: Any) -> bool:
    """Return whether a source node never ends."""
    return node.is_unbounded


def windows_of(model: PipelineModel) -> list[str]:
    """Return the keys of the partitions of this pipeline's history."""
    return window_keys(model.partitions)


def history_partition(model: PipelineModel, key: str) -> HistoryPartition | None:
    """Return the rows of a partition by its column. None if history is unpartitioned."""
    if model.partitions is None or key == WHOLE:
        return None
    return partition_at(model.partitions, key)


def partitions_json(partitions: PartitionsConfig | None) -> Json | None:
    """Return the partitions of a file in the form that a position stores."""
    if partitions is None:
        return None
    stored = partitions.model_dump(mode="json", exclude_none=True, exclude={"any_order"})
    return {key: value for key, value in stored.items() if (key, value) != ("timezone", UTC_ZONE)}


def is_cut_alike(former: Json | None, now: Json | None) -> bool:
    """Return whether two values of `partitions` have the same partition boundaries, ignoring their ends."""
    if former is None or now is None:
        return former is now
    return all(former.get(key) == now.get(key) for key in FIXED)


def no_history() -> Json:
    """Return the `history` of a position whose history has not begun."""
    return {"by": None, "done": [], "open": {}}


def snapshot_end(partitions: PartitionsConfig | None) -> Json:
    """Return what `history` notes about snapshots that are created after this call: nothing, or `as_of`."""
    covered = snapshot_coverage(partitions)
    return {} if covered is None else {"as_of": covered}


def partly_read(position: Position) -> list[str]:
    """Return the keys of the partitions that some source has read in part, sorted as text."""
    return sorted({key for here in position.values() for key in here.get("history", {}).get("open", {})})


def needs_snapshot(model: PipelineModel, position: Json, keys: Iterable[str]) -> bool:
    """Return whether the snapshots cannot fill some of these partitions."""
    if snapshot_coverage(model.partitions) is None:
        return False
    as_of = position["history"].get("as_of", "")
    left = [key for key in keys if not is_partition_done(model, position, key)]
    if isinstance(as_of, list):
        return not set(left) <= set(as_of)
    return any(_span(model, key)[1] > as_of for key in left)


def renew_snapshots(position: Json, handles: list[Json], noted: Json) -> Json:
    """Return the position with new snapshots of its history. No partition may be partly read.

    `noted` is the value of `snapshot_end` from before they were created.
    """
    history = position["history"]
    rest = {name: value for name, value in position.items() if name not in ("pins", "history")}
    renewed = {"by": history["by"], "done": history["done"], "open": {}, "renewed": True, "since": []}
    renewed |= {"refresh": history["refresh"]} if "refresh" in history else {}
    return {"pins": placed_pins(handles)} | rest | {"history": renewed | noted}


def start_refresh(model: PipelineModel, position: Json, keys: Iterable[str]) -> Json:
    """Return the position in which these partitions are read again, from the snapshots that it has.

    The rows that the sinks have of them are replaced.
    """
    history, done = position["history"], _done_spans(model, position)
    marked = history.get("refresh", [])
    for first, last in (_span(model, key) for key in keys):
        done = _without(done, first, last)
        marked = _join_adjacent([*marked, [first, last]])
    return position | {"history": history | {"done": done, "refresh": marked}}


def cancel_refresh(model: PipelineModel, position: Json, keys: Iterable[str]) -> Json:
    """Return the position in which these partitions are not read again. The sinks keep the rows of them."""
    history, done = position["history"], _done_spans(model, position)
    marked = history.get("refresh", [])
    for first, last in (_span(model, key) for key in keys):
        done = _join_adjacent([*done, [first, last]])
        marked = _without(marked, first, last)
    noted = {name: history[name] for name in ("as_of", "renewed", "since") if name in history}
    noted |= {"refresh": marked} if marked else {}
    return _with_history(model, position, done, noted, history.get("open", {}))


def refreshable(model: PipelineModel, position: Position, keys: Iterable[str]) -> list[str]:
    """Return the partitions that every sink has, or whose refresh has not ended."""
    done = completed_partitions(model, position)
    return [
        key
        for key in keys
        if key in done or any(is_refresh(model, position.get(name, {}), key) for name in model.sources)
    ]


def is_refresh(model: PipelineModel, position: Json, key: str) -> bool:
    """Return whether the rows of a partition replace those that the sinks have of it."""
    first, last = _span(model, key)
    marked = position.get("history", {}).get("refresh", ())
    return any((first < end and start < last) or (start, end) == (first, last) for start, end in marked)


def is_refreshed(model: PipelineModel, start: Json, end: Json, key: str) -> bool:
    """Return whether an epoch from `start` to `end` of a source replaces the rows of a partition.

    An epoch that cancels the refresh reads nothing of it.
    """
    return (
        is_refresh(model, start, key)
        and is_partition_done(model, end, key)
        and is_from_snapshot(model, end, key)
    )


def is_from_snapshot(model: PipelineModel, position: Json, key: str) -> bool:
    """Return whether every sink has a partition as the present snapshots have it."""
    history = position.get("history", {})
    first, last = _span(model, key)
    spans = history.get("since", []) if history.get("renewed") else _done_spans(model, position)
    return any(start <= first and last <= end for start, end in spans)


PINS_INLINE = 300
"""The maximal size of snapshot handles in a position. The ledger stores larger ones under a reference."""


def placed_pins(handles: list[Json]) -> list[Json] | Json:
    """Return the `pins` of a first position. The ledger stores the snapshot handles if they are large."""
    return handles if len(json.dumps(handles)) <= PINS_INLINE else {"ref": content_ref(handles)}


def pins_ref(position: Json) -> str:
    """Return the reference to the snapshot handles of a history, from either place in the position."""
    pins = position.get("pins")
    if pins is None:
        return position["history"]["pins"]
    return pins["ref"] if isinstance(pins, dict) else content_ref(pins)


_OVERLAP = ("catch_up", "overlap")


def without_overlap(position: Json) -> Json:
    """Return a position after the overlap.

    Keys that only the overlap needs, or that have no effect, are removed.
    """
    rest = {
        key: value
        for key, value in position.items()
        if key not in _OVERLAP and not (key == "cursor" and value is None)
    }
    return {key: value for key, value in rest.items() if key != "began" or value != rest.get("fence")}


def with_overlap(position: Json, earlier: Json) -> Json:
    """Add the overlap keys of an earlier position of the same source, to read rows from there again."""
    return {key: earlier[key] for key in _OVERLAP if key in earlier} | dict(position)


def has_begun(position: Json) -> bool:
    """Return whether a partition of a source's history is in a sink, completely or partly."""
    history = position.get("history", {})
    return bool(history.get("done") or history.get("open"))


def _done_spans(model: PipelineModel, position: Json) -> list[list[str]]:
    history = position.get("history")
    if (
        not history
        or not history["done"]
        or not is_cut_alike(history["by"], partitions_json(model.partitions))
    ):
        return []
    return history["done"]


def _span(model: PipelineModel, key: str) -> tuple[str, str]:
    return partition_span(model.partitions, key)


def is_partition_done(model: PipelineModel, position: Json, key: str) -> bool:
    """Return whether every sink has a partition. False if the file partitions history in another way."""
    first, last = _span(model, key)
    return any(start <= first and last <= end for start, end in _done_spans(model, position))


def window_progress(position: Json, key: str) -> tuple[int, int, str]:
    """Return the phase of a partition, the number of its finished splits, and their fingerprint."""
    phase, done, mark = position["history"].get("open", {}).get(key, (0, 0, ""))
    return phase, done, mark


def advance_partition(
    model: PipelineModel, node: Any, position: Json, key: str, at: tuple[int, int, str]
) -> Json:
    """Return the position after an epoch moved a partition to `at`: phase, splits done, fingerprint."""
    history = position["history"]
    spans = _done_spans(model, position)
    noted = {name: history[name] for name in ("as_of", "renewed", "since", "refresh") if name in history}
    still_open = {name: value for name, value in history.get("open", {}).items() if name != key}
    if at[0] >= bounded_phases(node):
        spans = _join_adjacent([*spans, list(_span(model, key))])
        if "since" in noted:
            noted["since"] = _join_adjacent([*noted["since"], list(_span(model, key))])
        if "refresh" in noted:
            noted["refresh"] = _without(noted["refresh"], *_span(model, key))
    else:
        still_open[key] = list(at)
    if noted.get("since") == spans:  # nothing is left of former snapshots
        noted = {name: value for name, value in noted.items() if name not in ("renewed", "since")}
    if not noted.get("refresh"):
        noted.pop("refresh", None)
    return _with_history(model, position, spans, noted, still_open)


def _with_history(
    model: PipelineModel, position: Json, done: list[list[str]], noted: Json, still_open: Json
) -> Json:
    """Return the position with these complete partitions, and those that are partly read."""
    after: Json = {"by": partitions_json(model.partitions), "done": done} | noted
    if all(is_partition_done(model, {"history": after}, name) for name in windows_of(model)):
        rest = {name: value for name, value in position.items() if name != "pins"}
        return rest | {"history": after | {"complete": True, "pins": pins_ref(position)}}
    return {"pins": {"ref": pins_ref(position)}} | position | {"history": after | {"open": still_open}}


def _join_adjacent(spans: Iterable[list[str]]) -> list[list[str]]:
    """Return the spans, with adjacent spans joined."""
    result: list[list[str]] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return result


def _without(spans: Iterable[list[str]], first: str, last: str) -> list[list[str]]:
    """Return the spans without the range from `first` to `last`. A value is a span that begins at its end."""
    result: list[list[str]] = []
    for start, end in spans:
        if (first, last) == (start, end):
            continue
        if start == end:
            result.append([start, end])
            continue
        parts = [[start, min(end, first)], [max(start, last), end]]
        result += [part for part in parts if part[0] < part[1]]
    return result


def completed_partitions(model: PipelineModel, position: Position) -> list[str]:
    """Return the partitions that all sources with history have completed."""
    spans = [
        _done_spans(model, position.get(name, {}))
        for name, node in model.sources.items()
        if bounded_phases(node)
    ]

    def is_done(first: str, last: str) -> bool:
        return all(any(start <= first and last <= end for start, end in each) for each in spans)

    return [key for key in windows_of(model) if is_done(*_span(model, key))]


def history_complete(model: PipelineModel, position: Position) -> bool:
    """Return whether all history is in every sink. True if there is no history."""
    return len(completed_partitions(model, position)) == len(windows_of(model))


def stream_begun(position: Position) -> bool:
    """Return whether stream rows are in the sinks: after a handoff, or after all history of other sources."""
    histories = [here["history"] for here in position.values() if "history" in here]
    if any("stream" in here for here in position.values() if "history" in here):
        return True
    return all(history.get("complete") for history in histories) and any(
        "stream" in here for here in position.values()
    )


def offsets(position: Json | None) -> dict[str, int]:
    """Return the offsets of an unbounded position, by partition."""
    return dict((position or {}).get("offsets", {}))


def is_before(here: Json | None, there: Json | None) -> bool:
    """Return whether `here` has not yet reached `there` in some partition."""
    mine = offsets(here)
    return any(mine.get(partition, 0) < offset for partition, offset in offsets(there).items())


def offset_lag(here: Json, there: Json) -> int:
    """Return the number of offsets between two unbounded positions. It is never negative."""
    mine = offsets(here)
    return sum(max(0, offset - mine.get(partition, 0)) for partition, offset in offsets(there).items())


def is_catching_up(positions: Iterable[Json]) -> bool:
    """Return whether some source has not yet passed the end that its stream had at the handoff."""
    return any(is_before(position.get("stream"), position.get("catch_up")) for position in positions)

"""Checks of a plugin object: its errors name the plugin, and its results match the contract."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import pyarrow as pa

from headrace.connectors.plugins.pickling import GUARDED, contract_error
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.sink_base import Sink
from headrace.connectors.source_base import BoundedSource, Snapshot
from headrace.connectors.stream_base import UnboundedSource
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.plugins.discovery import InstalledPlugin
from headrace.pipeline.plugins.runtime import plugin_error
from headrace.pipeline.protocol.epochs import CommitRecord, Json, WriteCounts
from headrace.pipeline.protocol.partitions import UnpartitionedRows
from headrace.pipeline.protocol.table_offsets import TableOffsets
from headrace.pipeline.sql.system_columns import HIDDEN

Check = Callable[[Any], str]
Made = TypeVar("Made")


def _is(*kinds: type) -> Check:
    names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    return lambda result: "" if isinstance(result, kinds) else f"{type(result).__name__}, and not {names}"


def _position(value: Any) -> str:
    """Check an unbounded position: JSON with offsets by partition. Return the problem, or ""."""
    offsets = value.get("offsets") if isinstance(value, Mapping) else None
    good = isinstance(offsets, Mapping) and all(
        isinstance(key, str) and isinstance(at, int) for key, at in offsets.items()
    )
    return (
        (_json(value) if good else 'what is no position such as {"offsets": {"0": 12}}')
        if isinstance(value, Mapping)
        else _is(dict)(value)
    )


def _json(value: Any) -> str:
    try:
        same = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError) as error:
        return f"what is no JSON: {error}"
    return "" if same else "what changes on its way through JSON (keys that are no texts, tuples)"


def _frame(value: Any) -> str:
    columns = getattr(value, "columns", None)
    if columns is None:
        return f"{type(value).__name__}, and not a DataFrame"
    lost = [name for name in HIDDEN if name not in columns]
    return f"rows without the hidden column {' and '.join(lost)}" if lost else ""


def _splits(value: Any) -> str:
    if not isinstance(value, list | tuple) or not all(isinstance(split, dict) for split in value):
        return f"{type(value).__name__}, and not a list of maps"
    return _json(list(value))


_CHECKS: Mapping[type, Mapping[str, Check]] = {
    BoundedSource: {
        "schema": _is(pa.Schema),
        "create_snapshot": lambda result: _is(Snapshot)(result) or _json(result.handle),
        "describe_snapshot": _is(Snapshot),
        "splits": _splits,
        "read": _frame,
        "check": lambda _: "",
        "read_end_offsets": _is(Mapping),
        "measure_offsets": _is(TableOffsets),
        "has_nulls": _is(bool),
        "count_unpartitioned_rows": _is(UnpartitionedRows),
        "release_snapshot": lambda _: "",
        "drop_stale_snapshots": lambda _: "",
        "describe": _is(dict),
        "close": lambda _: "",
    },
    UnboundedSource: {
        "schema": _is(pa.Schema),
        "initial_offsets": _position,
        "next_end_offsets": _position,
        "read": _frame,
        "offsets_for_time": _position,
        "earliest_offsets": _position,
        "find_filled_gaps": _is(Mapping),
        "end_offsets": _position,
        "backlog": _is(int, type(None)),
        "check_filter": lambda _: "",
        "check": lambda _: "",
        "commit": lambda _: "",
        "describe": _is(dict),
        "close": lambda _: "",
    },
    Sink: {
        "prepare": lambda _: "",
        "record": _is(CommitRecord, type(None)),
        "register": _is(CommitRecord),
        "write": _is(WriteCounts),
        "validate_target": lambda _: "",
        "find_conflicting_record": _is(CommitRecord, type(None)),
        "claims": _is(Sequence),
        "release": lambda _: "",
        "content": lambda _: "",
        "has_partial_epoch": _is(bool),
        "read_row_count": _is(tuple, type(None)),
        "describe": _is(dict),
        "close": lambda _: "",
    },
}


def create_checked(
    make: Callable[[], Made],
    contract: type[Made],
    installed_plugin: InstalledPlugin,
    node: str,
    checks: Mapping[str, Check] | None = None,
) -> Made:
    """Create a plugin's object and check its calls.

    Raise PluginError if it cannot be created or has another type.
    """
    with_blame = attribute_errors(make, installed_plugin, node, "being made")
    made = with_blame()
    if not isinstance(made, contract):
        what = f"it made {type(made).__name__}, which is no headrace.{contract.__name__}"
        raise contract_error(
            installed_plugin, what, node, f"Its class must be a subclass of headrace.{contract.__name__}."
        )
    names = _CHECKS[contract] if checks is None else checks
    for name, check in names.items():
        setattr(
            made,
            name,
            _wrap_call(
                attribute_errors(getattr(made, name), installed_plugin, node, f"`{name}`"),
                check,
                installed_plugin,
                node,
                name,
            ),
        )
    if "describe" in names:
        made.describe = _wrap_description(made.describe, installed_plugin, node)  # pyright: ignore[reportAttributeAccessIssue]
    setattr(made, GUARDED, tuple(names))
    return made


def _wrap_description(
    describe: Callable[[], Json], installed_plugin: InstalledPlugin, node: str
) -> Callable[[], Json]:
    """Wrap a plugin's description so that it is merged over the default one."""
    return lambda: (
        {"kind": installed_plugin.id, "asset_key": [*installed_plugin.id.split("."), node]} | describe()
    )


def attribute_errors(
    work: Callable[..., Any], installed_plugin: InstalledPlugin, node: str, doing: str
) -> Callable[..., Any]:
    """Wrap a function so that its errors name the plugin.

    Errors that the plugin raised as Headrace's own, and errors of rows that failed in Spark, stay as they
    are.
    """

    @wraps(work)
    def run(*args: Any, **more: Any) -> Any:
        try:
            return work(*args, **more)
        except HeadraceError as error:
            error.node = error.node or node
            raise
        except NotImplementedError:
            raise
        except Exception as error:
            if explained := explain_failure(error):
                explained.node = explained.node or node
                raise explained from error
            if _of_spark(error):
                raise
            raise plugin_error(error, installed_plugin, doing=doing, node=node) from error

    return run


def _of_spark(error: Exception) -> bool:
    """Return whether Spark failed while executing, which may pass, not while analyzing a query."""
    module, name = type(error).__module__, type(error).__name__
    return (
        module.startswith(("py4j", "pyspark"))
        and name not in ("AnalysisException", "ParseException")
        and not name.startswith("PySpark")
    )


def _wrap_call(
    work: Callable[..., Any], check: Check, installed_plugin: InstalledPlugin, node: str, name: str
) -> Callable[..., Any]:
    @wraps(work)
    def run(*args: Any, **more: Any) -> Any:
        result = work(*args, **more)
        if wrong := check(result):
            what = f"`{name}` returned {wrong}"
            raise contract_error(installed_plugin, what, node)
        return result

    return run

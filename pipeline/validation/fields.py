"""Checks of single nodes beyond their types: column types, keys that are columns, offsets, time zones."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.pipeline.errors import FileLocation, SchemaError, UserError
from headrace.pipeline.model import nodes
from headrace.pipeline.model.handler import handler_problems
from headrace.pipeline.model.http import EndpointConfig, find_request_errors
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.model.partitions import TimePartitionsConfig
from headrace.pipeline.model.telemetry import event_time_problem, label_problems
from headrace.pipeline.sql import statements
from headrace.pipeline.suggestions import suggest_closest
from headrace.pipeline.types.arrow import parse_type
from headrace.pipeline.validation.encoding import check_encoding

PlaceOf = Callable[..., FileLocation]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKETS = ("s3", "s3a", "gs", "abfss")
_NONDETERMINISTIC: Mapping[str, Callable[[str], Sequence[str]]] = {
    "clickhouse": statements.nondeterministic_in_clickhouse,
    # Evaluated once: the rows that pass are stored.
    "postgres": lambda _: (),
    "spark": statements.nondeterministic_filter_calls,
}
"""By the dialect of a source's filter."""
_OF_LINES = ("csv", "json", "text")
"""Formats of files whose rows are decoded one by one."""
_OF_NODE = 2
"""Parts of the path of a node."""


def check_values(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Yield all invalid values of a file."""
    yield from _labels(model, place)
    for name, source in model.sources.items():
        stream = _stream_of(source)
        path = ("sources", name, "unbounded_source") if source.type == "hybrid" else ("sources", name)
        if stream:
            yield from check_encoding(name, stream, source.primary_key, path, place)
            wrong = list(_schema(name, stream.schema_, (*path, "schema"), place))
            yield from wrong or _event_time(name, source, stream, place)
        if source.type == "kafka":
            yield from _starting_offsets(name, source.starting_offsets, place)
        if source.type == "hybrid":
            yield from _phases(name, source, place)
        if source.type == "file":
            yield from _files(name, source, place, "sources", name)
        if source.type == "clickhouse":
            yield from _table_or_query(name, source, place, "sources", name)
        yield from _key(name, source, place)
        yield from _filters(name, source, place)
    for name, node in model.transforms.items():
        for keys, problem in handler_problems(node) if node.type == "handler" else ():
            yield type(problem)(
                problem.message, hint=problem.hint, node=name, place=place("transforms", name, *keys)
            )
        yield from _programs(name, node, place)
    for part, result in (("sources", model.sources), ("sinks", model.sinks)):
        for name, node in result.items():
            for keys, problem in find_request_errors(node) if isinstance(node, EndpointConfig) else ():
                yield UserError(problem.message, hint=problem.hint, node=name, place=place(part, name, *keys))
    yield from _timezones(model, place)


def _filters(name: str, source: Any, place: PlaceOf) -> Iterator[UserError]:
    """Yield filters that can return different rows when an epoch is read again, for example after a crash."""
    parts: list[tuple[tuple[str | int, ...], Any]] = [((), source)]
    if source.type == "hybrid":
        parts = [(("bounded_sources", at), part) for at, part in enumerate(source.bounded_sources)]
        parts.append((("unbounded_source",), source.unbounded_source))
    for path, part in parts:
        dialect = getattr(getattr(part, "config", part), "filter_dialect", None)
        if dialect is None:  # a plugin's source: its options are its own
            continue
        if calls := _NONDETERMINISTIC[dialect](getattr(part, "filter", None) or "true"):
            msg = f"`{calls[0]}` in `filter` lets other rows through when an epoch is read again"
            hint = (
                "Write it into the WHERE of a sql transform: there clocks tell the epoch's time, and"
                " rows of chance are staged."
            )
            yield UserError(msg, hint=hint, node=name, place=place("sources", name, *path, "filter"))


def _programs(name: str, node: Any, place: PlaceOf) -> Iterator[UserError]:
    """Check the columns and limits of script and python transforms."""
    if node.type not in ("script", "python"):
        return
    yield from _schema(name, node.schema_ or {}, ("transforms", name, "schema"), place)
    if node.schema_ == {}:
        hint = "Name the columns that come out, or leave `schema` out: then they are those that come in."
        yield UserError("`schema` is empty", hint=hint, node=name, place=place("transforms", name, "schema"))
    if node.type == "script" and not node.timeout:
        hint = "Write a time above 0, such as 1s."
        yield UserError("`timeout` is 0", hint=hint, node=name, place=place("transforms", name, "timeout"))


def _stream_of(source: Any) -> Any:
    """Return the unbounded part of a source, or None if the source is bounded."""
    if source.type == "hybrid":
        return source.unbounded_source
    return source if source.is_unbounded and hasattr(source, "data_format") else None


def _declares_columns(source: Any) -> bool:
    """Return whether a bounded source names all of its columns in `schema`."""
    return getattr(source, "declares_columns", False)


def _schema(name: str, schema: dict[str, str], path: tuple[Any, ...], place: PlaceOf) -> Iterator[UserError]:
    for column, kind in schema.items():
        try:
            parse_type(kind)
        except SchemaError as error:
            problem_text, _, supported = error.message.partition("supported: ")
            problem_text = problem_text.replace("'", "`").rstrip("; ")
            hint = f"Supported: {supported}." if supported else ""
            yield SchemaError(
                f"column `{column}`: {problem_text}", hint=hint, node=name, place=place(*path, column)
            )


def _starting_offsets(name: str, value: str, place: PlaceOf) -> Iterator[UserError]:
    if value not in ("earliest", "latest") and not (value.isascii() and value.isdigit()):
        msg = f"`starting_offsets` cannot be `{value}`"
        hint = 'Allowed: earliest, latest, or milliseconds since 1970 as text, such as "1735689600000".'
        yield UserError(msg, hint=hint, node=name, place=place("sources", name, "starting_offsets"))


def _phases(name: str, source: HybridSourceConfig, place: PlaceOf) -> Iterator[UserError]:
    """Yield invalid values of the phases of a hybrid source."""
    for index, phase in enumerate(source.bounded_sources):
        path = ("sources", name, "bounded_sources", index)
        if phase.source_type == "file":
            yield from _files(name, phase, place, *path)
        if phase.source_type == "clickhouse":
            yield from _table_or_query(name, phase, place, *path)
    last, table = source.bounded_sources[-1], source.offset_table
    start = source.unbounded_source.start_at
    allowed = "earliest" if table else "earliest, or milliseconds since 1970 as text"
    if start is not None and start != "earliest" and (table or not (start.isascii() and start.isdigit())):
        why = ": with `offset_table`, the stream starts where history ends" if table else ""
        msg = f"`unbounded_source.start_at` cannot be `{start}`{why}"
        where = place("sources", name, "unbounded_source", "start_at")
        yield UserError(msg, hint=f"Allowed: {allowed}.", node=name, place=where)
    if last.source_type == "file" and table is not None and table.table_name is not None:
        msg = "`offset_table.table_name` cannot be combined with files"
        hint = "Remove it where the files have the offset columns themselves; else use `handoff_lag`."
        yield UserError(msg, hint=hint, node=name, place=place("sources", name, "offset_table", "table_name"))


def _table_or_query(name: str, node: Any, place: PlaceOf, *path: Any) -> Iterator[UserError]:
    """Check that a ClickHouse source or phase has a table, or a query with what belongs to it."""
    inside = f"{path[2]}[{path[3]}]." if len(path) > _OF_NODE else ""

    def wrong(key: str, what: str, hint: str) -> UserError:
        return UserError(f"`{inside}{key}` {what}", hint=hint, node=name, place=place(*path, key))

    if not node.table_name and not node.query:
        hint = "Add `table_name: ...`, or `query: ...` with `split_column: ...`."
        yield wrong("table_name", "is missing", hint)
    if node.table_name and node.query:
        yield wrong("query", "and `table_name` exclude each other", "Remove one of them.")
    if node.query and not node.split_column:
        hint = "Add the column of the result that splits are ranges of, such as its key."
        yield wrong("split_column", "is missing, and `query` needs it", hint)
    if node.split_column and not node.query:
        hint = "Remove it: a table is split by its sorting key."
        yield wrong("split_column", "has no effect without `query`", hint)
    if node.query and node.snapshot == "none":
        hint = "Remove it: the result of a query is stored."
        yield wrong("snapshot", "cannot be `none` with `query`", hint)


def _files(name: str, node: Any, place: PlaceOf, *path: Any) -> Iterator[UserError]:
    """Check the path and the options of a file source or a file phase."""
    scheme = _SCHEME.match(node.path)
    if scheme and scheme[1].lower() not in ("file", *_BUCKETS):
        hint = (
            "Allowed: a path of this machine, such as /data/events or ./events/*.csv, or a bucket, such as"
            " s3://bucket/events, gs:// or abfss://."
        )
        yield UserError(
            f"`path`: unsupported scheme `{scheme[1]}://`", hint=hint, node=name, place=place(*path, "path")
        )
    if node.format in ("csv", "json") and not node.schema_:
        msg = f"`schema` is required when format is {node.format}"
        yield UserError(
            msg,
            hint="Add `schema:` with the columns and their types, such as `id: int64`.",
            node=name,
            place=place(*path),
        )
    yield from _schema(name, node.schema_, (*path, "schema"), place)
    for key in ("header", "delimiter", "null_value"):
        if key in node.model_fields_set and node.format != "csv":
            msg = f"`{key}` has no effect with `format: {node.format}`; it is for csv"
            yield UserError(msg, hint="Remove it, or change format.", node=name, place=place(*path, key))
    is_bounded = getattr(node, "mode", "bounded") == "bounded"
    if getattr(node, "on_error", "fail") != "fail" and (is_bounded or node.format not in _OF_LINES):
        what = "`mode: bounded`" if is_bounded else f"`format: {node.format}`"
        msg = f"`on_error: dead_letter` cannot be combined with {what}"
        hint = "Remove it. It is for `mode: continuous` with csv, json or text."
        yield UserError(msg, hint=hint, node=name, place=place(*path, "on_error"))
    for key in ("poll_interval", "min_file_age"):
        if key in node.model_fields_set and is_bounded:
            msg = f"`{key}` has no effect with `mode: bounded`"
            yield UserError(msg, hint="Remove it.", node=name, place=place(*path, key))
    if len(node.delimiter.encode()) != 1 or node.delimiter in '"\r\n':
        msg = f"`delimiter` must be one character, and is `{node.delimiter}`"
        yield UserError(
            msg,
            hint='Such as "," or ";", or "\\t" for a tab; not a quote.',
            node=name,
            place=place(*path, "delimiter"),
        )


def _key(name: str, source: Any, place: PlaceOf) -> Iterator[UserError]:
    """Check that key columns exist, if the file declares the columns, and the types of `declares_columns`."""
    if _declares_columns(source):
        yield from _schema(name, source.schema_, ("sources", name, "schema"), place)
    keys: list[tuple[str, ...]] = []
    stream = _stream_of(source)
    if stream and stream.schema_:
        keys.append(
            (
                *stream.schema_,
                *(
                    ("__kafka_partition", "__kafka_offset", "__kafka_timestamp")
                    if stream.include_metadata
                    else ()
                ),
            )
        )
    if _declares_columns(source):
        keys.append(tuple(source.schema_))
    keys += [
        phase.columns
        for phase in (source.bounded_sources if source.type == "hybrid" else [source])
        if getattr(phase, "columns", ())
    ]
    for columns in keys:
        if missing := [
            column
            for column in source.primary_key
            if column.lower() not in {known.lower() for known in columns}
        ]:
            msg = (
                f"Primary key validation failed: columns {_quote_names(missing)} not"
                f" found{suggest_closest(missing[0], columns)}"
            )
            yield SchemaError(
                msg,
                hint=f"Available columns: {_quote_names(columns)}.",
                node=name,
                place=place("sources", name, "primary_key"),
            )
            return


def _labels(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    for part in ("sources", "transforms", "sinks"):
        for name, node in getattr(model, part).items():
            for label, problem in label_problems(node):
                where = place(part, name, "telemetry", "labels", *([label] if label else []))
                yield UserError(problem.message, hint=problem.hint, node=name, place=where)


def _event_time(name: str, source: Any, stream: Any, place: PlaceOf) -> Iterator[UserError]:
    """Check event times if the file declares the columns. Otherwise `headrace validate` reads the source."""
    if source.telemetry is None or source.telemetry.event_time is None or not stream.schema_:
        return
    columns = {column: parse_type(kind) for column, kind in stream.schema_.items()}
    if problem := event_time_problem(source.telemetry.event_time, columns):
        where = place("sources", name, "telemetry", "event_time", "column")
        yield SchemaError(problem.message, hint=problem.hint, node=name, place=where)


def _quote_names(names: Any) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _timezones(model: nodes.PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Yield time zones that the tz database lacks."""
    by = model.partitions if isinstance(model.partitions, TimePartitionsConfig) else None
    for part, config in (("schedule", model.schedule), ("partitions", by)):
        if config is None:
            continue
        try:
            zoneinfo.ZoneInfo(config.timezone)
        except (KeyError, ValueError, OSError):
            closest = suggest_closest(config.timezone, zoneinfo.available_timezones())
            msg = f"time zone `{config.timezone}` is not known{closest}"
            hint = "Write a name of the tz database, such as UTC or Europe/Berlin."
            yield UserError(msg, hint=hint, place=place(part, "timezone"))

"""Mistakes and warnings for the dynamic tables of a pipeline file.

They are checked once its nodes are valid.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.pipeline.errors import UserError
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.sql import dynamic_tables
from headrace.pipeline.suggestions import suggest_closest
from headrace.pipeline.validation.fields import PlaceOf


def check_tables(model: PipelineModel, place: PlaceOf) -> list[UserError]:
    """Return all mistakes: unknown tables, tables of another source, values stored twice, cycles."""
    problems = [*_calls(model, place), *_check_shared_tables(model, place), *_names(model, place)]
    if not problems:
        problems += _circles(model, place)
    return problems


def _calls(model: PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    there = graph.dynamic_tables(model)
    for name, node in model.transforms.items():
        try:
            names = graph.looked_up_tables(model, name)
        except UserError as error:
            yield UserError(error.message, hint=error.hint, node=name, place=place("transforms", name, "sql"))
            continue
        for table in names:
            where = place("transforms", name, "sql")
            if table not in there:
                msg = (
                    f"dynamic table '{table}' is used in SQL transform but not defined in pipeline"
                    f" topology{suggest_closest(table, there)}"
                )
                known = (
                    f"Dynamic tables: {', '.join(there)}."
                    if there
                    else "There are none; add one to `transforms`."
                )
                yield UserError(msg, hint=known, node=name, place=where)
                continue
            filled, read = graph.upstream_sources(model, table), graph.upstream_sources(model, name)
            if filled and node.type == "sql" and not set(filled) & set(read):
                shown = ", ".join(read)
                msg = (
                    f"dynamic table '{table}' uses source '{', '.join(filled)}' but SQL transform uses"
                    f" source '{shown}'"
                )
                hint = (
                    "Only rows of the source whose epochs fill a table can look it up. Postgres: leave"
                    " `sql` out."
                )
                yield UserError(f"{msg}; both must use the same source", hint=hint, node=name, place=where)


def _check_shared_tables(model: PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    seen: dict[str, str] = {}
    for name, node in graph.dynamic_tables(model).items():
        if node.in_memory and (other := seen.setdefault(node.backend_entity_name, name)) != name:
            msg = f"holds the same values in memory as `{other}`: {node.backend_entity_name}"
            hint = "Ask one table under one name, or give one of the two another backend_entity_name."
            yield UserError(msg, hint=hint, node=name, place=place("transforms", name, "backend_entity_name"))


def _names(model: PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Check Postgres names: `table` or `schema.table`. If the schema is set twice, both must be the same."""
    for name, node in graph.dynamic_tables(model).items():
        schema, _, _ = node.backend_entity_name.rpartition(".")
        where = place("transforms", name, "backend_entity_name")
        if not node.in_memory and (
            "." in schema or node.backend_entity_name.strip(".") != node.backend_entity_name
        ):
            msg = f"`{node.backend_entity_name}` is no name of a table"
            yield UserError(msg, hint="Write `table` or `schema.table`.", node=name, place=where)
        elif not node.in_memory and schema and node.schema_ not in (None, schema):
            msg = (
                f"the table's schema is `{node.schema_}` by `schema`, and `{schema}` by `backend_entity_name`"
            )
            yield UserError(msg, hint="Say it once.", node=name, place=where)


def _circles(model: PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Yield cycles. A table must be filled before it is looked up, so dependent rows cannot fill it."""
    try:
        graph.steps(model)
    except UserError as error:
        hint = "Fill the table from a node that does not ask it."
        yield UserError(
            error.message, hint=hint, node=error.node, place=place("transforms", error.node, "sql")
        )


def table_warnings(model: PipelineModel, place: PlaceOf) -> Iterator[UserError]:
    """Yield warnings: keys without effect, and tables that no node fills or looks up."""
    called = {table for name in model.transforms for table in graph.looked_up_tables(model, name)}
    for name, node in graph.dynamic_tables(model).items():
        outside = {
            "schema_": "schema",
            "column": "",
            "time_column": "",
            "cache": "",
            "cache_refresh_debounce_ms": "",
        }
        for field, key in outside.items():
            if node.in_memory and field in node.model_fields_set:
                where = place("transforms", name, key or field)
                yield UserError(
                    f"`{key or field}` has no effect",
                    hint="It is for tables in Postgres.",
                    node=name,
                    place=where,
                )
        if not node.in_memory and node.cache and node.time_column is None:
            hint = "A cache reads what is new by the `time_column`. Name one, or remove `cache`."
            yield UserError(
                "`cache` has no effect without `time_column`",
                hint=hint,
                node=name,
                place=place("transforms", name, "cache"),
            )
        if node.telemetry is not None and node.telemetry.event_time is not None:
            hint = "No rows leave a dynamic table. Say it at the node that fills it."
            yield UserError(
                "`event_time` has no effect",
                hint=hint,
                node=name,
                place=place("transforms", name, "telemetry", "event_time"),
            )
        if node.in_memory and node.sql is None:
            yield UserError(
                "nothing fills it: every check is false",
                hint="Add `sql`.",
                node=name,
                place=place("transforms", name),
            )
        if name not in called:
            hint = f"Ask it with {dynamic_tables.FUNCTION}('{name}', column) in a sql transform."
            yield UserError("no SQL asks it", hint=hint, node=name, place=place("transforms", name))

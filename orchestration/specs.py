"""How a pipeline's assets look before anything has run: keys, dependencies, kinds, columns, checks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import dagster as dg

from headrace.orchestration.columns import ColumnBook
from headrace.orchestration.metadata import WHAT_CHECKS_SAY
from headrace.orchestration.pipelines import PIPELINE_TAG, Physical, Pipeline, checks_of
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.model import graph

SOURCE_GROUP = "sources"
BROKEN_GROUP = "broken"


def sink_specs(pipeline: Pipeline, book: ColumnBook) -> list[dg.AssetSpec]:
    """A spec per sink, at its physical key, behind the physical keys of the sources whose rows reach it."""
    return [_sink_spec(pipeline, sink, book) for sink in pipeline.sinks]


def check_specs(pipeline: Pipeline) -> list[dg.AssetCheckSpec]:
    """Blocking checks per sink. They speak for the whole sink, so they have no partitions of their own."""
    return [
        dg.AssetCheckSpec(name, asset=pipeline.sinks[sink].key, blocking=True, description=WHAT_CHECKS_SAY[name])
        for sink in pipeline.sinks
        for name in checks_of(pipeline, sink)
    ]


def source_specs(pipelines: Sequence[Pipeline]) -> list[dg.AssetSpec]:
    """External assets for what the pipelines of a whole code location read or ask, each once, without those that one of them writes.

    They have the columns that a reader's file names. One with a single reader stands in that pipeline's group.
    """
    readers = Counter(thing.key for pipeline in pipelines for thing in {*chain(*pipeline.sources.values()), *pipeline.tables.values()})
    written = {physical.key for pipeline in pipelines for physical in pipeline.sinks.values()}
    found: dict[dg.AssetKey, dg.AssetSpec] = {}
    for pipeline in pipelines:
        book = ColumnBook(pipeline)
        for name, things in [*pipeline.sources.items(), *((name, (table,)) for name, table in pipeline.tables.items())]:
            for physical in things:
                if physical.key not in written and physical.key not in found:
                    metadata = _physical_metadata(physical) | _columns(book, name)
                    group = pipeline.name if readers[physical.key] == 1 else SOURCE_GROUP
                    found[physical.key] = dg.AssetSpec(physical.key, kinds={physical.kind}, group_name=group, metadata=metadata)
    return list(found.values())


def broken_asset(path: Path, error: HeadraceError) -> dg.AssetsDefinition:
    """Stands for a pipeline file with mistakes: seen in the graph, its description says what and where, and it never runs green."""

    @dg.asset(
        key=[BROKEN_GROUP, path.stem],
        group_name=BROKEN_GROUP,
        description=f"**{path} cannot be loaded.**\n\n```\n{error}\n```\n\nMend the file and reload the code location.",
        metadata={"dagster/code_references": _code(path, _first_line(error))},
        tags={"headrace/broken": ""},
        kinds={"yaml"},
    )
    def broken() -> None:
        raise dg.Failure(description=str(error), allow_retries=False)

    return broken


def _sink_spec(pipeline: Pipeline, sink: str, book: ColumnBook) -> dg.AssetSpec:
    physical, file = pipeline.sinks[sink], pipeline.file
    place = file.place("sinks", sink)
    return dg.AssetSpec(
        physical.key,
        deps=[*dict.fromkeys(_upstream(pipeline, sink))],
        description=f"Sink `{sink}` of pipeline `{file.name}` ({Path(file.path).name}).",
        metadata=_physical_metadata(physical)
        | _columns(book, sink)
        | {
            "headrace/sink": sink,
            "headrace/delivery": file.model.sinks[sink].delivery or ("exactly_once" if sink in pipeline.proven else "at_least_once"),
            "dagster/code_references": _code(Path(place.file), place.line or 1),
        },
        kinds={physical.kind, "spark"},
        tags={PIPELINE_TAG: pipeline.name},
        group_name=pipeline.name,
        partitions_def=pipeline.partitions,
    )


def _upstream(pipeline: Pipeline, sink: str) -> Iterator[dg.AssetKey]:
    """The physical keys of sources and of tables that were asked; a table that the pipeline writes itself is no input to it."""
    model, own = pipeline.file.model, {physical.key for physical in pipeline.sinks.values()}
    for source in graph.upstream_sources(model, sink):
        yield from (thing.key for thing in pipeline.sources[source])
    for name in graph.upstream_looked_up_tables(model, sink):
        if name in pipeline.tables and pipeline.tables[name].key not in own:
            yield pipeline.tables[name].key


def _physical_metadata(physical: Physical) -> dict[str, Any]:
    named = {"dagster/table_name": physical.table_name, "dagster/uri": physical.location, "dagster/storage_kind": physical.kind}
    return {name: value for name, value in named.items() if value}


def _columns(book: ColumnBook, node: str) -> dict[str, Any]:
    schema = book.schema(node)
    return {"dagster/column_schema": schema} if schema else {}


def _code(path: Path, line: int) -> dg.CodeReferencesMetadataValue:
    with warnings.catch_warnings():  # two per sink on every start, about classes that only show a link
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.CodeReferencesMetadataValue(code_references=[dg.LocalFileCodeReference(file_path=str(path.resolve()), line_number=line)])


def _first_line(error: HeadraceError) -> int:
    first = getattr(error, "problems", (error,))[0]
    return first.place.line if first.place and first.place.line else 1

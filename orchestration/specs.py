"""Asset specs of a pipeline before any run: keys, dependencies, kinds, columns, checks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import dagster as dg

from headrace.orchestration.asset_keys import choose_keys
from headrace.orchestration.columns import ColumnCatalog
from headrace.orchestration.drawing import draw_pipeline
from headrace.orchestration.metadata import CHECK_DESCRIPTIONS
from headrace.orchestration.options import to_freshness_policy
from headrace.orchestration.pipelines import (
    PIPELINE_TAG,
    PhysicalAsset,
    Pipeline,
    applicable_checks,
    declared_checks,
    to_asset_key,
)
from headrace.pipeline.errors import HeadraceError, UserError
from headrace.pipeline.model import graph

SOURCE_GROUP = "sources"
BROKEN_GROUP = "broken"
SOURCE_LABEL, SINK_LABEL = "source", "sink"
"""Kinds. The nodes of a graph show only the last part of their keys, which source and sink often share."""


def sink_specs(pipeline: Pipeline, catalog: ColumnCatalog) -> list[dg.AssetSpec]:
    """Return a spec per sink at its physical key. It depends on the sources whose rows reach the sink."""
    return [_sink_spec(pipeline, sink, catalog) for sink in pipeline.sinks]


def check_specs(pipeline: Pipeline) -> list[dg.AssetCheckSpec]:
    """Return the checks per sink, blocking unless the file declares a warning.

    They cover the whole sink, so they have no partitions.
    """
    return [
        _check_spec(pipeline, sink, name)
        for sink in pipeline.sinks
        for name in applicable_checks(pipeline, sink)
    ]


def _check_spec(pipeline: Pipeline, sink: str, name: str) -> dg.AssetCheckSpec:
    declared, key = declared_checks(pipeline, sink).get(name), pipeline.sinks[sink].key
    if declared is None:
        return dg.AssetCheckSpec(name, asset=key, blocking=True, description=CHECK_DESCRIPTIONS[name])
    place = pipeline.file.place("sinks", sink, "checks", name)
    return dg.AssetCheckSpec(
        name,
        asset=key,
        blocking=declared.severity == "error",
        description=declared.description
        or f"`{declared.rule}`, declared in {Path(place.file).name}:{place.line}.",
    )


def source_specs(pipelines: Sequence[Pipeline]) -> list[dg.AssetSpec]:
    """Return external assets for the inputs of all pipelines, each once, without the pipelines' targets.

    `pipelines` are all of a code location. An asset has the columns that a reader's file lists. An asset with
    one reader is in that pipeline's group.
    """
    readers = Counter(
        asset.key
        for pipeline in pipelines
        for asset in {*chain(*pipeline.sources.values()), *pipeline.dynamic_tables.values()}
    )
    written = {physical.key for pipeline in pipelines for physical in pipeline.sinks.values()}
    specs: dict[dg.AssetKey, dg.AssetSpec] = {}
    for pipeline in pipelines:
        catalog = ColumnCatalog(pipeline)
        for name, assets in [
            *pipeline.sources.items(),
            *((name, (table,)) for name, table in pipeline.dynamic_tables.items()),
        ]:
            for physical in assets:
                if physical.key not in written and physical.key not in specs:
                    metadata = _physical_metadata(physical) | _column_metadata(catalog, name)
                    group = pipeline.group if readers[physical.key] == 1 else SOURCE_GROUP
                    specs[physical.key] = dg.AssetSpec(
                        physical.key,
                        kinds={physical.storage_kind, SOURCE_LABEL},
                        group_name=group,
                        metadata=metadata,
                    )
    return list(specs.values())


def broken_assets(errors: Mapping[Path, UserError]) -> list[dg.AssetsDefinition]:
    """Return an asset per file with mistakes.

    It describes them with their locations, and every materialization fails.
    """
    keys = choose_keys([_file_asset(path) for path in errors])
    return [_broken_asset(keys[_file_asset(path).address], path, error) for path, error in errors.items()]


def _file_asset(path: Path) -> PhysicalAsset:
    """Return the file as a resource, so that files of one name in two folders have different keys."""
    name = (BROKEN_GROUP, path.stem)
    folders = [part for part in path.absolute().parent.parts if part != path.anchor]
    return PhysicalAsset(to_asset_key(name), "yaml", name, (BROKEN_GROUP, *folders, path.stem))


def _broken_asset(key: dg.AssetKey, path: Path, error: UserError) -> dg.AssetsDefinition:
    @dg.asset(
        key=key,
        group_name=BROKEN_GROUP,
        description=f"**{path} cannot be loaded.**\n\n```\n{error}\n```\n\nFix the file and reload the code"
        " location.",
        metadata={
            "dagster/code_references": _code_references(path, _first_line(error)),
            "mistakes": dg.MetadataValue.text(str(error)),
        },
        tags={"headrace/broken": ""},
        kinds={"yaml"},
    )
    def broken() -> None:
        raise dg.Failure(description=str(error), allow_retries=False)

    return broken


def _sink_spec(pipeline: Pipeline, sink: str, catalog: ColumnCatalog) -> dg.AssetSpec:
    physical, file, config = pipeline.sinks[sink], pipeline.file, pipeline.asset_config
    location = file.place("sinks", sink)
    return dg.AssetSpec(
        physical.key,
        deps=[*dict.fromkeys(_upstream_keys(pipeline, sink))],
        description=(f"{config.description}\n\n" if config.description else "")
        + f"Sink `{sink}` of pipeline `{file.name}` ({Path(file.path).name}).\n\n"
        + draw_pipeline(pipeline),
        metadata=_physical_metadata(physical)
        | _column_metadata(catalog, sink)
        | {
            "headrace/sink": sink,
            "headrace/delivery": file.model.sinks[sink].delivery
            or ("exactly_once" if sink in pipeline.verifiable_sinks else "at_least_once"),
            "dagster/code_references": _code_references(Path(location.file), location.line or 1),
        },
        kinds={physical.storage_kind, "spark", SINK_LABEL},
        tags=config.tags | {PIPELINE_TAG: pipeline.name},
        owners=list(config.owners),
        group_name=pipeline.group,
        freshness_policy=to_freshness_policy(config.freshness, file.place("freshness")),
        partitions_def=pipeline.partitions,
        skippable=True,  # a run that writes nothing reports an observation
    )


def _upstream_keys(pipeline: Pipeline, sink: str) -> Iterator[dg.AssetKey]:
    """Yield the keys of sources and of looked-up tables.

    A table that the pipeline writes itself is not an input.
    """
    model, own = pipeline.file.model, {physical.key for physical in pipeline.sinks.values()}
    for source in graph.upstream_sources(model, sink):
        yield from (asset.key for asset in pipeline.sources[source])
    for name in graph.upstream_looked_up_tables(model, sink):
        if name in pipeline.dynamic_tables and pipeline.dynamic_tables[name].key not in own:
            yield pipeline.dynamic_tables[name].key


def _physical_metadata(physical: PhysicalAsset) -> dict[str, Any]:
    values = {
        "dagster/table_name": physical.table_name,
        "dagster/uri": physical.location,
        "dagster/storage_kind": physical.storage_kind,
    }
    return {name: value for name, value in values.items() if value}


def _column_metadata(catalog: ColumnCatalog, node: str) -> dict[str, Any]:
    schema = catalog.schema(node)
    return {"dagster/column_schema": schema} if schema else {}


def _code_references(path: Path, line: int) -> dg.CodeReferencesMetadataValue:
    with warnings.catch_warnings():  # two warnings per sink on every start, for classes that only show a link
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.CodeReferencesMetadataValue(
            code_references=[dg.LocalFileCodeReference(file_path=str(path.resolve()), line_number=line)]
        )


def _first_line(error: HeadraceError) -> int:
    first = getattr(error, "problems", (error,))[0]
    return first.place.line if first.place and first.place.line else 1

"""A pipeline drawn as a tree of text, for descriptions in the Dagster UI."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.orchestration.pipelines import PhysicalAsset, Pipeline
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import errors_outputs


def draw_pipeline(pipeline: Pipeline) -> str:
    """Return the nodes as a Markdown code block: each source, and below it what its rows reach.

    A node with several inputs is drawn below the first one.
    """
    drawn: set[str] = set()
    lines = [line for source in pipeline.sources for line in _draw(pipeline, source, drawn)]
    return "\n".join(["```", *lines, "```"])


def _draw(pipeline: Pipeline, node: str, drawn: set[str]) -> Iterator[str]:
    if node in drawn:
        yield f"{node} (see above)"
        return
    drawn.add(node)
    yield f"{node}: {_describe(pipeline, node)}"
    readers = _readers(pipeline, node)
    for number, reader in enumerate(readers, 1):
        first, following = ("└─ ", "   ") if number == len(readers) else ("├─ ", "│  ")
        for index, line in enumerate(_draw(pipeline, reader, drawn)):
            yield (following if index else first) + line


def _readers(pipeline: Pipeline, node: str) -> list[str]:
    model = pipeline.file.model
    names = [*errors_outputs(model), *graph.in_order(model), *model.sinks]
    return [name for name in names if node in graph.inputs_of(model, name)]


def _describe(pipeline: Pipeline, node: str) -> str:
    if node in pipeline.sources:
        return ", then ".join(_describe_asset(asset) for asset in pipeline.sources[node])
    if node in pipeline.sinks:
        return _describe_asset(pipeline.sinks[node])
    transform = pipeline.file.model.transforms.get(node)
    return "rejected rows" if transform is None else transform.type


def _describe_asset(asset: PhysicalAsset) -> str:
    return f"{asset.storage_kind} {asset.table_name or asset.location or ''}".rstrip()

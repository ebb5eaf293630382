"""Errors outputs: the rows that a source or a transform rejects, as one more node: `<node>.errors`.

Only sinks read them. A row has its reason, its epoch, and the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.pipeline.types.arrow import parse_type

if TYPE_CHECKING:
    from headrace.pipeline.model.nodes import PipelineModel

_SUFFIX = ".errors"
NODE, REASON, EPOCH = "node", "reason", "epoch"
LIMITED_ROWS = 100
"""`max_error_rate` applies to epochs in which a node reads at least so many rows."""
OPERATION, POSITION, ROW = "operation", "position", "row"
_TRANSFORM_COLUMNS = {OPERATION: "string", POSITION: "string", ROW: "string"}
"""The original of a row that a transform rejects. Its position and its columns are JSON."""


@dataclass(frozen=True, slots=True)
class ErrorsOutput:
    """The rejected rows of one node. `columns` are those of the original, with their types."""

    node: str
    columns: Mapping[str, str]
    primary_key: tuple[str, ...]
    max_error_rate: float

    @property
    def name(self) -> str:
        """The name that sinks read it by."""
        return errors_name(self.node)

    @property
    def schema(self) -> pa.Schema:
        """The columns: node, reason and epoch, then those of the original."""
        own = [(NODE, pa.string()), (REASON, pa.string()), (EPOCH, pa.int64())]
        return pa.schema([*own, *((name, parse_type(kind)) for name, kind in self.columns.items())])


def errors_name(node: str) -> str:
    """Return the name by which sinks read the rejected rows of a node."""
    return node + _SUFFIX


def errors_output(name: str, source: Any) -> ErrorsOutput | None:
    """Return the errors output of a source, or None if a rejected row fails the epoch."""
    stream = getattr(source, "unbounded_source", source)
    if getattr(stream, "on_error", "fail") != "dead_letter":
        return None
    config = getattr(stream, "config", type(stream))
    return ErrorsOutput(name, config.error_columns, config.error_key, stream.max_error_rate)


def transform_errors(name: str, transform: Any) -> ErrorsOutput | None:
    """Return the errors output of a transform, or None if a row that it cannot compute fails the epoch."""
    if getattr(transform, "on_error", "fail") != "dead_letter":
        return None
    return ErrorsOutput(name, _TRANSFORM_COLUMNS, (EPOCH, POSITION), transform.max_error_rate)


def error_sinks(sinks: Mapping[str, str]) -> dict[str, str]:
    """Return the sinks that read rejected rows, with the node that rejects them.

    `sinks` have the node that they read.
    """
    return {name: node.removesuffix(_SUFFIX) for name, node in sinks.items() if node.endswith(_SUFFIX)}


def rejected_rows(sinks: Mapping[str, str], rows: Mapping[str, int]) -> dict[str, int]:
    """Return the rejected rows by node. `sinks` are those of `error_sinks`, `rows` what sinks took."""
    result = dict.fromkeys(sinks.values(), 0)
    for name, node in sinks.items():
        result[node] = max(result[node], rows.get(name, 0))
    return result


def with_errors(model: PipelineModel, schemas: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Return the schemas of nodes with those of the errors outputs of the same nodes."""
    outputs = errors_outputs(model)
    return {**schemas, **{name: one.schema for name, one in outputs.items() if one.node in schemas}}


def errors_outputs(model: PipelineModel) -> dict[str, ErrorsOutput]:
    """Return the errors outputs of a file's sources and transforms, by name."""
    sources = (errors_output(name, source) for name, source in model.sources.items())
    transforms = (transform_errors(name, transform) for name, transform in model.transforms.items())
    return {one.name: one for one in (*sources, *transforms) if one is not None}

"""Errors outputs: the rows that a source rejects, as one more node of the graph: `<source>.errors`.

Only sinks read them. A row has its reason, its epoch, and the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.pipeline.types.arrow import parse_type

_SUFFIX = ".errors"
NODE, REASON, EPOCH = "node", "reason", "epoch"
LIMITED_ROWS = 100
"""`max_error_rate` applies to epochs that read at least so many rows of a source."""


@dataclass(frozen=True, slots=True)
class ErrorsOutput:
    """The rejected rows of one source. `columns` are those of the original, with their types."""

    source: str
    columns: Mapping[str, str]
    primary_key: tuple[str, ...]
    max_error_rate: float

    @property
    def name(self) -> str:
        """The name that sinks read it by."""
        return errors_name(self.source)

    @property
    def schema(self) -> pa.Schema:
        """The columns: node, reason and epoch, then those of the original."""
        own = [(NODE, pa.string()), (REASON, pa.string()), (EPOCH, pa.int64())]
        return pa.schema([*own, *((name, parse_type(kind)) for name, kind in self.columns.items())])


def errors_name(source: str) -> str:
    """Return the name by which sinks read the rejected rows of a source."""
    return source + _SUFFIX


def errors_output(name: str, source: Any) -> ErrorsOutput | None:
    """Return the errors output of a source, or None if a rejected row fails the epoch."""
    stream = getattr(source, "unbounded_source", source)
    if getattr(stream, "on_error", "fail") != "dead_letter":
        return None
    config = getattr(stream, "config", type(stream))
    return ErrorsOutput(name, config.error_columns, config.error_key, stream.max_error_rate)


def error_sinks(sinks: Mapping[str, str]) -> dict[str, str]:
    """Return the sinks that read rejected rows, with their source. `sinks` have the node that they read."""
    return {name: node.removesuffix(_SUFFIX) for name, node in sinks.items() if node.endswith(_SUFFIX)}


def rejected_rows(sinks: Mapping[str, str], rows: Mapping[str, int]) -> dict[str, int]:
    """Return the rejected rows by source. `sinks` are those of `error_sinks`, `rows` what sinks took."""
    found = dict.fromkeys(sinks.values(), 0)
    for name, source in sinks.items():
        found[source] = max(found[source], rows.get(name, 0))
    return found


def with_errors(sources: Mapping[str, Any], schemas: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Return the schemas of sources with those of their errors outputs."""
    outputs = errors_outputs(sources)
    return {**schemas, **{name: one.schema for name, one in outputs.items() if one.source in schemas}}


def errors_outputs(sources: Mapping[str, Any]) -> dict[str, ErrorsOutput]:
    """Return the errors outputs of a file's sources, by name."""
    found = [errors_output(name, source) for name, source in sources.items()]
    return {one.name: one for one in found if one is not None}

"""Which row of a key a sink keeps, and whether the file guarantees that order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.connectors import registry
from headrace.jobs.explain.model import Order
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol import positions

LAST = "the last row by source, partition, offset"
Spreads = Callable[[str, Sequence[str]], str | None]
"""Return why the history of a source may have rows of one key in several splits.

"" if it does not, None if unknown.
"""
Carried = Callable[[str], Sequence[str]]
"""The columns of a source that arrive unchanged in the key."""


def order_of(model: PipelineModel, sink: str, spreads: Spreads, carried: Carried) -> Order | None:
    """Return the order at a sink; None at one that keeps every row, or none."""
    node: Any = model.sinks[sink]
    key = graph.key_of(model, sink)
    if not key or not registry.sink_class(node).capabilities.upsert:
        return None
    if version := getattr(node, "version_column", None):
        return Order(
            f"the row with the highest `{version}`, and of equal ones {LAST}",
            True,
            tuple(_order_by_version(version)),
        )
    guaranteed = dict(_facts(model, sink, ", ".join(key), spreads, carried))
    return Order(_wins(node), all(guaranteed.values()), tuple(guaranteed))


def _wins(node: Any) -> str:
    if getattr(node, "on_conflict", "update") == "nothing":
        return "the first row by source, partition, offset"
    where: Mapping[str, str] = getattr(node, "update_where", {})
    condition = " and ".join(f"its `{column}` {op} that of the row there" for column, op in where.items())
    return f"{LAST}, where {condition}" if condition else LAST


def _order_by_version(version: str) -> Iterator[str]:
    yield f"guaranteed: rows compete by `{version}` wherever and whenever they arrive"
    yield f"a delete whose `{version}` is null ends what came before it; others compete by their `{version}`"
    yield (
        "no deleted keys are kept: a row that comes in a later epoch than the delete of its key is"
        f" inserted, whatever its `{version}`"
    )


def _facts(
    model: PipelineModel, sink: str, key: str, spreads: Spreads, carried: Carried
) -> Iterator[tuple[str, bool]]:
    """Yield the facts that the order depends on, and whether each is guaranteed."""
    if graph.reads_errors(model, sink):
        yield "guaranteed: the key is the position of the rejected row", True
        return
    sources = graph.upstream_sources(model, sink)
    if len(sources) > 1:
        shown = ", ".join(f"`{name}`" for name in sources)
        yield f"assumed: {shown} have no key ({key}) in common; of one epoch the later source wins", False
    for name in sources:
        node: Any = model.sources[name]
        yield from _wider_key(name, node.primary_key, carried(name))
        if positions.bounded_phases(node):
            yield from _history(model, name, spreads, carried(name))
        if positions.is_unbounded(node) and not model.job_mode:
            topic = getattr(getattr(node, "unbounded_source", node), "topic", name)
            if getattr(getattr(node, "capabilities", None), "is_ordered", False):
                yield f"guaranteed: all rows of `{name}` are in one partition", True
                continue
            yield (
                (
                    f"assumed: one partition of `{topic}` has all messages of a key ({key}); the file cannot"
                    " show it"
                ),
                False,
            )


def _wider_key(name: str, own: Sequence[str], carried_key: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield what holds if a sink's key has the key of a source and more of its columns."""
    known = {column.lower() for column in own}
    more = [column for column in carried_key if column.lower() not in known]
    if more and known and len(more) + len(known) == len(carried_key):
        shown = ", ".join(f"`{column}`" for column in more)
        yield f"assumed: an update never changes {shown} of a row of `{name}`; else both rows stay", False


def _history(
    model: PipelineModel, name: str, spreads: Spreads, carried_key: Sequence[str]
) -> Iterator[tuple[str, bool]]:
    if model.partitions and model.partitions.column not in carried_key:
        if model.partitions.any_order:
            yield (
                f"assumed: one partition of the history of `{name}` has all rows of a key (any_order)",
                False,
            )
        else:
            yield "guaranteed: a partition of history is refused after a later one", True
    spread = spreads(name, carried_key)
    if spread == "":
        yield (
            f"guaranteed: splits keep all history rows of a key of `{name}` together, or in order",
            True,
        )
        return
    by_offset = getattr(model.sources[name], "offset_table", None) is not None
    if by_offset and spread is None:
        yield (
            f"unchecked: whether the sorting key of `{name}` keeps all history rows of a key in one split",
            False,
        )
    elif by_offset:
        yield (
            (
                f"assumed: the sorting key of `{name}` has the history rows of a key in the order of their"
                " offsets"
            ),
            False,
        )
    else:
        yield f"guaranteed: history rows of `{name}` go in the order of its splits", True

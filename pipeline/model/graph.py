"""The graph of a pipeline: the inputs and the key of each node."""

from __future__ import annotations

from typing import Any

from headrace.pipeline.errors import UserError
from headrace.pipeline.model import nodes
from headrace.pipeline.model.capabilities import Delivery
from headrace.pipeline.model.error_outputs import errors_outputs
from headrace.pipeline.model.hybrid import HybridSourceConfig
from headrace.pipeline.model.transforms import DynamicTableConfig
from headrace.pipeline.sql import dynamic_tables as dynamic


def inputs_of(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """Return the nodes that a transform or sink reads. A source has none. Raise UserError for invalid SQL.

    An errors output reads the node that rejects its rows.
    """
    if name in model.transforms:
        return model.transforms[name].inputs(name)
    if output := errors_outputs(model).get(name):
        return (output.node,)
    return (model.sinks[name].from_,) if name in model.sinks else ()


def dynamic_tables(model: nodes.PipelineModel) -> dict[str, DynamicTableConfig]:
    """Return the dynamic tables. They are among the transforms, and they output no rows."""
    return {name: node for name, node in model.transforms.items() if isinstance(node, DynamicTableConfig)}


def looked_up_tables(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """Return the dynamic tables that a transform's SQL looks up.

    Raise UserError for a call without a table.
    """
    node: Any = model.transforms.get(name)
    text = getattr(node, "sql", None)
    return dynamic.looked_up_tables(text, node=name, dialect=node.dialect) if isinstance(text, str) else ()


def in_order(model: nodes.PipelineModel) -> list[str]:
    """Return transforms with rows, each after its inputs. Raise UserError for a cycle."""
    there = dynamic_tables(model)
    return [name for name in steps(model) if name not in there]


def steps(model: nodes.PipelineModel) -> list[str]:
    """Return all transforms, each after its inputs. A dynamic table comes before its lookups.

    Raise UserError for a cycle.
    """
    done: list[str] = []
    open_: list[str] = []

    def visit(name: str) -> None:
        if name in done or name not in model.transforms:
            return
        if name in open_:
            msg = (
                f"transforms read each other in a circle: {' -> '.join([*open_[open_.index(name) :], name])}"
            )
            raise UserError(msg, node=name)
        open_.append(name)
        for upstream in (*inputs_of(model, name), *looked_up_tables(model, name)):
            visit(upstream)
        open_.pop()
        done.append(name)

    for name in model.transforms:
        visit(name)
    return done


def reads_errors(model: nodes.PipelineModel, sink: str) -> bool:
    """Return whether a sink reads the rejected rows of a node. History has none of a source."""
    return model.sinks[sink].from_ in errors_outputs(model)


def is_shared(sink: Any) -> bool:
    """Return whether a sink sets `share`: other pipelines also write its target. Plugins lack the option."""
    return bool(getattr(sink, "share", False))


def key_of(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """Return the node's primary key, or the one that its inputs agree on, or (). Dynamic tables have none."""
    known = {**model.nodes(), **errors_outputs(model)}
    if isinstance(known[name], DynamicTableConfig):
        return ()
    if own := known[name].primary_key:
        return own
    result = {key_of(model, upstream) for upstream in inputs_of(model, name) if upstream in known}
    return result.pop() if len(result) == 1 else ()


def has_late_key(model: nodes.PipelineModel, name: str) -> bool:
    """Return whether the node has no key yet, and may get one from a source at the start of a run."""
    if key_of(model, name):
        return False
    return any(
        getattr(model.sources[source], "has_late_key", False) for source in upstream_sources(model, name)
    )


def key_sources(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """Return the nodes that set this node's key: itself, or those it inherits from. Empty without a key."""
    if name not in model.nodes() or model.nodes()[name].primary_key:
        return (name,)
    if not key_of(model, name):
        return ()
    return tuple(
        dict.fromkeys(giver for upstream in inputs_of(model, name) for giver in key_sources(model, upstream))
    )


def rejecting_transforms(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """Return the transforms with dead letters whose rows reach a node, itself included."""
    outputs = errors_outputs(model).values()
    return tuple(
        one.node for one in outputs if one.node in model.transforms and is_upstream(model, one.node, name)
    )


def is_upstream(model: nodes.PipelineModel, node: str, name: str) -> bool:
    """Return whether rows of `node` reach the node `name`, which may be the same."""
    return name == node or any(is_upstream(model, node, upstream) for upstream in inputs_of(model, name))


def upstream_sources(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """Return the sources whose rows reach a node, in the file's order."""
    if name in model.sources:
        return (name,)
    result = {source for upstream in inputs_of(model, name) for source in upstream_sources(model, upstream)}
    return tuple(source for source in model.sources if source in result)


def streams_of(model: nodes.PipelineModel) -> tuple[Any, ...]:
    """Return the unbounded sources of a file, those of hybrid sources included, as nodes."""
    result = [
        source.unbounded_source.node() if isinstance(source, HybridSourceConfig) else source
        for source in model.sources.values()
    ]
    return tuple(source for source in result if source.is_unbounded)


def appending_sinks(model: nodes.PipelineModel, source: str) -> tuple[str, ...]:
    """Return the exactly-once sinks of a source that have no key to detect repeated rows."""
    return tuple(
        name
        for name, sink in model.sinks.items()
        if not (key_of(model, name) or lacks_commit_record(sink) or sink.delivery == "at_least_once")
        and source in upstream_sources(model, name)
    )


def upstream_looked_up_tables(model: nodes.PipelineModel, name: str) -> tuple[str, ...]:
    """Return the dynamic tables that were looked up for the rows of a node, in the file's order."""
    result = {*looked_up_tables(model, name)}.union(
        *(upstream_looked_up_tables(model, upstream) for upstream in inputs_of(model, name))
    )
    return tuple(table for table in dynamic_tables(model) if table in result)


def lacks_commit_record(sink: Any) -> bool:
    """Return whether a sink stores no commit record, so that rows can be duplicated there."""
    return sink.capabilities.delivery != Delivery.EXACTLY_ONCE


def partition_ordered_sinks(model: nodes.PipelineModel) -> list[str]:
    """Return the sinks whose rows depend on the order in which partitions of history are loaded.

    These are sinks with a key where the last row stays, unless a key has all its rows in one partition.
    """
    partitions = model.partitions
    if partitions is None or partitions.any_order:
        return []
    return [
        name
        for name, sink in model.sinks.items()
        if (key := key_of(model, name))
        and not reads_errors(model, name)
        and not lacks_commit_record(sink)
        and getattr(sink, "version_column", None) is None
        and partitions.column.lower() not in {column.lower() for column in key}
    ]

"""What a content audit compares: by which version of the file, from which epoch on, and why not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headrace.jobs.staging.determinism import nondeterministic_upstream
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import error_sinks
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json
from headrace.pipeline.protocol.ledger import Ledger


@dataclass(frozen=True, slots=True)
class AuditScope:
    """The epochs that are compared.

    `first` is the plan of the first one. `whole`: the target had no rows of this or another pipeline before
    it. `plans` are those with splits of history.
    """

    first: EpochPlan
    last: EpochPlan
    whole: bool
    plans: tuple[EpochPlan, ...]
    limits: tuple[str, ...] = ()


def refusal(model: PipelineModel, sink: str) -> str:
    """Return why the rows of a sink cannot be recomputed, or an empty string."""
    node: Any = model.sinks[sink]
    if node.delivery == "at_least_once":
        return "the sink is at-least-once by its file"
    if why := _epoch_values(model, sink):
        return why
    if impure := nondeterministic_upstream(model, sink):
        return f"the rows of `{impure[0]}` cannot be computed again"
    if getattr(node, "on_conflict", "update") == "nothing" or getattr(node, "update_where", None):
        return "`on_conflict: nothing` and `update_where` let other rows than the last one stay"
    if getattr(node, "share", False):
        return "other pipelines write the target too"
    unpinned = [
        name
        for name in graph.upstream_sources(model, sink)
        for part in getattr(model.sources[name], "bounded_sources", (model.sources[name],))
        if getattr(part, "snapshot", "clone") == "none"
    ]
    return f"the history of `{unpinned[0]}` is not pinned (`snapshot: none`)" if unpinned else ""


def _epoch_values(model: PipelineModel, sink: str) -> str:
    """Return which values of a sink depend on the epoch that wrote them, or an empty string."""
    if graph.reads_errors(model, sink):
        return "rejected rows have the number of the epoch that read them"
    tables = graph.dynamic_tables(model)
    return f"the values of the dynamic table `{next(iter(tables))}` depend on the epoch" if tables else ""


def find_scope(
    ledger: Ledger, model: PipelineModel, lane: str, sink: str, record: CommitRecord, joined: int
) -> AuditScope | str:
    """Return the epochs up to the commit record that the same file loaded, or why there are none.

    `model` is the file that wrote the last of them.
    """
    name, rejecting = model.name, graph.rejecting_transforms(model, sink)
    readers = error_sinks({one: node.from_ for one, node in model.sinks.items()})
    errors = {one: node for one, node in readers.items() if node in rejecting}
    first: EpochPlan | None = None
    last: EpochPlan | None = None
    plans: list[EpochPlan] = []
    compiled: dict[str, str] = {}
    number = 0
    for row in ledger.epochs(name, lane, 1, record.epoch):
        number = number or row.plan.number
        if row.plan.number <= joined:
            continue
        plan = row.plan
        for one, node in errors.items():
            if one in row.counts and row.counts[one].rows:
                return f"`{node}` rejected rows of epoch {plan.number}"
        if plan.pipeline_hash not in compiled:
            compiled[plan.pipeline_hash] = _rows_by(ledger.compiled(plan.pipeline_hash), sink)
        if last is not None and compiled[plan.pipeline_hash] != compiled[last.pipeline_hash]:
            first, plans = None, []
        first, last = first or plan, plan
        plans += [plan] if plan.splits else []
    if first is None or last is None or last.number != record.epoch:
        return (
            "the sink has no epoch yet"
            if record.epoch == joined
            else f"the ledger does not have epoch {record.epoch}"
        )
    limits = [] if first.number == 1 else [f"epochs before {first.number} are not compared"]
    whole = first.number == 1 and joined == 0 and record.baseline == 0
    if first.number == 1 and not whole:
        limits.append("the target had rows before the first epoch")
    return AuditScope(first, last, whole, tuple(plans), tuple(limits))


def _rows_by(body: Json, sink: str) -> str:
    """Return the parts of a compiled file that decide which rows come to a sink."""
    wanted = {name: body[name] for name in ("sources", "transforms") if name in body}
    return json.dumps([wanted, body.get("sinks", {}).get(sink)], sort_keys=True)

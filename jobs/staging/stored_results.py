"""The stored results that the planner reads for one epoch, computed first if they are missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.staging.store import EpochResultStore
from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class NodeGraph:
    """The inputs of each node, and the dynamic tables that its SQL looks up, by the name of the node."""

    inputs: Callable[[str], Sequence[str]]
    asks: Callable[[str], Sequence[str]] = lambda _: ()

    @classmethod
    def of(cls, model: PipelineModel) -> NodeGraph:
        """Return the graph of a pipeline."""
        return cls(partial(graph.inputs_of, model), partial(graph.looked_up_tables, model))


class StoredResults:
    """The stored results of one epoch that the planner needs.

    They are those of non-deterministic nodes before pending sinks. `holders` returns which sinks and dynamic
    tables have the epoch or a part of it, with a description. Their rows came from stored results, so these
    must not be recomputed. It is called only if results are missing.
    """

    def __init__(
        self,
        stages: EpochResultStore,
        who: NodeGraph,
        impure: Sequence[str],
        holders: Callable[[], Mapping[str, str]],
    ) -> None:
        self._stages = stages
        self._graph = who
        self._impure = impure
        self._holders = holders
        self.rows: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def required_nodes(self, sinks: Sequence[str]) -> set[str]:
        """Return the non-deterministic nodes whose stored results these sinks read.

        Nodes upstream of complete results are not needed again.
        """
        result: set[str] = set()
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen:
                return
            seen.add(name)
            if name in self._impure:
                result.add(name)
                if self._stages.load_manifest(name) is not None:
                    return
            for upstream in self._graph.inputs(name):
                visit(upstream)

        for sink in sinks:
            visit(sink)
        return result

    def check(self, sinks: Sequence[str], *, replayed: bool, recompute: bool) -> None:
        """Raise SinkStateError if rows would be recomputed that a sink or table already contains."""
        missing = (
            []
            if recompute
            else [
                name
                for name in sorted(self.required_nodes(sinks))
                if self._stages.load_manifest(name) is None
            ]
        )
        if not missing:
            return
        if replayed:
            raise self._missing_results_error(
                missing[0], "other sinks have this epoch", "`headrace replay … --recompute`"
            )
        for holder, description in self._holders().items():
            if lost_nodes := self._nondeterministic_upstream(holder).intersection(missing):
                raise self._missing_results_error(
                    min(lost_nodes), description, "the setting `staging.recompute: true` for one run"
                )

    def _nondeterministic_upstream(self, name: str) -> set[str]:
        """Return the non-deterministic nodes upstream of a node, also through the tables that it looks up."""
        upstream = (*self._graph.inputs(name), *self._graph.asks(name))
        return {name}.intersection(self._impure).union(
            *(self._nondeterministic_upstream(other) for other in upstream)
        )

    def _missing_results_error(self, node: str, who: str, recompute: str) -> SinkStateError:
        number = self._stages.plan.number
        msg = (
            f"the stored results of epoch {number} are missing, and {who} with these results:"
            f" {self._stages.folder}"
        )
        hint = (
            "Restore the folder; with several hosts, all must share the folder `staging.path`."
            f" To compute them again, although rows may differ from those in the targets: {recompute}."
        )
        return SinkStateError(msg, hint=hint, node=node)

    def load_or_compute(self, name: str, frame: DataFrame) -> SourceBatch:
        """Return a node's stored rows. Compute and store them first if there are none."""
        if self._stages.load_manifest(name) is None:
            started = time.monotonic()
            self._stages.make(name, frame)
            self.seconds[name] = time.monotonic() - started
        else:
            self._stages.sync_manifest(name)
        result = self._stages.read(name, frame)
        self.rows[name] = result.rows or 0
        return result

"""Interventions for an open epoch that cannot be written, and for sources that lost rows."""

from __future__ import annotations

from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.protocol.coordinator.startup import CoordinatorStartup


class CoordinatorInterventions(CoordinatorStartup):
    """The decisions that a user makes when an epoch can never be finished."""

    def skip_open(self) -> tuple[int, tuple[str, ...]]:
        """Close the open epoch without the sinks that lack it.

        Return its number and the names of those sinks. Sinks that have the epoch keep it. The others continue
        without its rows. All sinks were fenced when the pipeline was opened, so no process of an earlier run
        can write the epoch later. The ledger commits the epoch and records the skip in one transaction. If
        the process dies after it, the sinks register at the next start. Raise PipelineStateError if no epoch
        is open, if every sink has it, or if a sink cannot refuse an older process.
        """
        self.check()
        self._doubtful = False
        self._reconcile_sinks()
        plan, records = self._state.open_plan, self._open_epoch_records()
        if plan is None:
            msg = "no epoch is open, so there is none to skip"
            raise PipelineStateError(
                msg, hint=f"`headrace run {self._file}` goes on; `headrace reset {self._file}` starts over."
            )
        lacking = tuple(name for name in self.sinks if name not in records)
        if not lacking:
            msg = f"every sink holds epoch {plan.number}, so there is nothing to skip"
            raise PipelineStateError(msg, hint=f"`headrace run {self._file}` commits it.")
        if unfenced := [name for name in lacking if not self.sinks[name].supports_fencing]:
            msg = f"epoch {plan.number} cannot be skipped: an earlier process could still write it"
            raise PipelineStateError(
                msg, hint=f"`headrace reset {self._file}` starts over.", node=unfenced[0]
            )
        self.ledger.skip(
            self.lease, plan.number, {name: record.counts for name, record in records.items()}, lacking
        )
        self._open_version(self.compiled, self.pipeline_hash)
        self._apply_sink_changes()
        self._reconcile_sinks()
        return plan.number, lacking

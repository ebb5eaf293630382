"""Rolls up epochs while a pipeline runs, in small batches, so that no epoch waits for it."""

from __future__ import annotations

import logging

from headrace.pipeline.errors import TransientError
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.coordinator import EpochCoordinator
from headrace.pipeline.protocol.ledger.rollup import BATCH

log = logging.getLogger(__name__)

EVERY = 64
"""Commits between two looks, once the ledger is as small as it should be."""


class RollingUp:
    """Rolls up after commits.

    `keep` is the setting `ledger.keep_epochs`; None keeps the row of every epoch.
    """

    def __init__(self, model: PipelineModel, keep: int | None) -> None:
        self._model = model
        self._keep = keep
        self._left = 0

    def after_commit(self, coordinator: EpochCoordinator) -> None:
        """Roll up epochs that are due.

        If the ledger is unreachable, log it and retry after a later commit.
        """
        if self._keep is None or coordinator.committed <= self._keep:
            return
        if self._left > 0:
            self._left -= 1
            return
        try:
            complete = positions.history_complete(self._model, coordinator.position)
            done = coordinator.ledger.roll_up(coordinator.lease, self._keep, history=complete)
        except TransientError as error:
            log.warning("event=roll_up_postponed error=%s", error.message)
            done = 0
        self._left = 0 if done == BATCH else EVERY

"""What all paths into the target share."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.connectors.postgres.convert import RowChecks
from headrace.connectors.postgres.merge import ConflictPolicy
from headrace.connectors.postgres.target import PostgresTarget
from headrace.pipeline.errors import SinkStateError
from headrace.pipeline.protocol.epochs import EpochPlan


@dataclass(frozen=True, slots=True)
class LoadContext:
    """A prepared sink, as the paths into it need it. `schema` is the payload's."""

    node: str
    target: PostgresTarget
    schema: pa.Schema
    policy: ConflictPolicy
    checks: RowChecks
    generation: int

    def refuse_marked(self, plan: EpochPlan, *, marked: bool) -> None:
        """Raise SinkStateError if `marked`: tasks began to load this epoch split by split.

        Only direct load may finish such an epoch, because other paths would write its splits again.
        """
        if marked:
            msg = f"epoch {plan.number} was begun by direct load and cannot be finished by another path"
            raise SinkStateError(
                msg,
                node=self.node,
                hint="Run it with the plan that it was begun with, or `headrace replay --from` this epoch.",
            )

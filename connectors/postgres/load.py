"""What all paths into the target share."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.connectors.postgres.convert import Checks
from headrace.connectors.postgres.merge import Policy
from headrace.connectors.postgres.target import Target
from headrace.pipeline.errors import RecordError
from headrace.pipeline.protocol.epochs import EpochPlan


@dataclass(frozen=True, slots=True)
class Load:
    """A prepared sink, as the paths into it need it. `schema` is the payload's."""

    node: str
    target: Target
    schema: pa.Schema
    policy: Policy
    checks: Checks
    generation: int

    def refuse_marked(self, plan: EpochPlan, *, marked: bool) -> None:
        """An epoch that tasks began to load split by split is finished that way: other paths would write its splits again."""
        if marked:
            msg = f"epoch {plan.number} was begun by direct load and cannot be finished by another path"
            raise RecordError(
                msg, node=self.node, hint="Run it with the plan that it was begun with, or `headrace replay --from` this epoch."
            )

"""An in-memory table: only this pipeline's values, broadcast to the workers and stored on disk by epoch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.jobs.dynamic_tables.base import DynamicTableBackend, ValueLookup
from headrace.jobs.dynamic_tables.broadcast import ValueSet
from headrace.jobs.dynamic_tables.sqlite_store import ValueStore
from headrace.pipeline.errors import HeadraceError, SinkStateError
from headrace.pipeline.protocol.epochs import EpochPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class CommittedTables:
    """What the ledger stores about in-memory tables: the last committed epoch, and which tables have one.

    `former`: the tables are those of an earlier version of the file, whose epochs are only written again.
    """

    def __init__(
        self,
        committed: int,
        joined: frozenset[str],
        note: Callable[[str, int], None],
        generation: int = 0,
        *,
        former: bool = False,
    ) -> None:
        self.committed = committed
        self.joined = joined
        self.note = note
        self.generation = generation
        self.former = former


class MemoryTable(DynamicTableBackend):
    """A table whose values come only from its own SQL.

    Lookups of an epoch are therefore the same at any time.
    """

    def __init__(
        self, node: str, entity: str, store: ValueStore, spark: SparkSession, known: CommittedTables
    ) -> None:
        self._node = node
        self._entity = entity
        self._store = store
        self._known = known
        self._joined = entity in known.joined
        self._values = ValueSet(spark)
        self._loaded = self._newest = 0

    def prepare(self) -> None:
        """Raise SinkStateError if values are missing that the ledger knows of. That is not an empty table."""
        committed = self._known.committed
        with self._name_node_in_errors():
            self._store.fence(self._entity)
            reached, _ = self._store.read_last_epoch(self._entity) or (None, "")
        if not self._known.former:
            self._must_reach(committed, reached)
        if reached is not None and reached > committed + 1:
            msg = (
                f"the values of `{self._entity}` in {self._store.path} are at epoch {reached}, ahead of"
                f" the ledger at epoch {committed}"
            )
            raise SinkStateError(
                msg,
                hint="The ledger is older than they are (restored from a backup?). Restore the newest.",
                node=self._node,
            )

    def _must_reach(self, epoch: int, reached: int | None) -> None:
        """Raise SinkStateError if values of epochs up to this one are missing.

        A table that never had an epoch is new.
        """
        if (not self._joined and reached is None) or (reached is not None and reached >= epoch):
            return
        state = "the file has none" if reached is None else f"it is at epoch {reached}"
        needs = (
            f"epoch {epoch} is to be written again"
            if self._known.former
            else f"the ledger is at epoch {self._known.committed}"
        )
        msg = f"the values of `{self._entity}` are in {self._store.path}, and {state}; {needs}"
        hint = (
            "Restore the file, or run on its host: in-memory tables are stored on the host that runs the"
            " pipeline. To start with an empty"
            " table, give it another backend_entity_name."
        )
        raise SinkStateError(msg, hint=hint, node=self._node)

    def needs_values(self, plan: EpochPlan) -> bool:
        """Return whether the values of an epoch must be stored.

        They are stored once, so a resumed or replayed epoch looks up what its first attempt stored. Raises
        SinkStateError if these values are missing. A table that is newer than a replayed epoch was empty
        then, and stores none of its values.
        """
        with self._name_node_in_errors():
            reached, digest = self._store.read_last_epoch(self._entity) or (None, "")
        if reached is not None:
            self._join(reached)
        if plan.number <= self._known.committed:
            self._must_reach(plan.number, reached)
            return False
        return (
            reached is None or plan.number > reached or (plan.number == reached and digest != _digest(plan))
        )

    def has_values(self, plan: EpochPlan) -> bool:
        """See `Table`."""
        with self._name_node_in_errors():
            return self._store.read_last_epoch(self._entity) == (plan.number, _digest(plan))

    def fill(self, plan: EpochPlan, values: pa.Array) -> None:
        """See `Table`.

        The store first, then the ledger's note that there is one: a crash between leaves what `prepare`
        takes.
        """
        with self._name_node_in_errors():
            self._store.add(self._entity, plan.number, _digest(plan), values)
        self._loaded = min(self._loaded, plan.number - 1)
        self._join(plan.number)

    def _join(self, epoch: int) -> None:
        """Record once in the ledger that the table exists. From then on it is never taken for a new one."""
        if not self._joined:
            self._known.note(self._entity, epoch)
            self._joined = True

    def lookup(self, plan: EpochPlan) -> ValueLookup:
        """See `Table`."""
        if plan.number < self._newest:
            self._values.clear()
            self._loaded = 0
        with self._name_node_in_errors():
            self._values.add(self._store.between(self._entity, self._loaded, plan.number))
        self._loaded = self._newest = plan.number
        return self._values.lookup

    def close(self) -> None:
        """See `Table`."""
        self._store.close()

    def _name_node_in_errors(self) -> _NodeInErrors:
        return _NodeInErrors(self._node)


def _digest(plan: EpochPlan) -> str:
    return hashlib.sha256(json.dumps(plan.to_json(), sort_keys=True).encode()).hexdigest()[:16]


class _NodeInErrors:
    """Names the node in the errors of the block."""

    def __init__(self, node: str) -> None:
        self._node = node

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HeadraceError):
            error.node = error.node or self._node

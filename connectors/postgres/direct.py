"""Direct loads: during a backfill, tasks bring Arrow from the source into the target, split by split.

Each split is one transaction: the generation is checked on the record's row, the marker is set, the rows go
in. Readers see an epoch grow by splits; the record follows once every planned split has its marker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import stamina

from headrace.connectors.keys import canonical
from headrace.connectors.lakehouse_rows import last_of_sorted
from headrace.connectors.postgres.commit_store import RecordStore
from headrace.connectors.postgres.load import TEMPORARY, LoadContext
from headrace.connectors.postgres_client.errors import UniqueError
from headrace.connectors.postgres_client.session import Address, ControlConnection, Loader, LoadSession
from headrace.connectors.postgres_table.convert import cast_to_schema, wire_schema
from headrace.connectors.postgres_table.merge import POSITION
from headrace.connectors.source_base import SplitReader
from headrace.connectors.split_tasks import run_split_tasks
from headrace.connectors.task_failures import TaskFailure, raise_task_failure
from headrace.pipeline.errors import HeadraceError, SchemaError, SinkStateError, TransientError
from headrace.pipeline.protocol.epochs import EpochPlan, Json, WriteCounts
from headrace.pipeline.sql.system_columns import OP
from headrace.pipeline.types.arrow import is_nested

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_TRIES = 3


def split_id(split: Json) -> str:
    """Return an id of a split made from its content, not from its index in a list."""
    return hashlib.sha256(json.dumps(split, sort_keys=True, default=str).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class SplitTask:
    """What a task runs for one split. Picklable; `plan` comes without its splits.

    `straight`: COPY into the target itself, which is the fastest and fails at the first key that is there;
    then the split is fetched again and merged.
    """

    address: Address
    store: RecordStore
    load: LoadContext
    plan: EpochPlan
    fetch: SplitReader
    straight: bool

    def __call__(self, split: Json) -> Json:
        """Load a split and return {"conflict": …, "failure": …}. Errors keep their class and hint."""
        conflict = False
        try:
            for attempt in stamina.retry_context(on=TransientError, attempts=TASK_TRIES, timeout=60.0):
                with attempt:
                    straight = self.straight and not conflict
                    try:
                        self._load_split(split, straight=straight)
                    except UniqueError:
                        if not straight:
                            raise
                        conflict = True
                        self._load_split(split, straight=False)
        except HeadraceError as error:
            return {"conflict": conflict, "failure": TaskFailure.of(error).to_json()}
        return {"conflict": conflict, "failure": None}

    def _load_split(self, split: Json, *, straight: bool) -> None:
        loader, store, plan, name = Loader(self.address), self.store, self.plan, split_id(split)
        try:
            with loader.transaction() as session:
                row = store.lock_for_epoch(session, plan, self.load.generation, share=True, by_splits=True)
                if isinstance(row, WriteCounts) or not store.mark_split(
                    session, plan.number, name, self.load.generation
                ):
                    return
                counts = self._straight(session, split) if straight else self._load_and_merge(session, split)
                store.store_split_counts(session, plan.number, name, counts)
        finally:
            loader.close()

    def _straight(self, session: LoadSession, split: Json) -> WriteCounts:
        target = self.load.target
        rows = session.stream(
            target.table, wire_schema(self.load.schema), self._batches(split), schema=target.schema
        )
        return WriteCounts(rows, rows, 0, 0)

    def _load_and_merge(self, session: LoadSession, split: Json) -> WriteCounts:
        """Load the split through a temporary table. Later rows of a split win, in reading order."""
        wired, chosen = wire_schema(self.load.schema), bool(self.load.target.key) and self.load.can_find_last
        stage = self.load.create_temporary(session, one_per_key=chosen)
        if chosen:
            rows = last_of_sorted(pa.Table.from_batches(self._batches(split), wired), self.load.target.key)
            rows = rows.append_column(OP, pa.repeat("i", rows.num_rows))
            session.load(TEMPORARY, rows, schema=None)
        else:
            columns = pa.schema([*wired, (OP, pa.string()), *zip(POSITION, _POSITION_TYPES, strict=True)])
            session.stream(TEMPORARY, columns, _add_positions(self._batches(split), columns), schema=None)
        return self.load.merge(session, stage, self.plan.number, deletes=False)

    def _batches(self, split: Json) -> Iterator[pa.RecordBatch]:
        for batch in self.fetch.fetch(split):
            wired = canonical(cast_to_schema(batch, self.load.schema, self.load.node), self.load.target.key)
            self.load.checks.check(wired)
            yield wired


_POSITION_TYPES = (pa.int32(), pa.int32(), pa.int64(), pa.int64())


def _add_positions(batches: Iterator[pa.RecordBatch], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Add operation `i` and the row's number inside its split."""
    import numpy as np

    start = 0
    for batch in batches:
        size = batch.num_rows
        source, part, _, sub = (pa.repeat(pa.scalar(0, kind), size) for kind in _POSITION_TYPES)
        order = pa.array(np.arange(start, start + size, dtype=np.int64))
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, pa.repeat("i", size), source, part, order, sub], schema=columns
        )
        start += size


@dataclass(slots=True)
class DirectLoad:
    """The driver's side. It remembers that keys were there already: later epochs then merge at once."""

    control: ControlConnection
    address: Address
    store: RecordStore
    load: LoadContext
    threads: int
    conflicts: bool = False

    def write(
        self, plan: EpochPlan, fetch: SplitReader, spark: SparkSession, *, in_turn: bool
    ) -> WriteCounts:
        """Load every split without a marker, then set the record when all planned splits have markers.

        With `in_turn` a split is loaded after those before it, also by an attempt after a crash.
        """
        if nested := [field.name for field in self.load.schema if is_nested(field.type)]:
            msg = (
                f"column '{nested[0]}' is {self.load.schema.field(nested[0]).type}, which a direct load"
                " cannot turn into JSON"
            )
            raise SchemaError(
                msg, node=self.load.node, hint="Leave it out, or turn it into text in the source's own SQL."
            )
        planned = {split_id(split): split for split in fetch.splits}
        with self.control.transaction() as session:
            row = self.store.lock_for_epoch(session, plan, self.load.generation, by_splits=True)
            if isinstance(row, WriteCounts):
                return row
            done = self.store.read_splits(session, plan.number)
        self._check(plan, planned, done)
        missing = [split for name, split in planned.items() if name not in done]
        self._run(plan, fetch, spark, missing, in_turn=in_turn or not self.load.target.exact)
        return self._finish(plan, planned)

    def _run(
        self,
        plan: EpochPlan,
        fetch: SplitReader,
        spark: SparkSession,
        splits: Sequence[Json],
        *,
        in_turn: bool,
    ) -> None:
        """Run one task per split. Raise a task's error, non-retriable errors first."""
        if not splits:
            return
        straight = self.load.target.supports_direct_copy and not (self.load.target.key and self.conflicts)
        task = SplitTask(self.address, self.store, self.load, replace(plan, splits=()), fetch, straight)
        results = run_split_tasks(task, splits, spark, self.threads, in_turn=in_turn)
        if any(result["conflict"] for result in results):
            self.conflicts = True
        raise_task_failure(result["failure"] for result in results)

    def _finish(self, plan: EpochPlan, planned: Mapping[str, Json]) -> WriteCounts:
        with self.control.transaction() as session:
            row = self.store.lock_for_epoch(session, plan, self.load.generation, by_splits=True)
            if isinstance(row, WriteCounts):
                return row
            done = self.store.read_splits(session, plan.number)
            self._check(plan, planned, done)
            if missing := len(planned.keys() - done.keys()):
                msg = (
                    f"{missing} of {len(planned)} splits of epoch {plan.number} have no marker although"
                    " their tasks ended well"
                )
                raise TransientError(msg, node=self.load.node)
            counts = sum(done.values(), WriteCounts())
            self.store.advance(session, row, plan, self.load.generation, counts)
        return counts

    def _check(self, plan: EpochPlan, planned: Mapping[str, Json], done: Mapping[str, WriteCounts]) -> None:
        if strange := done.keys() - planned.keys():
            msg = f"{len(strange)} splits that are not planned were loaded for epoch {plan.number}"
            raise SinkStateError(
                msg,
                node=self.load.node,
                hint="Run it with the plan that it was begun with, or `headrace replay --from`.",
            )

"""Rows that a transform with `on_error: dead_letter` cannot compute.

The transform is computed completely before a sink gets a row, so a sink that reads few of its columns rejects
the same rows. If that fails, the rows are found by halves: a row costs about log2(n) computations of rows
around it, and nothing is read again. A row is rejected if the transform cannot compute it alone, so a replay
rejects the same rows. A delete needs only its key: its other columns are set to NULL if they cannot be
computed, because a rejected delete would leave the row in the targets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.filters import quote_identifier
from headrace.connectors.lazy_session import create_frame, ensure_started
from headrace.connectors.local_relation import collect_arrow, compute_locally, frame_of_table
from headrace.connectors.quiet_evaluation import find_failure
from headrace.jobs.planning.local_nodes import LocalNodes
from headrace.jobs.sources.source_batch import check_rate
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.errors import DataError
from headrace.pipeline.model.error_outputs import EPOCH, NODE, OPERATION, POSITION, REASON, ROW, ErrorsOutput
from headrace.pipeline.sql.system_columns import HIDDEN, OP, POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)
pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""
_MOST = 1_000
"""Rejected rows of one node in one epoch, at most. Each costs computations of the rows around it."""
_LOCAL_ROWS = 5_000
"""Ranges of at most so many rows are computed in the driver while rejected rows are searched."""

_SHOWN = 300
"""Letters of a reason that a log line shows."""
_PARTS = ("source", "part", "off", "sub")

Place = tuple[int, int, int, int]
"""A position: source, part, offset, sub."""
Compute = Callable[["DataFrame"], "DataFrame"]
"""Returns the lazy output of a transform for some of its input rows."""


@dataclass(slots=True)
class EpochRejections:
    """The rejected rows of transforms in one epoch. `close` releases what Spark keeps of them.

    `nodes` are the transforms whose rows the sinks of the epoch need. `texts` are the statements of
    transforms.
    """

    epoch: int
    nodes: Collection[str]
    local: LocalNodes
    texts: Mapping[str, str]
    counts: dict[str, int] = field(default_factory=dict)
    """Rejected rows by the name of their errors output."""
    _persisted: list[DataFrame] = field(default_factory=list)

    def separate(
        self, output: ErrorsOutput, rows: DataFrame, key: Sequence[str], compute: Compute
    ) -> tuple[DataFrame, DataFrame]:
        """Return the output of a transform for the rows that it can compute, and the rejected rows.

        `rows` are the rows of its input, `key` is their key. Raise DataError if more are rejected than
        `max_error_rate` or the limit of one epoch allows, and the error of the input if that cannot be
        computed.
        """
        rows, rejected = ensure_started(rows), {}
        try:
            good = self._compute(output.node, compute(rows))
        except DataError:
            # Computed once. An error in them is one of another node, which its SQL tells.
            rows = self._compute("", rows)
            search = _RejectionSearch(output, rows, key, compute, self.texts)
            if not search.total:
                raise  # it is an error of the statement
            rejected = search.run()
            good = self._compute(output.node, compute(search.remaining_rows()))
            log.warning(
                "event=rows_rejected node=%s epoch=%d rows=%d of=%d computations=%d error=%s",
                output.node,
                self.epoch,
                len(rejected),
                search.total,
                search.computations,
                next(iter(rejected.values()), "-")[:_SHOWN],
            )
        self.counts[output.name] = len(rejected)
        return good, self._errors(output, rows, rejected)

    def close(self) -> None:
        """Release the rows that Spark keeps."""
        for frame in self._persisted:
            frame.unpersist(blocking=False)

    def _compute(self, node: str, frame: DataFrame) -> DataFrame:
        """Return a frame with all its rows and columns computed."""
        try:
            local = self.local.compute_node(node, frame)
            return self._persist(frame) if local is None else local
        except Exception as error:
            raise as_headrace_error(error, node=node, texts=self.texts) from error

    def _persist(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        try:
            kept.count()
        except BaseException:
            kept.unpersist()
            raise
        self._persisted.append(kept)
        return kept

    def _errors(self, output: ErrorsOutput, rows: DataFrame, rejected: Mapping[Place, str]) -> DataFrame:
        """Return the rejected rows with the columns of the errors output. Marked rows are left out."""
        from pyspark.sql import functions as F  # noqa: N812

        result = {place: reason for place, reason in rejected.items() if place[3] >= 0}
        if not result:
            return create_frame(rows.sparkSession, [], output.schema)
        payload = [F.col(quote_identifier(name)) for name in rows.columns if name not in HIDDEN]
        originals = rows.where(_among(result)).select(
            F.col(OP).alias(OPERATION),
            F.to_json(POS).alias(POSITION),
            F.to_json(F.struct(*payload), {"ignoreNullFields": "false"}).alias(ROW),
            POS,
        )
        table = collect_arrow(originals)
        count = table.num_rows
        self.counts[output.name] = count
        values = {
            NODE: pa.repeat(output.node, count),
            REASON: pa.array([result[place] for place in _places(table)], pa.string()),
            EPOCH: pa.repeat(pa.scalar(self.epoch, pa.int64()), count),
            **{name: table[name] for name in output.columns},
            OP: pa.repeat("i", count),
            POS: table[POS],
        }
        return create_frame(rows.sparkSession, pa.table(values), output.schema)


class _RejectionSearch:
    """Finds the rows that a transform cannot compute, by halves of the positions."""

    def __init__(
        self,
        output: ErrorsOutput,
        rows: DataFrame,
        key: Sequence[str],
        compute: Compute,
        texts: Mapping[str, str],
    ) -> None:
        self._output = output
        self._key = frozenset(name.lower() for name in key)
        self._compute = compute
        self._texts = texts
        self._rows = rows
        table = collect_arrow(rows.select(f"{POS}.*", OP))
        table = table.sort_by([(name, "ascending") for name in _PARTS])
        self._parts = [table[name].to_numpy() for name in _PARTS]
        self._is_delete = pc.equal(table[OP], "d").to_numpy()
        self.total = table.num_rows
        self.computations = 0
        self._found: dict[Place, str] = {}
        self._bare: list[Place] = []
        """The deletes that have only their key."""

    def run(self) -> dict[Place, str]:
        """Return the positions of the rejected rows, with the reasons."""
        self._search(self._rows, 0, self.total, fails=True)
        if not self._found and not self._bare:
            msg = "the rows of an epoch cannot be computed, but each alone can"
            raise DataError(msg, node=self._output.node)
        return self._found

    def remaining_rows(self) -> DataFrame:
        """Return the input rows that are not rejected. Deletes that fail have only their key."""
        rows = self._rows.where(f"NOT {_among(self._found)}") if self._found else self._rows
        return self._without_payload(rows, self._bare) if self._bare else rows

    def _without_payload(self, rows: DataFrame, places: Collection[Place]) -> DataFrame:
        """Return the rows with NULL in all columns but the key at these positions."""
        from pyspark.sql import functions as F  # noqa: N812

        kept, bare = {*self._key, *HIDDEN}, F.expr(_among(places))
        return rows.select(
            *[
                F.col(quote_identifier(field.name))
                if field.name.lower() in kept
                else F.when(~bare, F.col(quote_identifier(field.name))).alias(
                    field.name, metadata=field.metadata or {}
                )
                for field in rows.schema.fields
            ]
        )

    def _search(self, rows: DataFrame, low: int, high: int, *, fails: bool) -> None:
        """Add the rejected rows from `low` to `high`. `fails`: at least one is known to be among them."""
        part = self._select(rows, low, high)
        if high - low <= 1:
            self._check_row(part, low)
        elif fails or self._error(part) is not None:
            middle, before = (low + high) // 2, self._count()
            self._search(part, low, middle, fails=False)
            self._search(part, middle, high, fails=self._count() == before)

    def _count(self) -> int:
        return len(self._found) + len(self._bare)

    def _place(self, row: int) -> Place:
        """Return the position of a row in the order of the positions. Several rows may have the same."""
        source, part, offset, sub = (int(values[row]) for values in self._parts)
        return source, part, offset, sub

    def _check_row(self, row: DataFrame, place: int) -> None:
        if (error := self._error(row)) is None:
            return
        at = self._place(place)
        if self._key and self._is_delete[place] and self._error(self._without_payload(row, [at])) is None:
            self._bare.append(at)
            return
        self._found[at] = error.message
        count, first = len(self._found), next(iter(self._found.values()))
        check_rate(self._output, count, self.total, first, more=True)
        if count > _MOST:
            msg = f"more than {_MOST:,} rows of one epoch are rejected; the first one: {first}"
            hint = "Nothing of the epoch is written. Correct the producer or the node."
            raise DataError(msg, hint=hint, node=self._output.node)

    def _select(self, rows: DataFrame, low: int, high: int) -> DataFrame:
        """Return the rows of a range of positions: in the driver if they are there, or if they are few."""
        first, last = self._place(low), self._place(high - 1)
        part = rows.where(f"{POS} BETWEEN {_literal(first)} AND {_literal(last)}")
        if (local := compute_locally(part)) is not None:
            return local
        return (
            part
            if high - low > _LOCAL_ROWS
            else frame_of_table(part.sparkSession, part.toArrow(), part.schema)
        )

    def _error(self, rows: DataFrame) -> DataError | None:
        """Return why the transform cannot compute these rows, or None if it can."""
        self.computations += 1
        failure = find_failure(self._compute(rows))
        if failure is None:
            return None
        result = as_headrace_error(failure, node=self._output.node, texts=self._texts)
        if isinstance(result, DataError):
            return result
        raise result


def _places(table: pa.Table) -> list[Place]:
    """Return the positions of rows in the driver."""
    parts = table[POS].combine_chunks().flatten()
    return list(zip(*(part.to_pylist() for part in parts), strict=True))


def _literal(place: Place) -> str:
    source, part, offset, sub = place
    values = f"'source', {source}, 'part', {part}, 'off', {offset}L, 'sub', {sub}L"
    return f"named_struct({values})"


def _among(places: Collection[Place]) -> str:
    """Return the condition for rows at these positions."""
    return f"{POS} IN ({', '.join(map(_literal, places))})"

# ruff: noqa: S608  SQL is built from driver-quoted names; values are bound
"""The table with the commit records and claims of all sinks into one database.

Rows are only inserted. Of the rows of one sink the highest version counts: its generation, then a number
that grows with every insert. So a row of an older run, however late, changes nothing. The engine removes the
others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connectors.clickhouse.client import SINK, UNKNOWN_TABLE, translate_errors
from headrace.connectors.clickhouse.types import quote
from headrace.pipeline.errors import InternalError
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, Json, SinkKey

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

COMMIT_TABLE = "__headrace_commits"
SAFE_INSERT = {"async_insert": "0", "insert_deduplicate": "0"}
"""Settings of inserts: rows are in the table when the server answers, and none is left out."""
_ENTRY = pa.schema(
    {
        "target": pa.string(),
        "sink": pa.string(),
        "kind": pa.string(),
        "version": pa.uint64(),
        "entry": pa.string(),
    }
)
"""The columns that an insert writes."""
_FORMAT = 1
_NUMBERS = 1 << 32
"""Versions of one generation."""


@dataclass(frozen=True, slots=True)
class PendingEpoch:
    """An epoch whose rows were staged. Some of them, or all, can be in the table."""

    record: CommitRecord
    attempt: int
    """The value of `_headrace_attempt` in its rows."""
    rows: int


@dataclass(frozen=True, slots=True)
class TableSinkState:
    """The entry of one sink. `table_id` identifies the table that has the rows of the record."""

    generation: int
    table_id: str
    record: CommitRecord | None
    clock: int = 0
    """The largest `insert_time` of any attempt, in microseconds since 1970."""
    pending: PendingEpoch | None = None

    def to_json(self) -> Json:
        """Return the entry as plain JSON values."""
        pending = self.pending
        return {
            "format": _FORMAT,
            "generation": self.generation,
            "table_id": self.table_id,
            "record": None if self.record is None else self.record.to_json(),
            "clock": self.clock,
            "pending": None
            if pending is None
            else {"record": pending.record.to_json(), "attempt": pending.attempt, "rows": pending.rows},
        }

    @classmethod
    def from_json(cls, data: Json) -> TableSinkState:
        """Create an entry from the output of `to_json`. Raise InternalError for an unknown format."""
        if (result := data.get("format")) != _FORMAT:
            msg = f"a row of `{COMMIT_TABLE}` has format {result}, this Headrace knows {_FORMAT}"
            raise InternalError(msg, hint="Run the Headrace version that wrote it, or a newer one.")
        record, pending = data["record"], data["pending"]
        return cls(
            data["generation"],
            data["table_id"],
            None if record is None else CommitRecord.from_json(record),
            data["clock"],
            None
            if pending is None
            else PendingEpoch(CommitRecord.from_json(pending["record"]), pending["attempt"], pending["rows"]),
        )


class CommitTable:
    """The entries of one target table. Sinks are named by `SinkKey.text`."""

    def __init__(self, client: Client, node: str, database: str, table: str) -> None:
        self._client, self._node = client, node
        self._database, self._table = database, table
        self._sql = f"{quote(database)}.{quote(COMMIT_TABLE)}"
        self._last: dict[tuple[str, str], int] = {}
        """The highest version of this process, by kind and sink: inserts without an answer can come late."""

    def create(self) -> None:
        """Create the table if it is missing."""
        self._command(
            f"CREATE TABLE IF NOT EXISTS {self._sql} (target String, sink String,"
            " kind LowCardinality(String), version UInt64, entry String,"
            " written_at DateTime64(3, 'UTC') DEFAULT now64(3))"
            " ENGINE = ReplacingMergeTree(version) ORDER BY (target, sink, kind)"
            " SETTINGS fsync_after_insert = 1",
            "create it",
        )

    def read_state(self, sink: str) -> TableSinkState | None:
        """Return the state of a sink, None without one."""
        result = self._read("state").get(sink)
        return None if result is None else TableSinkState.from_json(result[1])

    def write_state(self, sink: str, state: TableSinkState) -> None:
        """Insert the state of a sink, above all states of its generation and of older ones."""
        self._insert("state", sink, state.to_json(), state.generation * _NUMBERS)

    def read_claims(self, table_id: str) -> list[Claim]:
        """Return the claims to the table with this identity, with the epochs of their sinks."""
        claims, states = self._read("claim"), self._read("state")
        result = []
        for sink, (_, entry) in claims.items():
            if entry.get("table_id") == table_id:
                state = TableSinkState.from_json(states[sink][1]) if sink in states else None
                epoch = state.record.epoch if state is not None and state.record is not None else None
                result.append(Claim(SinkKey(**entry["key"]), entry["share"], epoch))
        return result

    def write_claim(self, key: SinkKey, table_id: str, *, share: bool) -> None:
        """Set a claim to the table with this identity."""
        self._insert("claim", key.text, {"key": asdict(key), "share": share, "table_id": table_id})

    def end_claim(self, key: SinkKey) -> None:
        """Remove a claim."""
        self._insert("claim", key.text, {})

    def _read(self, kind: str) -> Mapping[str, tuple[int, Any]]:
        """Return version and entry by sink."""
        from clickhouse_connect.driver.exceptions import ClickHouseError

        with translate_errors(self._node, COMMIT_TABLE, "read it", SINK):
            try:
                rows = self._client.query(
                    f"SELECT sink, max(version), argMax(entry, version) FROM {self._sql}"
                    " WHERE target = {target:String} AND kind = {kind:String} GROUP BY sink",
                    parameters={"target": self._table, "kind": kind},
                ).result_rows
            except ClickHouseError as error:
                if getattr(error, "code", None) == UNKNOWN_TABLE:
                    return {}
                raise
        return {sink: (int(version), json.loads(entry)) for sink, version, entry in rows}

    def _insert(self, kind: str, sink: str, entry: Json, least: int = 0) -> None:
        is_known = least and (kind, sink) in self._last
        result = 0 if is_known else self._read(kind).get(sink, (0, None))[0]
        version = max(result, self._last.get((kind, sink), 0), least) + 1
        if least and version // _NUMBERS > least // _NUMBERS:
            version = least + _NUMBERS - 1  # A newer generation has its state: this one stays below it.
        self._last[kind, sink] = version
        text = json.dumps(entry, separators=(",", ":"), sort_keys=True)
        with translate_errors(self._node, COMMIT_TABLE, "write it", SINK):
            self._client.insert_arrow(
                COMMIT_TABLE,
                pa.table([[self._table], [sink], [kind], [version], [text]], schema=_ENTRY),
                database=self._database,
                settings=SAFE_INSERT,
            )

    def _command(self, sql: str, doing: str) -> None:
        with translate_errors(self._node, COMMIT_TABLE, doing, SINK):
            self._client.command(sql)

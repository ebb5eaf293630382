"""What a Redis server has of sinks: a hash with the state of each sink, and one string with all claims.

Both are outside the prefixes of rows. The scripts of `scripts` compare and set them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.connectors.redis import scripts
from headrace.connectors.redis.client import RedisClient
from headrace.connectors.redis.config import OWN_PREFIX
from headrace.connectors.redis.encoder import EncodedRows, pack_script
from headrace.connectors.transactional_sink import SinkState
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, Json, SinkKey, WriteCounts

_CLAIMS = f"{OWN_PREFIX}:claims"
_SCAN_KEYS = 10_000
"""Keys that one SCAN looks at, about."""


@dataclass(frozen=True, slots=True)
class StateText:
    """Generation and record as the server has them, "" without one. Scripts compare with them."""

    generation: str
    record: str


@dataclass(frozen=True, slots=True)
class PrefixClaim:
    """One sink's claim to a prefix, and the layout of its entries."""

    key: SinkKey
    share: bool
    prefix: str
    format: str
    primary_key: tuple[str, ...]


class RedisState:
    """States and claims of the sinks with one prefix."""

    def __init__(self, client: RedisClient, prefix: str) -> None:
        self._client, self._prefix = client, prefix

    def read(self, key: SinkKey) -> SinkState:
        """Return the state of a sink. Its `version` is a StateText."""
        result = self._client.run("HMGET", self._name(key), "generation", "record", "changes")
        generation, record, changes = ((value or b"").decode() for value in result)
        return SinkState(
            int(generation) if generation else None,
            _read_record(record, changes) if record else None,
            StateText(generation, record),
        )

    def has_pending(self, key: SinkKey, epoch: int) -> bool:
        """Return whether entries of an epoch were written without its record."""
        return self._client.run("HGET", self._name(key), "pending") == str(epoch).encode()

    def set(self, key: SinkKey, expected: StateText, generation: int, record: CommitRecord | None) -> bool:
        """Set the generation, and a record unless it is None, if the state is `expected`."""
        text = _spell(record.to_json()) if record is not None else ""
        return bool(self._run(scripts.SET_STATE, [self._name(key)], expected, str(generation), text))

    def truncate(self, key: SinkKey, expected: StateText) -> bool:
        """Remove all entries of the prefix in one step if the state is `expected`."""
        return bool(self._run(scripts.TRUNCATE, [self._name(key)], expected, self._pattern))

    def write(
        self,
        key: SinkKey,
        expected: StateText,
        rows: EncodedRows,
        *,
        epoch: int,
        record: CommitRecord | None,
        ttl_ms: int | None,
        columns: Sequence[str],
        upserts: int,
    ) -> WriteCounts | None:
        """Write entries and, with the last ones of an epoch, its record. `upserts` are those of the epoch.

        Return the changes of the epoch so far, with 0 rows. Return None, with nothing changed, if the state
        is not `expected`.
        """
        arguments = [
            expected.generation,
            expected.record,
            str(epoch),
            _spell(record.to_json()) if record is not None else "",
            str(ttl_ms or ""),
            str(len(columns)),
            str(rows.upserts),
            str(upserts),
            *columns,
        ]
        result = self._client.run_packed(pack_script(scripts.WRITE, self._name(key), arguments, rows))
        return None if result is None else WriteCounts(0, *result)

    def read_claims(self) -> tuple[str, list[PrefixClaim]]:
        """Return all claims of the database: their text, which `set_claims` compares, and their values."""
        text = (self._client.run("GET", _CLAIMS) or b"").decode()
        result = json.loads(text) if text else []
        return text, [
            PrefixClaim(
                SinkKey(**one["key"]), one["share"], one["prefix"], one["format"], tuple(one["primary_key"])
            )
            for one in result
        ]

    def set_claims(self, expected: str, claims: Sequence[PrefixClaim], ended: Sequence[SinkKey] = ()) -> bool:
        """Replace all claims of the database and remove the states of `ended`, if the text is `expected`."""
        text = _spell([asdict(claim) for claim in claims])
        keys = [_CLAIMS, *map(self._name, ended)]
        return bool(self._client.run("EVAL", scripts.SET_CLAIMS, len(keys), *keys, expected, text))

    def list_claims(self) -> list[Claim]:
        """Return the claims to the prefix, each with the epoch of its sink's record."""
        claims = []
        for one in self.read_claims()[1]:
            if one.prefix == self._prefix:
                record = self.read(one.key).record
                claims.append(Claim(one.key, one.share, record.epoch if record is not None else None))
        return claims

    def scan_keys(self) -> Iterator[list[bytes]]:
        """Yield the names of all entries of the prefix, in lists. A name can come twice."""
        cursor = 0
        while True:
            cursor, keys = self._client.run("SCAN", cursor, "MATCH", self._pattern, "COUNT", _SCAN_KEYS)
            if keys:
                yield keys
            if int(cursor) == 0:
                return

    @property
    def _pattern(self) -> str:
        return re.sub(r"([\\*?\[\]^-])", r"\\\1", self._prefix) + ":*"

    def _name(self, key: SinkKey) -> str:
        return f"{OWN_PREFIX}:state:{key.text}:{self._prefix}"

    def _run(self, script: str, keys: Sequence[str], expected: StateText, *arguments: str) -> Any:
        return self._client.run(
            "EVAL", script, len(keys), *keys, expected.generation, expected.record, *arguments
        )


def _read_record(text: str, changes: str) -> CommitRecord:
    """Return the record with the changes that the script of its epoch counted."""
    record = CommitRecord.from_json(json.loads(text))
    return add_changes(record, WriteCounts(0, *map(int, changes.split(",")))) if changes else record


def add_changes(record: CommitRecord, counts: WriteCounts) -> CommitRecord:
    """Return a record with the changes of its epoch, as it is read from the server."""
    return replace(record, counts=record.counts + counts, totals=record.totals + counts)


def _spell(value: Json | list[Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)

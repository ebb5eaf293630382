"""Redis or Valkey as a sink, exactly once, on one server.

An epoch is one script of the server: it compares the state of the sink, writes the entries and sets the
record, and nothing else runs in between. A large epoch is several such scripts. Each compares generation and
record, and only the last one sets the record. After an interruption the epoch is written again from its
start: the same entries get the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.fencing import fencing_error
from headrace.connectors.json_text import check_keys
from headrace.connectors.kafka.json_decoder import arrives_as
from headrace.connectors.redis.client import RedisClient, check_server
from headrace.connectors.redis.config import RedisSinkConfig
from headrace.connectors.redis.encoder import NO_ROWS, EncodedRows, RowEncoder
from headrace.connectors.redis.state import PrefixClaim, RedisState, StateText, add_changes
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState, TransactionalSink
from headrace.pipeline.errors import (
    HeadraceError,
    SchemaError,
    SinkStateError,
    TargetError,
    TransientError,
    UserError,
)
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, EpochPlan, Json, WriteCounts
from headrace.pipeline.types.arrow import is_nested

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.frame import EpochFrame

_ATTEMPTS = 5


class RedisSink(TransactionalSink):
    """Entries under one prefix, one for each key. Delivery is exactly once: see this module."""

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["redis"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without opening a connection."""
        super().__init__(context)
        self._node: RedisSinkConfig = context.node
        self._key: tuple[str, ...] = tuple(context.extra.get("key", self._node.primary_key))
        connection = context.settings.redis_sink
        self._client = RedisClient(connection, self._node.url or connection.url, self._name)
        self._store = RedisState(self._client, self._node.prefix)

    @property
    def target(self) -> str:
        """The entries as messages name them."""
        return f"the Redis prefix `{self._node.prefix}` at {self._client.address[0]}"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Check the rows, the server and the entries that are there."""
        self._check(schema)

    def validate_target(self) -> None:
        """Check the rows, the server and the entries that are there."""
        self._check(self._context.schema)

    def read_state(self) -> SinkState | None:
        """Return generation and record of this sink."""
        return self._store.read(self._context.key)

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState | None:
        """Compare the state and change the server in one script; an epoch can take several."""
        key, text, generation = self._context.key, expected.version, change.generation
        if change.plan is not None and change.frame is not None:
            return self._write_epoch(text, change, change.plan, change.frame)
        if change.kind is CommitKind.TRUNCATE:
            return expected if self._store.truncate(key, text) else None
        record = change.record
        if change.kind is CommitKind.REGISTER and record is not None:
            # No other writer of this prefix is left: the generation is set, and the prefix is claimed.
            record = replace(record, baseline=self._count_entries())
        is_done = self._store.set(
            key, text, generation, record if change.kind is CommitKind.REGISTER else None
        )
        return self._store.read(key) if is_done else None

    def claim_target(self) -> None:
        """Add this sink's claim, or refuse it, in one compare-and-set. Former claims are replaced."""
        owner = self._context.owner
        mine = PrefixClaim(owner.key, owner.share, self._node.prefix, self._node.format, tuple(self._key))
        for _ in range(_ATTEMPTS):
            text, claims = self._store.read_claims()
            self._refuse_claims(claims)
            here = [Claim(one.key, one.share) for one in claims if one.prefix == self._node.prefix]
            former = {claim.key for claim in owner.former(here)}
            rest = [one for one in claims if one.prefix != mine.prefix or one.key not in {owner.key, *former}]
            is_there = mine in claims and len(claims) == len(rest) + 1
            if is_there or self._store.set_claims(text, [*rest, mine], list(former)):
                return
        raise self._busy_error()

    def claims(self) -> Sequence[Claim]:
        """Return the claims to the prefix, each with the epoch of its record."""
        return self._store.list_claims()

    def release(self, claims: Sequence[Claim]) -> None:
        """Remove claims and states of these sinks: their next script is refused."""
        keys = {claim.key for claim in claims}
        for _ in range(_ATTEMPTS):
            text, result = self._store.read_claims()
            ended = [one.key for one in result if one.prefix == self._node.prefix and one.key in keys]
            rest = [one for one in result if one.prefix != self._node.prefix or one.key not in keys]
            if not ended or self._store.set_claims(text, rest, ended):
                return
        raise self._busy_error()

    def has_partial_epoch(self, plan: EpochPlan) -> bool:
        """Return whether an interrupted attempt at a large epoch left entries."""
        return self._store.has_pending(self._context.key, plan.number)

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        key = self.find_conflicting_key()
        return self._store.read(key).record if key is not None else None

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the number of entries, or None if they expire or other sinks share them.

        Raise TransientError if the record changes while the entries are counted.
        """
        if any(claim.key != self._context.key for claim in self.claims()):
            return None
        before = self.record()
        entries = self._count_entries()
        if self.record() != before:
            msg = f"{self.target} was written while its entries were counted"
            raise TransientError(msg, node=self._name)
        return None if entries is None else (before, entries)

    def describe(self) -> Json:
        """Return the type, asset key and address, without a connection."""
        host, database = self._client.address
        prefix = self._node.prefix
        return {
            "kind": "redis",
            "asset_key": ["redis", prefix],
            "scope": [host, database],
            "table_name": prefix,
            "location": f"{host}/{database}",
        }

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _check(self, schema: pa.Schema) -> None:
        """Raise an error for rows, a server or entries that do not fit."""
        if not self._key:
            msg = "type `redis` needs a primary key: it is the name of a row's entry"
            raise UserError(msg, hint="Set `primary_key` at the source or at the sink.", node=self._name)
        for field in schema:
            check_keys(self._name, field)
            if arrives_as(field.type) is None or (field.name in self._key and is_nested(field.type)):
                msg = f"column `{field.name}`: entries of Redis cannot have {field.type}"
                msg += " in their name" if field.name in self._key else ""
                raise SchemaError(msg, hint="Convert it in a transform.", node=self._name)
        check_server(self._client, self._name, is_durable=self._node.delivery != "at_least_once")
        claims = [one for one in self._store.read_claims()[1] if one.prefix == self._node.prefix]
        self._check_layout(claims)
        if not claims and (foreign := next(self._store.scan_keys(), None)):
            names = ", ".join(sorted(name.decode(errors="replace") for name in foreign)[:3])
            msg = f"{self.target} has entries of other programs: {names}{'…' if foreign[3:] else ''}"
            raise TargetError(msg, hint="Choose a `prefix` without entries, or remove them.", node=self._name)

    def _check_layout(self, claims: Sequence[PrefixClaim]) -> None:
        mine = (self._node.format, tuple(self._key))
        for one in claims:
            if (one.format, one.primary_key) != mine:
                msg = (
                    f"{self.target} has entries of format `{one.format}` by {', '.join(one.primary_key)}, and"
                    f" this sink writes `{mine[0]}` by {', '.join(mine[1])}"
                )
                raise SchemaError(msg, hint="Choose another `prefix`.", node=self._name)

    def _refuse_claims(self, claims: Sequence[PrefixClaim]) -> None:
        """Raise SinkStateError for a rival, and for a prefix inside another sink's prefix."""
        prefix = self._node.prefix
        here = [Claim(one.key, one.share) for one in claims if one.prefix == prefix]
        self._context.owner.refuse(here, self.target)
        for one in claims:
            if one.prefix.startswith(f"{prefix}:") or prefix.startswith(f"{one.prefix}:"):
                msg = (
                    f"{self.target} overlaps with the prefix `{one.prefix}` of sink '{one.key.sink}' of"
                    f" '{one.key.name}'"
                )
                raise SinkStateError(msg, hint="Choose another `prefix`.", node=self._name)

    def _write_epoch(
        self, expected: StateText, change: SinkCommit, plan: EpochPlan, frame: EpochFrame
    ) -> SinkState | None:
        """Write all rows of an epoch, and the record with the last ones."""
        columns = frame.schema.names if self._node.format == "hash" else ()
        ttl = self._node.ttl // timedelta(milliseconds=1) if self._node.ttl is not None else None
        rows = upserts = 0
        record = counts = None
        for chunk, is_last in _mark_last(RowEncoder(self._name, self._node.prefix, columns).encode(frame)):
            rows, upserts = rows + chunk.rows, upserts + chunk.upserts
            record = change.complete(WriteCounts(rows)) if is_last else None
            counts = self._store.write(
                self._context.key,
                expected,
                chunk,
                epoch=plan.number,
                record=record,
                ttl_ms=ttl,
                columns=columns,
                upserts=upserts,
            )
            if counts is None:
                return None
        assert record is not None  # noqa: S101
        assert counts is not None  # noqa: S101
        return SinkState(change.generation, add_changes(record, counts))

    def _count_entries(self) -> int | None:
        """Return the number of entries of the prefix, or None if they expire."""
        if self._node.ttl is not None:
            return None
        return len({name for names in self._store.scan_keys() for name in names})

    def _lost_state_error(self) -> HeadraceError:
        """Return the fencing error: another pipeline that takes the prefix over removes the state."""
        return fencing_error(None, self._generation, target=self.target, sink=self._name)


def _mark_last(chunks: Iterator[EncodedRows]) -> Iterator[tuple[EncodedRows, bool]]:
    """Yield each chunk and whether it is the last one. An epoch without rows is one chunk without rows."""
    chunk = next(chunks, NO_ROWS)
    for following in chunks:
        yield chunk, False
        chunk = following
    yield chunk, True

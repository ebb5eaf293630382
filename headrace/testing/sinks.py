"""The contract of sinks: their behavior on crashes, second processes and replays."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors import registry
from headrace.connectors.frame import EpochFrame
from headrace.connectors.sink_base import Sink, SinkContext
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import FencedError, HeadraceError
from headrace.pipeline.model.capabilities import Delivery
from headrace.pipeline.model.plugins import PluginSinkConfig
from headrace.pipeline.plugins.api import Plugin
from headrace.pipeline.plugins.discovery import temporary_plugin
from headrace.pipeline.protocol.epochs import CommitRecord, SinkKey, WriteCounts
from headrace.testing.harness import (
    PIPELINE_HASH,
    Row,
    create_frame,
    create_plan,
    create_position,
    session,
    temporary_settings,
)

PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string())])


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """A new target for a sink: its options, and a function that reads its rows without the plugin."""

    options: Mapping[str, Any]
    rows: Callable[[], list[Row]]


def check_sink(plugin: Plugin, fresh: Callable[[], SinkTarget]) -> None:
    """Check the contract of a sink. `fresh` returns a new, empty target each time.

    The checks of epochs and commit records apply to exactly-once sinks only.
    """
    with temporary_plugin(plugin), temporary_settings() as settings:
        contract = _SinkContract(plugin, settings, fresh)
        is_exact = plugin.make.capabilities.delivery is Delivery.EXACTLY_ONCE  # pyright: ignore[reportFunctionMemberAccess]
        for check in [contract.check_rows_arrive, *(contract.exact_checks() if is_exact else [])]:
            check()


class _SinkContract:
    """The checks of one plugin's sinks."""

    def __init__(self, plugin: Plugin, settings: Settings, fresh: Callable[[], SinkTarget]) -> None:
        self._plugin = plugin
        self._settings = settings
        self._fresh = fresh
        self._key = SinkKey("", "contract", "main", "sink")
        self._target = SinkTarget({}, list)

    def exact_checks(self) -> list[Callable[[], None]]:
        """Return the checks of an exactly-once sink."""
        checks: list[Callable[[], None]] = [
            self.check_new_target,
            self.check_committed_epoch,
            self.check_gap,
            self.check_empty_epoch,
            self.check_older_generation,
        ]
        checks += [self.check_two_sinks, self.check_two_pipelines]
        capabilities = self._plugin.make.capabilities  # pyright: ignore[reportFunctionMemberAccess]
        return [
            *checks,
            *([self.check_keys, self.check_null_key] if capabilities.upsert and capabilities.delete else []),
            self.check_no_key,
        ]

    def _reset(self) -> None:
        self._target = self._fresh()
        self._key = SinkKey(secrets.token_hex(16), "contract", "main", "sink")

    def _open(self, key: tuple[str, ...]) -> Sink:
        options = {
            "type": self._plugin.id,
            "from": "x",
            "primary_key": key,
            **copy.deepcopy(dict(self._target.options)),
        }
        context = SinkContext(
            self._key,
            PluginSinkConfig.model_validate(options),
            self._settings,
            PEOPLE,
            session(),
            {"key": key},
        )
        return registry.open_sink(context)

    def _open_registered(self, key: tuple[str, ...] = ("id",)) -> Sink:
        sink = self._open(key)
        sink.prepare(PEOPLE, 1)
        sink.register(CommitRecord.for_registration(self._key, 1, 0, create_position(0), PIPELINE_HASH, None))
        return sink

    def _write(
        self,
        sink: Sink,
        number: int,
        ops: str,
        *people: tuple[int | None, str | None],
        key: tuple[str, ...] = ("id",),
    ) -> WriteCounts:
        rows = [{"id": id_, "name": name} for id_, name in people]
        arriving = EpochFrame(create_frame(PEOPLE, rows, ops), PEOPLE, key, len(rows), session())
        return sink.write(create_plan(number), arriving)

    def _assert_rows(self, *people: tuple[int, str | None], after: str) -> None:
        rows = sorted((row["id"], row["name"]) for row in self._target.rows())
        assert rows == sorted(people), f"{after}: the target contains {rows}, expected {sorted(people)}"

    def _committed_epoch(self, sink: Sink) -> int | None:
        record = sink.record()
        return record.epoch if record else None

    def check_rows_arrive(self) -> None:
        """Check that written rows are in the target."""
        self._reset()
        sink = self._open_registered()
        counts = self._write(sink, 1, "ii", (1, "a"), (2, "b"))
        assert counts.rows == 2, f"`write` of 2 rows counted {counts.rows}"
        self._assert_rows((1, "a"), (2, "b"), after="an epoch of two rows")
        sink.close()

    def check_new_target(self) -> None:
        """Check that a new target has no record, and that a second object reads the registered one."""
        self._reset()
        sink = self._open(("id",))
        sink.prepare(PEOPLE, 1)
        assert sink.record() is None, "a target that nothing was written to has a record"
        sink.register(CommitRecord.for_registration(self._key, 1, 0, create_position(0), PIPELINE_HASH, None))
        other = self._open(("id",))
        other.prepare(PEOPLE, 2)
        record = other.record()
        assert record is not None, "another process does not find the registered record"
        assert (record.epoch, record.end) == (0, create_position(0)), (
            "the record was read back with other values"
        )
        sink.close()
        other.close()

    def check_keys(self) -> None:
        """Check that the last row of a key wins, in an epoch and over epochs."""
        self._reset()
        sink = self._open_registered()
        self._write(sink, 1, "iiui", (1, "a"), (2, "b"), (1, "c"), (3, "d"))
        self._assert_rows((1, "c"), (2, "b"), (3, "d"), after="an insert and an update of key 1 in one epoch")
        self._write(sink, 2, "duidid", (1, None), (2, "e"), (4, "f"), (4, None), (5, "g"), (3, None))
        self._assert_rows(
            (2, "e"), (5, "g"), after="deletes, an update and an insert that is deleted at once"
        )
        sink.close()

    def check_committed_epoch(self) -> None:
        """Check that a committed epoch is not written again."""
        self._reset()
        sink = self._open_registered()
        self._write(sink, 1, "i", (1, "a"))
        for writer in (sink, self._reopen()):
            _catch_refusal(lambda writer=writer: self._write(writer, 1, "ii", (1, "other"), (2, "b")))
            self._assert_rows((1, "a"), after="epoch 1 written twice")
            assert self._committed_epoch(writer) == 1, "the record moved although nothing was written"
        sink.close()

    def _reopen(self) -> Sink:
        sink = self._open(("id",))
        sink.prepare(PEOPLE, 2)
        return sink

    def check_gap(self) -> None:
        """Check that only epoch N follows epoch N-1."""
        self._reset()
        sink = self._open_registered()
        assert _catch_refusal(lambda: self._write(sink, 2, "i", (1, "a"))), (
            "epoch 2 was written after epoch 0"
        )
        self._assert_rows(after="an epoch that does not follow")
        sink.close()

    def check_empty_epoch(self) -> None:
        """Check that an epoch without rows advances the record."""
        self._reset()
        sink = self._open_registered()
        self._write(sink, 1, "")
        assert self._committed_epoch(sink) == 1, "an epoch without rows did not move the record"
        sink.close()

    def check_older_generation(self) -> None:
        """Check that an older generation cannot write."""
        self._reset()
        zombie = self._open_registered()
        successor = self._reopen()
        if type(successor).capabilities.fences:
            error = _catch_refusal(lambda: self._write(zombie, 1, "i", (1, "zombie")))
            assert isinstance(error, FencedError), (
                f"an older generation wrote, or got {error!r} and not FencedError"
            )
        self._write(successor, 1, "i", (1, "a"))
        _catch_refusal(lambda: self._write(zombie, 1, "u", (1, "zombie")))
        self._assert_rows((1, "a"), after="an older generation tried to write")
        zombie.close()
        successor.close()

    def check_two_sinks(self) -> None:
        """Check that two sinks of one target have separate records."""
        self._reset()
        first = self._open_registered()
        self._write(first, 1, "i", (1, "a"))
        self._key = SinkKey(self._key.pipeline, "contract", "main", "other")
        second = self._open(("id",))
        second.prepare(PEOPLE, 1)
        assert second.record() is None, "a sink found the record of another one"
        first.close()
        second.close()

    def check_two_pipelines(self) -> None:
        """Check that a target with claims belongs to one pipeline."""
        self._reset()
        first = self._open_registered()
        if first.claims():
            self._key = SinkKey(secrets.token_hex(16), "another", "main", "sink")
            second = self._open(("id",))
            second.prepare(PEOPLE, 1)
            record = CommitRecord.for_registration(self._key, 1, 0, create_position(0), PIPELINE_HASH, None)
            assert _catch_refusal(lambda: second.register(record)), "two pipelines registered one target"
            second.release(first.claims())
            second.register(record)
            assert _catch_refusal(lambda: self._write(first, 1, "i", (1, "a"))), (
                "a sink that lost the target still writes"
            )
            self._assert_rows(after="a target that was taken over")
            second.close()
        first.close()

    def check_null_key(self) -> None:
        """Check that a null in the key is an error, and that nothing is written."""
        self._reset()
        sink = self._open_registered()
        assert _catch_refusal(lambda: self._write(sink, 1, "ii", (1, "a"), (None, "b"))), (
            "a null in the key was accepted"
        )
        self._assert_rows(after="a null in the key")
        sink.close()

    def check_no_key(self) -> None:
        """Check that without a key rows are appended, and a delete is an error."""
        self._reset()
        sink = self._open_registered(())
        self._write(sink, 1, "ii", (1, "a"), (1, "a"), key=())
        self._write(sink, 2, "u", (1, "a"), key=())
        self._assert_rows((1, "a"), (1, "a"), (1, "a"), after="three rows without a key")
        assert _catch_refusal(lambda: self._write(sink, 3, "d", (1, "a"), key=())), (
            "a delete without a key was accepted"
        )
        sink.close()


def _catch_refusal(work: Callable[[], object]) -> HeadraceError | None:
    try:
        work()
    except HeadraceError as error:
        return error
    return None

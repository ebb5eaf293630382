"""The contract of sinks: what crashes, second processes and replays may do to one."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors import registry
from headrace.connectors.base import Delivery, EpochFrame, Sink, SinkContext
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import FencedError, HeadraceError
from headrace.pipeline.model.plugins import PluginSinkConfig
from headrace.pipeline.plugins.api import Plugin
from headrace.pipeline.plugins.discovery import temporary_plugin
from headrace.pipeline.protocol.epochs import CommitRecord, SinkKey, WriteCounts
from headrace.testing.bench import HASH, Row, frame, plan, position, session, settings

PEOPLE = pa.schema([("id", pa.int64()), ("name", pa.string())])


@dataclass(frozen=True, slots=True)
class Target:
    """A place of its own for a sink: the options that lead there, and what reads its rows past the plugin."""

    options: Mapping[str, Any]
    rows: Callable[[], list[Row]]


def check_sink(plugin: Plugin, fresh: Callable[[], Target]) -> None:
    """The contract of a sink; `fresh` gives a new, empty target each time. An at-least-once sink need not keep what epochs are about."""
    with temporary_plugin(plugin), settings() as found:
        bench = _SinkBench(plugin, found, fresh)
        exact = plugin.make.capabilities.delivery is Delivery.EXACTLY_ONCE  # pyright: ignore[reportFunctionMemberAccess]
        for check in [bench.rows_arrive, *(bench.exact_checks() if exact else [])]:
            check()


class _SinkBench:
    """One kind of sink, and what it must do."""

    def __init__(self, plugin: Plugin, settings: Settings, fresh: Callable[[], Target]) -> None:
        self._plugin = plugin
        self._settings = settings
        self._fresh = fresh
        self._key = SinkKey("", "contract", "main", "sink")
        self._target = Target({}, list)

    def exact_checks(self) -> list[Callable[[], None]]:
        """The checks of a sink that is exactly once."""
        checks: list[Callable[[], None]] = [self.new_target, self.held_epoch, self.gap, self.empty_epoch, self.zombie]
        checks += [self.two_sinks, self.two_pipelines]
        able = self._plugin.make.capabilities  # pyright: ignore[reportFunctionMemberAccess]
        return [*checks, *([self.keys, self.null_key] if able.upsert and able.delete else []), self.no_key]

    def _anew(self) -> None:
        self._target = self._fresh()
        self._key = SinkKey(secrets.token_hex(16), "contract", "main", "sink")

    def _open(self, key: tuple[str, ...]) -> Sink:
        said = {"type": self._plugin.id, "from": "x", "primary_key": key, **copy.deepcopy(dict(self._target.options))}
        context = SinkContext(self._key, PluginSinkConfig.model_validate(said), self._settings, PEOPLE, session(), {"key": key})
        return registry.open_sink(context)

    def _joined(self, key: tuple[str, ...] = ("id",)) -> Sink:
        sink = self._open(key)
        sink.prepare(PEOPLE, 1)
        sink.register(CommitRecord.for_registration(self._key, 1, 0, position(0), HASH, None))
        return sink

    def _write(
        self, sink: Sink, number: int, ops: str, *people: tuple[int | None, str | None], key: tuple[str, ...] = ("id",)
    ) -> WriteCounts:
        rows = [{"id": one, "name": name} for one, name in people]
        arriving = EpochFrame(frame(PEOPLE, rows, ops), PEOPLE, key, len(rows), session())
        return sink.write(plan(number), arriving)

    def _holds(self, *people: tuple[int, str | None], after: str) -> None:
        found = sorted((row["id"], row["name"]) for row in self._target.rows())
        assert found == sorted(people), f"{after}: the target holds {found}, and should hold {sorted(people)}"

    def _epoch(self, sink: Sink) -> int | None:
        record = sink.record()
        return record.epoch if record else None

    def rows_arrive(self) -> None:
        """What is written is there."""
        self._anew()
        sink = self._joined()
        counts = self._write(sink, 1, "ii", (1, "a"), (2, "b"))
        assert counts.rows == 2, f"`write` of 2 rows counted {counts.rows}"
        self._holds((1, "a"), (2, "b"), after="an epoch of two rows")
        sink.close()

    def new_target(self) -> None:
        """No record first, then the one that joined, asked by another object."""
        self._anew()
        sink = self._open(("id",))
        sink.prepare(PEOPLE, 1)
        assert sink.record() is None, "a target that nothing was written to has a record"
        sink.register(CommitRecord.for_registration(self._key, 1, 0, position(0), HASH, None))
        other = self._open(("id",))
        other.prepare(PEOPLE, 2)
        record = other.record()
        assert record is not None, "the record that joined is not there for another process"
        assert (record.epoch, record.end) == (0, position(0)), "the record came back as another one"
        sink.close()
        other.close()

    def keys(self) -> None:
        """The last row of a key wins, in an epoch and over epochs."""
        self._anew()
        sink = self._joined()
        self._write(sink, 1, "iiui", (1, "a"), (2, "b"), (1, "c"), (3, "d"))
        self._holds((1, "c"), (2, "b"), (3, "d"), after="an insert and an update of key 1 in one epoch")
        self._write(sink, 2, "duidid", (1, None), (2, "e"), (4, "f"), (4, None), (5, "g"), (3, None))
        self._holds((2, "e"), (5, "g"), after="deletes, an update and an insert that is deleted at once")
        sink.close()

    def held_epoch(self) -> None:
        """An epoch that is there is not written again."""
        self._anew()
        sink = self._joined()
        self._write(sink, 1, "i", (1, "a"))
        for one in (sink, self._reopened()):
            _refused(lambda one=one: self._write(one, 1, "ii", (1, "other"), (2, "b")))
            self._holds((1, "a"), after="epoch 1 written twice")
            assert self._epoch(one) == 1, "the record moved although nothing was written"
        sink.close()

    def _reopened(self) -> Sink:
        sink = self._open(("id",))
        sink.prepare(PEOPLE, 2)
        return sink

    def gap(self) -> None:
        """From N-1 to N, and nothing else."""
        self._anew()
        sink = self._joined()
        assert _refused(lambda: self._write(sink, 2, "i", (1, "a"))), "epoch 2 was written behind epoch 0"
        self._holds(after="an epoch that does not follow")
        sink.close()

    def empty_epoch(self) -> None:
        """No rows, and the record moves all the same."""
        self._anew()
        sink = self._joined()
        self._write(sink, 1, "")
        assert self._epoch(sink) == 1, "an epoch without rows did not move the record"
        sink.close()

    def zombie(self) -> None:
        """An older generation writes nothing any more."""
        self._anew()
        zombie = self._joined()
        successor = self._reopened()
        if type(successor).capabilities.fences:
            error = _refused(lambda: self._write(zombie, 1, "i", (1, "zombie")))
            assert isinstance(error, FencedError), f"an older generation wrote, or got {error!r} and not FencedError"
        self._write(successor, 1, "i", (1, "a"))
        _refused(lambda: self._write(zombie, 1, "u", (1, "zombie")))
        self._holds((1, "a"), after="an older generation tried to write")
        zombie.close()
        successor.close()

    def two_sinks(self) -> None:
        """Two sinks of one target keep records of their own."""
        self._anew()
        first = self._joined()
        self._write(first, 1, "i", (1, "a"))
        self._key = SinkKey(self._key.pipeline, "contract", "main", "other")
        second = self._open(("id",))
        second.prepare(PEOPLE, 1)
        assert second.record() is None, "a sink found the record of another one"
        first.close()
        second.close()

    def two_pipelines(self) -> None:
        """A target that names itself belongs to one pipeline."""
        self._anew()
        first = self._joined()
        if first.claims():
            self._key = SinkKey(secrets.token_hex(16), "another", "main", "sink")
            second = self._open(("id",))
            second.prepare(PEOPLE, 1)
            record = CommitRecord.for_registration(self._key, 1, 0, position(0), HASH, None)
            assert _refused(lambda: second.register(record)), "two pipelines joined one target"
            second.release(first.claims())
            second.register(record)
            assert _refused(lambda: self._write(first, 1, "i", (1, "a"))), "a sink that lost the target still writes"
            self._holds(after="a target that was taken over")
            second.close()
        first.close()

    def null_key(self) -> None:
        """A null in the key is an error, and nothing is written."""
        self._anew()
        sink = self._joined()
        assert _refused(lambda: self._write(sink, 1, "ii", (1, "a"), (None, "b"))), "a null in the key was taken"
        self._holds(after="a null in the key")
        sink.close()

    def no_key(self) -> None:
        """Without a key rows are appended, and a delete is an error."""
        self._anew()
        sink = self._joined(())
        self._write(sink, 1, "ii", (1, "a"), (1, "a"), key=())
        self._write(sink, 2, "u", (1, "a"), key=())
        self._holds((1, "a"), (1, "a"), (1, "a"), after="three rows without a key")
        assert _refused(lambda: self._write(sink, 3, "d", (1, "a"), key=())), "a delete without a key was taken"
        sink.close()


def _refused(work: Callable[[], object]) -> HeadraceError | None:
    try:
        work()
    except HeadraceError as error:
        return error
    return None

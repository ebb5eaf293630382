"""The state of a local Delta table, kept current from its log without a Spark job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.pipeline.protocol.epochs import Json

_REPLAYED_COMMITS = 100
"""A log with more commits is read by Spark at first, from its checkpoint."""
_ACTIONS = ('{"add"', '{"remove"', '{"txn"')


def local_folder(path: str) -> Path | None:
    """Return the folder of a table on a local disk, or None for another file system."""
    parts = urlsplit(path)
    if not parts.scheme:
        return Path(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


@dataclass(frozen=True)
class DataFile:
    """One data file of a table version, as its `add` action describes it."""

    table: Path
    add: Json

    @property
    def is_local(self) -> bool:
        """Whether the file is on this file system. Files of a shallow clone can be elsewhere."""
        return urlsplit(self.add["path"]).scheme in ("", "file")

    @cached_property
    def path(self) -> Path:
        """The Parquet file, if it is local."""
        return self.table / unquote(urlsplit(self.add["path"]).path)

    @cached_property
    def statistics(self) -> Json:
        """The statistics; {} if the file has none.

        Numbers with a fraction are decimals, because a float can be above the bound that it stands for.
        """
        return json.loads(self.add.get("stats") or "{}", parse_float=Decimal)

    @property
    def deletion_vector(self) -> Json | None:
        """The descriptor of the removed rows."""
        return self.add.get("deletionVector")

    @property
    def physical_rows(self) -> int | None:
        """The rows in the file, removed ones included; None if the writer did not count them."""
        return self.statistics.get("numRecords")

    @property
    def live_rows(self) -> int | None:
        """The rows that the table version has; None if unknown."""
        removed = (self.deletion_vector or {}).get("cardinality", 0)
        return None if self.physical_rows is None else self.physical_rows - removed


class LogReplay:
    """The state of one version of a local table. `read` moves to the version of another snapshot."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self._version = -1
        self._identity = ""
        self._files: dict[str, DataFile] = {}
        self._transactions: dict[str, int] = {}

    def read_files(self, snapshot: Any) -> list[DataFile]:
        """Return the data files of the version of a JVM snapshot."""
        self._read(snapshot)
        return list(self._files.values())

    def read_transactions(self, snapshot: Any) -> dict[str, int]:
        """Return the versions of all transaction identifiers in a snapshot."""
        self._read(snapshot)
        return self._transactions

    def _read(self, snapshot: Any) -> None:
        version, identity = int(snapshot.version()), str(snapshot.metadata().id())
        if identity != self._identity or version < self._version:
            self._identity, self._version, self._files, self._transactions = identity, -1, {}, {}
        if version - self._version > _REPLAYED_COMMITS or not self._replay(version):
            added = snapshot.allFiles().toJSON().collectAsList()
            self._files = {}
            for text in added:
                self._apply("add", json.loads(text))
            self._transactions = collect_transactions(snapshot)
        self._version = version

    def _replay(self, version: int) -> bool:
        """Apply the commits up to a version. Return False if the log no longer has one of them."""
        try:
            for number in range(self._version + 1, version + 1):
                for name, action in _read_actions(self.table / f"_delta_log/{number:020d}.json"):
                    self._apply(name, action)
        except FileNotFoundError:
            return False
        return True

    def _apply(self, name: str, action: Json) -> None:
        if name == "add":
            self._files[action["path"]] = DataFile(self.table, action)
        elif name == "remove":
            self._files.pop(action["path"], None)
        else:
            self._transactions[action["appId"]] = action["version"]


def collect_transactions(snapshot: Any) -> dict[str, int]:
    """Return the versions of all transaction identifiers, by a Spark job."""
    found: dict[str, int] = {}
    entries = snapshot.transactions().iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1())] = int(entry._2())  # noqa: SLF001  a Scala tuple
    return found


def _read_actions(path: Path) -> Iterator[tuple[str, Json]]:
    """Yield a commit's actions on files and transactions, removals first.

    A changed deletion vector removes and adds one path.
    """
    # A text in the log can contain characters that `splitlines` takes for ends of lines.
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.startswith(_ACTIONS)]
    actions = [next(iter(json.loads(line).items())) for line in lines]
    yield from sorted(actions, key=lambda action: action[0] != "remove")

"""Upserts in Arrow against a dictionary, over a table that is only a folder and a log."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from headrace.connectors.delta.arrow_merge import EpochRows, select_candidates, upsert
from headrace.connectors.delta.deletion_vectors import read_deletion_vector
from headrace.connectors.delta.local_snapshot import LocalSnapshot, commit_path, read_snapshot
from headrace.connectors.versions import ENDED
from headrace.pipeline.protocol.epochs import Json, WriteCounts
from headrace.pipeline.sql.system_columns import OP

SCHEMA = pa.schema([("k", pa.int64()), ("part", pa.string()), ("version", pa.int32()), ("v", pa.string())])
Key = tuple[int, str]
Change = tuple[str, int | None, bool, str]


class Table:
    """A folder with a log, without Delta."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "_delta_log").mkdir()
        self.snapshot = LocalSnapshot(folder)
        first = [
            {"metaData": {"id": "table-1"}},
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        ]
        self.commit(first)

    def commit(self, actions: list[Json]) -> None:
        version = self.snapshot.version.number + 1
        lines = [{"commitInfo": {}}, {"txn": {"appId": "a", "version": version}}, *actions]
        path = commit_path(self.folder, version)
        path.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
        self.snapshot = read_snapshot(self.snapshot)
        assert self.snapshot.version.number == version

    def write(self, changes: dict[Key, Change], key: tuple[str, ...], version: str | None) -> WriteCounts:
        rows = pa.table(
            {
                "v": pa.array([change[3] for change in changes.values()], pa.string()),
                "part": [part for _, part in changes],
                "k": pa.array([k for k, _ in changes], pa.int32()),
                "version": pa.array([change[1] for change in changes.values()], pa.int32()),
                OP: [change[0] for change in changes.values()],
                ENDED: [change[2] for change in changes.values()],
            }
        )
        epoch = EpochRows.of(rows, SCHEMA, key, version)
        files = self.snapshot.read_files()
        done = upsert(self.folder, select_candidates(files, epoch), epoch)
        self.commit(done.actions)
        return done.counts

    def rows(self) -> list[tuple[Any, ...]]:
        result: list[tuple[Any, ...]] = []
        for file in read_snapshot(LocalSnapshot(self.folder)).read_files():
            removed = read_deletion_vector(self.folder, file.deletion_vector) if file.deletion_vector else ()
            rows = [tuple(row.values()) for row in parquet.read_table(file.path).to_pylist()]
            live = [row for at, row in enumerate(rows) if at not in removed]
            assert file.live_rows == len(live) > 0
            result += live
        return result


_CHANGES = st.tuples(
    st.sampled_from("iud"), st.one_of(st.none(), st.integers(0, 3)), st.booleans(), st.sampled_from("xyz")
)
_EPOCHS = st.lists(
    st.dictionaries(st.tuples(st.integers(0, 9), st.sampled_from("ab")), _CHANGES, max_size=12), max_size=6
)


def merge(
    rows: dict[Key, tuple[int | None, str]], changes: dict[Key, Change], *, versioned: bool
) -> WriteCounts:
    """Apply an epoch to a dictionary; return the counts of MERGE."""
    inserted = updated = deleted = 0
    for key, (op, version, ended, value) in changes.items():
        if key not in rows:
            if op != "d":
                rows[key], inserted = (version, value), inserted + 1
            continue
        there = rows[key][0]
        newer = there is None or (version is not None and there <= version)
        if versioned and not ended and not newer:
            continue
        if op == "d":
            del rows[key]
            deleted += 1
        else:
            rows[key], updated = (version, value), updated + 1
    return WriteCounts(len(changes), inserted, updated, deleted)


@settings(deadline=None)
@given(_EPOCHS, st.booleans())
def test_upserts_are_those_of_a_dictionary(epochs: list[dict[Key, Change]], versioned: bool) -> None:
    with TemporaryDirectory() as folder:
        table = Table(Path(folder))
        table.commit([])
        rows: dict[Key, tuple[int | None, str]] = {}
        for changes in epochs:
            counts = table.write(changes, ("k", "part"), "version" if versioned else None)
            assert counts == merge(rows, changes, versioned=versioned)
            there = table.rows()
            assert {row[:2]: row[2:] for row in there} == rows
            assert len(there) == len(rows)


def test_every_row_of_a_key_is_replaced(tmp_path: Path) -> None:
    """A table that others wrote can have a key twice. MERGE updates both rows."""
    table = Table(tmp_path)
    table.commit([])
    table.write({(1, "a"): ("i", 0, False, "x"), (1, "b"): ("i", 0, False, "y")}, ("k", "part"), None)
    assert table.write({(1, "a"): ("u", 0, False, "z")}, ("k",), None) == WriteCounts(1, 0, 2, 0)
    assert table.rows() == [(1, "a", 0, "z")] * 2
    assert table.write({(1, "a"): ("d", 0, False, "z")}, ("k",), None) == WriteCounts(1, 0, 0, 2)
    assert table.rows() == []


def test_file_without_rows_is_removed(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit([])
    table.write({(1, "a"): ("i", 0, False, "x"), (2, "a"): ("i", 0, False, "y")}, ("k",), None)
    table.write({(1, "a"): ("d", 0, False, "x")}, ("k",), None)
    assert len(list(tmp_path.glob("*.bin"))) == 1
    table.write({(2, "a"): ("d", 0, False, "x")}, ("k",), None)
    assert table.snapshot.read_files() == []


def test_row_without_a_key_in_the_table_stays(tmp_path: Path) -> None:
    table = Table(tmp_path)
    rows = pa.table([[None, 1], ["a", "a"], [0, 0], ["x", "y"]], schema=SCHEMA)
    parquet.write_table(rows, tmp_path / "other.parquet")
    table.commit([{"add": {"path": "other.parquet", "stats": '{"numRecords": 2}'}}])
    assert table.write({(1, "a"): ("d", 0, False, "x")}, ("k",), None) == WriteCounts(1, 0, 0, 1)
    assert table.snapshot.read_files()[0].live_rows == 1

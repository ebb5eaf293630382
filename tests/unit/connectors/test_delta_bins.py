"""Which files of a Delta table OPTIMIZE would rewrite together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.connectors.delta.data_files import DataFile
from headrace.connectors.delta.maintenance import plan_bins
from headrace.connectors.table_maintenance import FILE_SIZE, SMALL_FILE_SIZE


def data_file(size: int, *, deleted: int = 0, **partition: str) -> DataFile:
    add: dict[str, Any] = {"path": "x", "size": size, "partitionValues": partition}
    add["stats"] = json.dumps({"numRecords": 100})
    if deleted:
        add["deletionVector"] = {"cardinality": deleted}
    return DataFile(Path(), add)


def sizes_of(*files: DataFile) -> list[list[int]]:
    return [[file.add["size"] for file in one] for one in plan_bins(files)]


def test_small_files_of_a_partition_go_together() -> None:
    assert sizes_of(data_file(3), data_file(1), data_file(2)) == [[1, 2, 3]]
    files = [data_file(1, day="a"), data_file(2, day="b"), data_file(3, day="a"), data_file(4, day="c")]
    assert sizes_of(*files) == [[1, 3]]


def test_a_large_file_stays_unless_many_of_its_rows_are_deleted() -> None:
    large = SMALL_FILE_SIZE
    assert sizes_of(data_file(1), data_file(2), data_file(large)) == [[1, 2]]
    assert sizes_of(data_file(large, deleted=5)) == []
    assert sizes_of(data_file(large, deleted=6)) == [[large]]


def test_a_small_file_alone_stays_unless_rows_are_deleted() -> None:
    assert sizes_of(data_file(1)) == []
    assert sizes_of(data_file(1, deleted=1)) == [[1]]


def test_a_new_file_has_at_most_the_target_size() -> None:
    half = FILE_SIZE // 2
    assert sizes_of(*(data_file(half) for _ in range(5))) == [[half, half], [half, half]]

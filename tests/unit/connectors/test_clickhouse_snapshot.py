"""Stale copies of tables, and copies that wait for a replica, without a server."""

from __future__ import annotations

import pytest

from headrace.connectors.clickhouse.snapshot import ClickHouseTableInfo, orphans, sync_statement


def test_orphans_are_of_this_owner_and_of_no_later_generation() -> None:
    names = [
        "_headrace_abc_3_1f_0_0",
        "_headrace_abc_4_2e_0_0",
        "_headrace_abc_5_00_0_0",
        "_headrace_abc_4_2e_0_0_tmp_1",
        "_headrace_abd_1_x_0_0",
    ]
    assert orphans(names, "abc", 4, ["_headrace_abc_4_2e_0_0"]) == [
        "_headrace_abc_3_1f_0_0",
        "_headrace_abc_4_2e_0_0_tmp_1",
    ]


@pytest.mark.parametrize(
    ("engine", "waits"),
    [
        ("MergeTree", False),
        ("ReplacingMergeTree", False),
        ("ReplicatedMergeTree", True),
        ("ReplicatedReplacingMergeTree", True),
        ("SharedMergeTree", True),
    ],
)
def test_only_engines_with_replicas_are_waited_for(engine: str, waits: bool) -> None:
    statement = sync_statement(ClickHouseTableInfo("shop", "order's", "", engine, "id"))
    assert (statement is not None and statement.startswith("SYSTEM SYNC REPLICA ")) is waits

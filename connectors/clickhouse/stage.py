# ruff: noqa: S608  SQL is built from driver-quoted names; values are bound
"""The staging table of a sink: the only way of rows into the target, and the fence.

A run creates a staging table whose name has its generation. Rows are inserted there and enter the target by
`ATTACH PARTITION ALL FROM` it, which copies no data. `open` creates a new one and drops all others of the
sink with SYNC, which waits for the statements that use them. After `open`, no statement of an older run or
attempt can change the target: its staging table no longer exists, and an older run that creates another one
sees this one and stops.
"""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING

from headrace.connectors.clickhouse.client import SINK, translate_errors
from headrace.connectors.clickhouse.snapshot import ClickHouseTableInfo
from headrace.connectors.clickhouse.types import quote
from headrace.connectors.fencing import fencing_error
from headrace.pipeline.errors import InternalError, TransientError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_PREFIX = "__headrace_stage_"
_DROP = {"max_table_size_to_drop": "0", "max_partition_size_to_drop": "0"}


class GenerationStage:
    """The staging table of one sink. It stays after the run, empty: its name keeps the generation."""

    def __init__(self, client: Client, node: str, target: ClickHouseTableInfo, sink: str) -> None:
        self._client, self._node, self._target = client, node, target
        digest = sha256(f"{target.name}\0{sink}".encode()).hexdigest()[:16]
        self._prefix = f"{_PREFIX}{digest}_"
        self._name = ""

    @property
    def name(self) -> str:
        """The quoted name, with the database."""
        if not self._name:
            msg = f"`{self._target.name}` is written without a staging table"
            raise InternalError(msg, node=self._node)
        return f"{quote(self._target.database)}.{quote(self._name)}"

    def open(self, generation: int) -> None:
        """Create a staging table and drop all others of this sink.

        Raise FencedError if there is one of a newer generation.
        """
        # Created first, then listed: of two runs at least one sees the other's table.
        name = f"{self._prefix}{generation}_{time.time_ns()}"
        self._run(
            f"CREATE TABLE {quote(self._target.database)}.{quote(name)} AS {self._target.sql}",
            "create a staging table",
        )
        others = [other for other in self._list() if other != name]
        newest = max((self._generation(other) for other in others), default=generation)
        if newest > generation:
            self._drop(name)
            shown = f"table `{self._target.database}.{self._target.name}`"
            raise fencing_error(newest, generation, target=shown, sink=self._node)
        for other in others:
            self._drop(other)
        self._name = name

    def find_generation(self) -> int | None:
        """Return the generation of the newest staging table of this sink, None without one."""
        return max((self._generation(name) for name in self._list()), default=None)

    def clear(self) -> None:
        """Remove all rows of the staging table."""
        self._run(f"TRUNCATE TABLE {self.name}", "empty a staging table")

    def count(self) -> int:
        """Return the number of rows in the staging table."""
        with translate_errors(self._node, self._name, "read it", SINK):
            return int(self._client.query(f"SELECT count() FROM {self.name}").result_rows[0][0])

    def check_rows(self, rows: int, target: str) -> None:
        """Raise TransientError unless the staging table has exactly the rows that the tasks loaded."""
        if (result := self.count()) != rows:
            msg = f"{result} rows are staged for {target}, and the tasks loaded {rows}"
            raise TransientError(msg, hint="A task ran twice. The epoch is written again.", node=self._node)

    def attach(self) -> None:
        """Add the rows of the staging table to the target: each partition in one step."""
        self._run(f"ALTER TABLE {self._target.sql} ATTACH PARTITION ALL FROM {self.name}", "add rows to it")

    def empty_target(self) -> None:
        """Remove all rows of the target: each partition in one step. The staging table must be empty."""
        with translate_errors(self._node, self._target.name, "empty it", SINK):
            parts = self._client.query(
                "SELECT DISTINCT partition_id FROM system.parts WHERE active AND database = {database:String}"
                " AND table = {name:String} ORDER BY 1",
                parameters={"database": self._target.database, "name": self._target.name},
            ).result_rows
            known = self._client.query(
                "SELECT count() FROM system.settings WHERE name = 'allow_replace_partition_from_empty_source'"
            ).result_rows[0][0]
            settings = _DROP | ({"allow_replace_partition_from_empty_source": "1"} if known else {})
            for (part,) in parts:
                self._client.command(
                    f"ALTER TABLE {self._target.sql} REPLACE PARTITION ID {{part:String}} FROM {self.name}",
                    parameters={"part": part},
                    settings=settings,
                )

    def _list(self) -> list[str]:
        with translate_errors(self._node, "system.tables", "read it", SINK):
            rows = self._client.query(
                "SELECT name FROM system.tables WHERE database = {database:String} AND"
                " startsWith(name, {prefix:String})",
                parameters={"database": self._target.database, "prefix": self._prefix},
            ).result_rows
        return [row[0] for row in rows]

    def _generation(self, name: str) -> int:
        return int(name.removeprefix(self._prefix).split("_")[0])

    def _drop(self, name: str) -> None:
        with translate_errors(self._node, name, "drop it", SINK):
            self._client.command(
                f"DROP TABLE IF EXISTS {quote(self._target.database)}.{quote(name)} SYNC", settings=_DROP
            )

    def _run(self, sql: str, doing: str) -> None:
        with translate_errors(self._node, self._target.name, doing, SINK):
            self._client.command(sql)

# ruff: noqa: S608  SQL is built from driver-quoted names, and the query is the file's own
"""Pinning: a copy of a MergeTree table by hard links, which neither inserts nor merges nor TTLs change.

The copy is built under a name of its own and then renamed, so that a table of the final name is always whole:
a crash on the way leaves a half-made one, which the next attempt drops. Merges and TTLs are switched off
before the parts come in, because they would rewrite rows (ReplacingMergeTree) or drop them while a backfill
of days reads them.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.clickhouse.client import ACCESS_DENIED, missing_table_error, translate_errors
from headrace.connectors.clickhouse.types import quote
from headrace.pipeline.errors import PipelineStateError, TargetError, UserError
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

PREFIX = "_headrace_"
_STILL = {
    "max_bytes_to_merge_at_max_space_in_pool": 1,
    "max_bytes_to_merge_at_min_space_in_pool": 1,
    "max_number_of_merges_with_ttl_in_pool": 0,
}
"""Table settings under which no background merge is chosen.

They outlive a restart, as SYSTEM STOP MERGES does not.
"""
_DROP = {"max_table_size_to_drop": "0", "max_partition_size_to_drop": "0"}
_EXISTS = 57
_OFFER = (
    "Or set `snapshot: none` at the node: no rights needed, but the rows do not hold still while they"
    " are read."
)


@dataclass(frozen=True, slots=True)
class ClickHouseTableInfo:
    """What system.tables says of a table, or the same of a query whose result becomes one."""

    database: str
    name: str
    uuid: str
    engine: str
    sorting_key: str
    comment: str = ""
    query: str = ""

    @property
    def sql(self) -> str:
        """What a query reads from."""
        return f"(\n{self.query}\n)" if self.query else f"{quote(self.database)}.{quote(self.name)}"

    @property
    def merge_tree(self) -> bool:
        """Whether the table has parts on disk, which can be hard-linked."""
        return self.engine.endswith("MergeTree")

    @property
    def merges_rows(self) -> bool:
        """Whether the engine merges rows of one sorting key (replaces, sums, collapses). Read with FINAL."""
        return (
            self.merge_tree and self.engine.removeprefix("Shared").removeprefix("Replicated") != "MergeTree"
        )


def query_info(database: str, query: str, split_column: str) -> ClickHouseTableInfo:
    """Return what the result of a query is as a table in a database."""
    text = query.strip().rstrip(";")
    name = f"query_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return ClickHouseTableInfo(database, name, "", "MergeTree", quote(split_column), query=text)


def find_table(client: Client, database: str, name: str, node: str) -> ClickHouseTableInfo | None:
    """Return the table, or None if there is none."""
    with translate_errors(node):
        result = client.query(
            "SELECT toString(uuid), engine, sorting_key, comment FROM system.tables WHERE database ="
            " {database:String} AND name = {name:String}",
            parameters={"database": database, "name": name},
        ).result_rows
    return ClickHouseTableInfo(database, name, *result[0]) if result else None


def get_table(client: Client, database: str, name: str, node: str) -> ClickHouseTableInfo:
    """Return the table. Raise TargetError, with the closest names, if there is none."""
    table = find_table(client, database, name, node)
    if table is None:
        raise missing_table_error(client, database, name, node)
    return table


def clone(client: Client, source: ClickHouseTableInfo, token: str, node: str) -> ClickHouseTableInfo:
    """Return the copy for `token`: the same one each time, also from another process.

    Raise TargetError if the engine has no parts or the right to create a table is missing.
    """
    if not source.merge_tree:
        msg = (
            f"`{source.database}.{source.name}` cannot be pinned: its engine is {source.engine}, and only"
            " the MergeTree family can be"
        )
        raise TargetError(
            msg,
            hint="Set `snapshot: none` at the node; then the rows do not hold still while they are read.",
            node=node,
        )
    name = PREFIX + re.sub(r"[^A-Za-z0-9_]", "_", token)
    if table := find_table(client, source.database, name, node):
        return _of(table, source, node)
    _sweep(client, source.database, f"{name}_tmp_", node)
    _sync(client, source, node)
    staged = ClickHouseTableInfo(
        source.database, f"{name}_tmp_{uuid.uuid4().hex[:12]}", "", source.engine, source.sorting_key
    )
    _warn_of_mutations(client, source, node)
    try:
        _build(client, source, staged, node)
        _rename(client, staged, name, node)
    except TargetError as error:
        drop_copy(client, staged.database, staged.name, node)
        msg = f"cannot pin `{source.database}.{source.name}`: {error.message}"
        raise TargetError(msg, hint=_needs(error, source), node=node) from error
    made = find_table(client, source.database, name, node)
    if made is None:
        msg = f"the pinned copy `{source.database}.{name}` vanished right after it was made"
        raise PipelineStateError(
            msg,
            hint="Something drops tables whose name begins with _headrace_; start again once it does not.",
            node=node,
        )
    log.info("event=snapshot_created table=%s.%s copy=%s", source.database, source.name, name)
    return _of(made, source, node)


def _mark(source: ClickHouseTableInfo) -> str:
    return f"pinned by Headrace from {source.database}.{source.name}"


def _of(table_info: ClickHouseTableInfo, source: ClickHouseTableInfo, node: str) -> ClickHouseTableInfo:
    """Return `table_info` if it is a copy of `source`, else raise PipelineStateError."""
    if table_info.comment != _mark(source):
        msg = (
            f"`{table_info.database}.{table_info.name}` is not a copy of `{source.database}.{source.name}`:"
            f" its comment says '{table_info.comment}'"
        )
        raise PipelineStateError(
            msg,
            hint="Drop it if nothing needs it any more, or go back to the table that it was made from.",
            node=node,
        )
    return table_info


def _build(client: Client, source: ClickHouseTableInfo, staged: ClickHouseTableInfo, node: str) -> None:
    """Do the same as CREATE TABLE … CLONE AS, but with merges disabled before the first part is attached.

    The copy of a query has its result, sorted by the split column.
    """
    from clickhouse_connect.driver.binding import format_str

    if source.query:
        settings = ", ".join(
            f"{key} = {value}" for key, value in (_STILL | {"allow_nullable_key": 1}).items()
        )
        with translate_errors(node, "query", "store its result"):
            client.command(
                f"CREATE TABLE {staged.sql} ENGINE = MergeTree ORDER BY {source.sorting_key}"
                f" SETTINGS {settings} AS SELECT * FROM {source.sql} COMMENT {format_str(_mark(source))}"
            )
        return

    with translate_errors(node, f"{source.database}.{source.name}", "pin it"):
        client.command(f"CREATE TABLE {staged.sql} AS {source.sql}")
        client.command(f"ALTER TABLE {staged.sql} MODIFY COMMENT {format_str(_mark(source))}")
        client.command(
            f"ALTER TABLE {staged.sql} MODIFY SETTING"
            f" {', '.join(f'{key} = {value}' for key, value in _STILL.items())}"
        )
        client.command(f"ALTER TABLE {staged.sql} ATTACH PARTITION ALL FROM {source.sql}")


def _rename(client: Client, staged: ClickHouseTableInfo, name: str, node: str) -> None:
    """Rename the finished copy to its final name. If another process was first, use its copy."""
    from clickhouse_connect.driver.exceptions import DatabaseError

    with translate_errors(node):
        try:
            client.command(f"RENAME TABLE {staged.sql} TO {quote(staged.database)}.{quote(name)}")
        except DatabaseError as error:
            if error.code != _EXISTS:
                raise
            drop_copy(client, staged.database, staged.name, node)


def _needs(error: UserError, source: ClickHouseTableInfo) -> str:
    denied = getattr(error.__cause__, "code", None) == ACCESS_DENIED
    grant = (
        f"GRANT CREATE TABLE, DROP TABLE, INSERT, ALTER TABLE, SELECT ON {source.database}.* TO the"
        " user of clickhouse_source. "
    )
    return (grant if denied else "") + _OFFER


def sync_statement(source: ClickHouseTableInfo) -> str | None:
    """Return SQL that waits until this replica has the parts of the others; None for other engines."""
    replicated = source.engine.startswith(("Replicated", "Shared"))
    return f"SYSTEM SYNC REPLICA {source.sql} LIGHTWEIGHT" if replicated else None


def _sync(client: Client, source: ClickHouseTableInfo, node: str) -> None:
    """Wait for parts that this replica does not have yet.

    Without the right to wait, a copy may lack rows of other replicas.
    """
    if (statement := sync_statement(source)) is None:
        return
    try:
        with translate_errors(node, f"{source.database}.{source.name}", "wait for its replica"):
            client.command(statement)
    except TargetError as error:
        if getattr(error.__cause__, "code", None) != ACCESS_DENIED:
            raise
        log.warning(
            "event=replica_not_synced table=%s.%s missing_right=SYSTEM_SYNC_REPLICA",
            source.database,
            source.name,
        )


def _warn_of_mutations(client: Client, source: ClickHouseTableInfo, node: str) -> None:
    with translate_errors(node):
        pending = client.query(
            "SELECT count() FROM system.mutations WHERE database = {database:String} AND table ="
            " {name:String} AND NOT is_done",
            parameters={"database": source.database, "name": source.name},
        ).result_rows[0][0]
    if pending:
        log.warning(
            "event=unfinished_mutations table=%s.%s mutations=%d", source.database, source.name, pending
        )


def _sweep(client: Client, database: str, prefix: str, node: str) -> None:
    """Drop incomplete copies."""
    for name in _names(client, database, prefix, node):
        log.info("event=partial_snapshot_dropped table=%s.%s", database, name)
        drop_copy(client, database, name, node)


def _names(client: Client, database: str, prefix: str, node: str) -> list[str]:
    with translate_errors(node):
        result = client.query(
            "SELECT name FROM system.tables WHERE database = {database:String} AND startsWith(name,"
            " {prefix:String}) ORDER BY name",
            parameters={"database": database, "prefix": prefix},
        ).result_rows
    return [row[0] for row in result]


def orphans(names: Iterable[str], owner: str, generation: int, keep: Collection[str]) -> list[str]:
    """Return the copies of `owner` up to this generation that no position refers to (not in `keep`).

    A copy of a later generation belongs to a newer process, which may be about to store its position.
    """
    made = re.compile(rf"{re.escape(PREFIX + owner)}_(\d+)_")
    return [
        name
        for name in names
        if name not in keep and (match := made.match(name)) and int(match[1]) <= generation
    ]


def drop_orphaned_copies(
    client: Client, database: str, owner: str, generation: int, keep: Collection[str], node: str
) -> None:
    """Drop the orphans of `owner` in a database."""
    for name in orphans(_names(client, database, f"{PREFIX}{owner}_", node), owner, generation, keep):
        log.info("event=unused_snapshot_dropped table=%s.%s", database, name)
        drop_copy(client, database, name, node)


def drop_copy(client: Client, database: str, name: str, node: str) -> None:
    """Drop a copy of any size. Never drops a table that Headrace did not create."""
    if not name.startswith(PREFIX):
        msg = f"`{database}.{name}` is not a pinned copy and is not dropped"
        raise PipelineStateError(msg, hint=f"Copies have names that begin with {PREFIX}.", node=node)
    with translate_errors(node, f"{database}.{name}", "drop it"):
        client.command(f"DROP TABLE IF EXISTS {quote(database)}.{quote(name)} SYNC", settings=_DROP)


def open_snapshot(client: Client, handle: Json, node: str) -> ClickHouseTableInfo:
    """Return the table of a handle. Raise PipelineStateError if a copy was dropped or replaced."""
    if not handle["pinned"]:
        return get_table(client, handle["database"], handle["table"], node)
    table_info = find_table(client, handle["database"], handle["table"], node)
    if table_info is None or table_info.uuid != handle["uuid"]:
        what = "is missing" if table_info is None else "was recreated"
        msg = f"the pinned copy `{handle['database']}.{handle['table']}` of `{handle['source']}` {what}"
        raise PipelineStateError(
            msg,
            hint="Its rows cannot be had again exactly. Start the history over under a new state.",
            node=node,
        )
    return table_info

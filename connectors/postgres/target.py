"""The target table: created when missing, otherwise proved to take the rows. It is never altered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from headrace.connectors.json_text import check_keys
from headrace.connectors.postgres.session import NAME_BYTES, Session, trusted
from headrace.pipeline.errors import SchemaError, TargetError
from headrace.pipeline.types.arrow import is_nested, postgres_type
from headrace.pipeline.types.int256 import digits, is_wide

NUMBERS = ("smallint", "integer", "bigint", "numeric")
TEXTS = ("text", "character varying", "bpchar", "citext", "name")
TIMES = ("timestamp with time zone", "timestamp without time zone")
TAKES: Mapping[str, tuple[str, ...]] = {
    "smallint": (*NUMBERS, "real", "double precision"),
    "integer": (*NUMBERS, "double precision"),
    "bigint": NUMBERS,
    "numeric": ("numeric",),
    "real": ("real", "double precision"),
    "double precision": ("double precision",),
    "boolean": ("boolean",),
    "text": TEXTS,
    "bytea": ("bytea",),
    "date": ("date", *TIMES),
    "timestamp with time zone": TIMES,
    "timestamp without time zone": TIMES,
    "time without time zone": ("time without time zone",),
    "jsonb": ("jsonb", "json", *TEXTS),
}
"""The column types of an existing table that can store each of our types. A type that rounds or cuts values
a value out of a column's range is the server's own error."""
PARSES_TEXT = ("uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr", "macaddr8")
"""Types that take a string by their own input syntax, in addition to enumerations and domains over text."""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column: `staged` is its type in staging tables, `cast` its type after the merge, if another."""

    name: str
    staged: str
    cast: str | None
    supports_direct_copy: bool
    """COPY may write it into the target as it is."""
    exact: bool = True
    """Whether different values stay different in the target. Not if case or spaces do not count there."""
    length: int | None = None
    """The most characters that the target's column holds, for a key column of limited length."""


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """A proved target.

    `columns` are those of the rows, in their order; `key` the conflict key, empty for appends.
    """

    schema: str
    table: str
    columns: tuple[TargetColumn, ...]
    key: tuple[str, ...]
    partitioned: bool

    @property
    def identifier(self) -> sql.Identifier:
        """The table, quoted."""
        return sql.Identifier(self.schema, self.table)

    @property
    def supports_direct_copy(self) -> bool:
        """Whether COPY may write rows into the target without a staging table."""
        return all(column.supports_direct_copy for column in self.columns)

    @property
    def exact(self) -> bool:
        """Whether keys that differ in the rows also differ in the target."""
        return all(column.exact for column in self.columns if column.name in self.key)

    @property
    def lengths(self) -> Mapping[str, int]:
        """The length limits of string key columns."""
        return {
            column.name: column.length
            for column in self.columns
            if column.name in self.key and column.length is not None
        }


def prepare_target(
    session: Session,
    *,
    node: str,
    table: tuple[str, str],
    schema: pa.Schema,
    key: Sequence[str],
    version: str | None = None,
) -> PostgresTarget:
    """Create the table if it is missing, then check that it takes rows of `schema` under `key`.

    Raise SchemaError for a column or type, and TargetError for rights and keys. Each message names what
    exists and what to do.
    """
    _check_names(node, schema, key)
    if _kind(session, *table) is None:
        _create(session, *table, schema=schema, key=key)
    return _proved(session, node=node, table=table, schema=schema, key=key, version=version)


def check_target(
    session: Session,
    *,
    node: str,
    table: tuple[str, str],
    schema: pa.Schema,
    key: Sequence[str],
    version: str | None = None,
) -> None:
    """Check an existing table like `prepare_target`, without creating a missing one."""
    _check_names(node, schema, key)
    if _kind(session, *table) is not None:
        _proved(session, node=node, table=table, schema=schema, key=key, version=version)


def _proved(
    session: Session,
    *,
    node: str,
    table: tuple[str, str],
    schema: pa.Schema,
    key: Sequence[str],
    version: str | None,
) -> PostgresTarget:
    kind = _kind(session, *table)
    if kind not in {"r", "p"}:
        msg = f"{table[0]}.{table[1]} is not a table"
        raise TargetError(msg, node=node, hint="Name a table, or one that does not exist yet.")
    where = f"{table[0]}.{table[1]}"
    found = _columns(session, *table)
    columns = tuple(_match(node, where, field, found, keyed=field.name in key) for field in schema)
    if version is not None:
        _check_precision(node, where, schema.field(version), found[version], "version_column")
    _check_others(node, where, found, schema)
    if key:
        _check_key(session, node, table, key)
    _check_rights(session, node, table)
    return PostgresTarget(*table, columns, tuple(key), partitioned=kind == "p")


def _check_names(node: str, schema: pa.Schema, key: Sequence[str]) -> None:
    for name in (*key, *schema.names):
        if len(name.encode()) > NAME_BYTES:
            msg = f"column '{name}' has a longer name than Postgres keeps ({NAME_BYTES} bytes)"
            raise SchemaError(msg, node=node, hint="Rename it in a transform.")
    for field in schema:
        check_keys(node, field)
    for name in key:
        if name not in schema.names:
            msg = (
                f"primary_key names '{name}', which the rows do not have; they have {', '.join(schema.names)}"
            )
            raise SchemaError(
                msg, node=node, hint="Correct `primary_key`, or select the column in the transform."
            )
        if is_nested(schema.field(name).type):
            msg = f"primary_key column '{name}' is {schema.field(name).type}, which cannot be a key"
            raise SchemaError(msg, node=node, hint="Use columns of plain types as the key.")


def _kind(session: Session, schema: str, table: str) -> str | None:
    """Return the relation kind of the name: r a table, p a partitioned table; None if it does not exist.

    Other kinds cannot be targets.
    """
    found = session.run(
        "SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE"
        " n.nspname = $1 AND c.relname = $2",
        schema,
        table,
    )
    return found[0][0] if found else None


def _create(session: Session, namespace: str, table: str, *, schema: pa.Schema, key: Sequence[str]) -> None:
    """Create the schema and the table. An advisory lock makes concurrent processes wait."""
    session.run("SELECT pg_advisory_xact_lock(hashtext('headrace create'))")
    if not session.run("SELECT 1 FROM pg_namespace WHERE nspname = $1", namespace):
        session.run(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(namespace)))
    parts: list[sql.Composable] = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), trusted(postgres_type(field.type)))
        for field in schema
    ]
    if key:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
    session.run(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
            sql.Identifier(namespace, table), sql.SQL(", ").join(parts)
        )
    )


@dataclass(frozen=True, slots=True)
class _ExistingColumn:
    """A column of the table. `kind` is its type without modifiers and domains, `shown` the type for messages.

    `digits` are those of a second that a time keeps, `length` the characters of a text; None where nothing
    limits them.
    """

    kind: str
    shown: str
    scale: int | None
    enum: bool
    plain: bool
    needed: bool
    written: bool
    digits: int | None
    length: int | None
    deterministic: bool


_COLUMNS = """
SELECT a.attname, format_type(b.oid, -1), format_type(a.atttypid, a.atttypmod),
       CASE WHEN b.oid = 'numeric'::regtype AND m.typmod >= 0
            THEN (((m.typmod - 4) & 2047) # 1024) - 1024 END,
       b.typtype = 'e', a.atttypid = b.oid,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = '',
       a.attgenerated = '' AND a.attidentity <> 'a',
       CASE WHEN b.typcategory = 'D' AND m.typmod >= 0 THEN m.typmod END,
       CASE WHEN b.oid IN ('varchar'::regtype, 'bpchar'::regtype) AND m.typmod >= 4 THEN m.typmod - 4 END,
       coalesce((SELECT collisdeterministic FROM pg_collation WHERE oid = a.attcollation), true)
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
CROSS JOIN LATERAL (SELECT CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END AS typmod) m
WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped
"""


def _columns(session: Session, schema: str, table: str) -> dict[str, _ExistingColumn]:
    return {name: _ExistingColumn(*rest) for name, *rest in session.run(_COLUMNS, schema, table)}


def _match(
    node: str, where: str, field: pa.Field, found: Mapping[str, _ExistingColumn], *, keyed: bool
) -> TargetColumn:
    """Return how the rows' column is loaded into the table's column of the same name.

    A key is cast to the table's own type before rows are compared: keys that are equal there must be equal
    here. Other columns use the server's assignment cast, which rejects what an explicit cast would truncate.
    """
    there = found.get(field.name)
    if there is None:
        msg = f"{where} has no column '{field.name}' ({field.type}); it has {', '.join(found)}"
        hint = (
            f"Add it (ALTER TABLE … ADD COLUMN, type {postgres_type(field.type)}), or leave it out in"
            " the transform."
        )
        raise SchemaError(msg, node=node, hint=hint)
    if not there.written:
        msg = f"column '{field.name}' of {where} is generated by Postgres and cannot be written"
        raise SchemaError(msg, node=node, hint="Leave it out in the transform.")
    ours = postgres_type(field.type)
    kind = ours.split("(")[0].lower()
    parsed = kind == "text" and (there.kind in PARSES_TEXT or there.enum)
    wide = is_wide(field.type)
    scale = digits(field.type)[1] if wide else field.type.scale if pa.types.is_decimal(field.type) else 0
    rounds = there.scale is not None and scale > there.scale
    if rounds or not (parsed or there.kind in TAKES[kind]):
        msg = (
            f"column '{field.name}' of {where} is {there.shown}, which does not hold {field.type}"
            f" ({ours}) without loss"
        )
        raise SchemaError(msg, node=node, hint="Change the column's type, or cast in the transform.")
    if keyed:
        _check_precision(node, where, field, there, "key column")
    plain = "text" if kind == "jsonb" or wide else kind
    cast = (
        there.shown
        if parsed or (kind == "jsonb" and there.kind in {"json", "jsonb"})
        else "numeric"
        if wide
        else None
    )
    if keyed and cast is None and there.kind != plain:
        cast = there.kind
    staged = "TEXT" if kind == "jsonb" or wide else ours
    loose = (
        (parsed and not there.enum)
        or there.kind in {"citext", "bpchar", "character"}
        or not there.deterministic
    )
    return TargetColumn(
        field.name,
        staged,
        cast,
        supports_direct_copy=there.plain and there.kind == plain,
        exact=not loose,
        length=there.length if keyed else None,
    )


def _check_precision(node: str, where: str, field: pa.Field, there: _ExistingColumn, what: str) -> None:
    """Raise SchemaError for a compared column that the server rounds or truncates.

    Two values would become one, and deletes would miss their row.
    """
    cut = there.kind == "name"
    rounded = there.digits is not None and there.digits < _second_digits(field.type)
    if cut or rounded:
        better = "text" if cut else postgres_type(field.type).lower()
        msg = (
            f"{what} '{field.name}' of {where} is {there.shown}, which {'cuts' if cut else 'rounds'}"
            f" {field.type}:"
        )
        msg += " values that differ become one, and a delete may miss its row"
        hint = f"ALTER TABLE {where} ALTER COLUMN {field.name} TYPE {better}, or choose another column."
        raise SchemaError(msg, node=node, hint=hint)


def _second_digits(kind: pa.DataType) -> int:
    """Return the number of fractional-second digits of a type; 0 for a type without a time."""
    if isinstance(kind, pa.TimestampType | pa.Time32Type | pa.Time64Type):
        return {"s": 0, "ms": 3, "us": 6, "ns": 6}[kind.unit]
    return 0


def _check_others(node: str, where: str, found: Mapping[str, _ExistingColumn], schema: pa.Schema) -> None:
    for name, column in found.items():
        if column.needed and name not in schema.names:
            msg = f"column '{name}' of {where} is NOT NULL without a default, and the rows do not have it"
            raise SchemaError(msg, node=node, hint="Give it a default, or add the column in the transform.")


_UNIQUE = """
SELECT i.indexrelid::regclass::text,
       array(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(num, at)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.num WHERE k.at <= i.indnkeyatts)
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
"""


def _check_key(session: Session, node: str, table: tuple[str, str], key: Sequence[str]) -> None:
    """Raise TargetError without a unique index over exactly the key: valid, immediate, no predicate."""
    there = session.run(_UNIQUE, *table)
    if any(set(columns) == set(key) for _, columns in there):
        return
    shown = "; ".join(f"{name} ({', '.join(columns)})" for name, columns in there) or "none"
    names = ", ".join(key)
    msg = f"{'.'.join(table)} has no unique index over the key ({names}); unique indexes there: {shown}"
    raise TargetError(
        msg, node=node, hint=f"CREATE UNIQUE INDEX ON {'.'.join(table)} ({names}), or correct `primary_key`."
    )


def _check_rights(session: Session, node: str, table: tuple[str, str]) -> None:
    wanted = ("SELECT", "INSERT", "UPDATE", "DELETE")
    name = sql.Identifier(*table).as_string(None)
    held = session.run(
        "SELECT r, has_table_privilege($1::text, r), current_user FROM unnest($2::text[]) r",
        name,
        list(wanted),
    )
    if lacking := [right for right, has, _ in held if not has]:
        msg = f"role {held[0][2]} lacks {', '.join(lacking)} on {'.'.join(table)}"
        raise TargetError(msg, node=node, hint=f"GRANT {', '.join(lacking)} ON {name} TO {held[0][2]}")

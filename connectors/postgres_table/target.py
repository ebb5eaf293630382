"""The target table: created when missing, otherwise proved to take the rows.

It is altered only with `schema_evolution: add_columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from headrace.connectors.json_text import check_keys
from headrace.connectors.postgres_client.session import NAME_BYTES, Session, trusted_sql
from headrace.connectors.schema_evolution import ADD_COLUMNS_HINT, log_added_columns
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
    is_bare: bool = False
    """Whether it is one table without rules, triggers and row security: COPY does to it what INSERT does."""

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
    def has_plain_keys(self) -> bool:
        """Whether keys are equal in the target if, and only if, they are equal in the rows."""
        return all(column.exact and column.cast is None for column in self.columns if column.name in self.key)

    @property
    def lengths(self) -> Mapping[str, int]:
        """The length limits of string key columns."""
        return {
            column.name: column.length
            for column in self.columns
            if column.name in self.key and column.length is not None
        }


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

_UPDATED_FILL = 80
"""Percent of a page that inserts fill. A row whose new version fits into its page needs no index entry."""


def _second_digits(kind: pa.DataType) -> int:
    """Return the number of fractional-second digits of a type; 0 for a type without a time."""
    if isinstance(kind, pa.TimestampType | pa.Time32Type | pa.Time64Type):
        return {"s": 0, "ms": 3, "us": 6, "ns": 6}[kind.unit]
    return 0


def _declare(field: pa.Field) -> sql.Composed:
    """Return the column of a table that Headrace creates or alters."""
    return sql.SQL("{} {}").format(sql.Identifier(field.name), trusted_sql(postgres_type(field.type)))


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """Creates or checks the table for rows of a schema under a key.

    Raise SchemaError for a column or type, and TargetError for rights and keys. Each message names what
    exists and what to do.
    """

    node: str
    schema: str
    table: str
    rows: pa.Schema
    key: tuple[str, ...]
    version: str | None = None
    find_new: Callable[[Iterable[str]], list[pa.Field]] = lambda _: []
    """Of the columns that exist, the ones to add."""
    is_updated: bool = False
    """Whether a new table will get many updates."""

    def prepare(self, session: Session) -> PostgresTarget:
        """Create the table if it is missing, or add columns, then check it."""
        self._check_names()
        if self._read_kind(session) is None:
            self._create(session)
        elif new := self.find_new(self._read_columns(session)):
            self._add(session, new)
        return self._check(session, list(self.rows))

    def validate(self, session: Session) -> None:
        """Check the table if it exists. Columns that `prepare` would add may be missing."""
        self._check_names()
        if self._read_kind(session) is not None:
            new = self.find_new(self._read_columns(session))
            self._check(session, [field for field in self.rows if field not in new])

    @property
    def _name(self) -> str:
        return f"{self.schema}.{self.table}"

    def _check(self, session: Session, rows: Sequence[pa.Field]) -> PostgresTarget:
        kind = self._read_kind(session)
        if kind not in {"r", "p"}:
            msg = f"{self._name} is not a table"
            raise TargetError(msg, node=self.node, hint="Name a table, or one that does not exist yet.")
        existing = self._read_columns(session)
        columns = tuple(self._match(field, existing) for field in rows)
        if self.version is not None:
            self._check_precision(self.rows.field(self.version), existing[self.version], "version_column")
        for name, column in existing.items():
            if column.needed and name not in self.rows.names:
                msg = (
                    f"column '{name}' of {self._name} is NOT NULL without a default, and the rows do not"
                    " have it"
                )
                hint = "Give it a default, or add the column in the transform."
                raise SchemaError(msg, node=self.node, hint=hint)
        if self.key:
            self._check_key(session)
        self._check_rights(session)
        bare = self._is_bare(session)
        return PostgresTarget(
            self.schema, self.table, columns, self.key, partitioned=kind == "p", is_bare=bare
        )

    def _check_names(self) -> None:
        rows = self.rows
        for name in (*self.key, *rows.names):
            if len(name.encode()) > NAME_BYTES:
                msg = f"column '{name}' has a longer name than Postgres keeps ({NAME_BYTES} bytes)"
                raise SchemaError(msg, node=self.node, hint="Rename it in a transform.")
        for field in rows:
            check_keys(self.node, field)
        for name in self.key:
            if name not in rows.names:
                columns = ", ".join(rows.names)
                msg = f"primary_key names '{name}', which the rows do not have; they have {columns}"
                hint = "Correct `primary_key`, or select the column in the transform."
                raise SchemaError(msg, node=self.node, hint=hint)
            if is_nested(rows.field(name).type):
                msg = f"primary_key column '{name}' is {rows.field(name).type}, which cannot be a key"
                raise SchemaError(msg, node=self.node, hint="Use columns of plain types as the key.")

    def _read_kind(self, session: Session) -> str | None:
        """Return the relation kind of the name: r a table, p a partitioned table; None if it does not exist.

        Other kinds cannot be targets.
        """
        rows = session.run(
            "SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE"
            " n.nspname = $1 AND c.relname = $2",
            self.schema,
            self.table,
        )
        return rows[0][0] if rows else None

    def _is_bare(self, session: Session) -> bool:
        """Return `PostgresTarget.is_bare`. Foreign keys are triggers too."""
        ((bare,),) = session.run(
            "SELECT c.relkind = 'r' AND NOT (c.relhasrules OR c.relhastriggers OR c.relrowsecurity)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = $1 AND c.relname = $2",
            self.schema,
            self.table,
        )
        return bare

    def _read_columns(self, session: Session) -> dict[str, _ExistingColumn]:
        rows = session.run(_COLUMNS, self.schema, self.table)
        return {name: _ExistingColumn(*rest) for name, *rest in rows}

    def _add(self, session: Session, columns: Sequence[pa.Field]) -> None:
        """Add columns without a default, which rewrites no row. A concurrent process may do the same."""
        added = [sql.SQL("ADD COLUMN IF NOT EXISTS {}").format(_declare(field)) for field in columns]
        table = sql.Identifier(self.schema, self.table)
        session.run(sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(", ").join(added)))
        log_added_columns(self.node, self._name, columns)

    def _create(self, session: Session) -> None:
        """Create the schema and the table. An advisory lock makes concurrent processes wait."""
        session.run("SELECT pg_advisory_xact_lock(hashtext('headrace create'))")
        if not session.run("SELECT 1 FROM pg_namespace WHERE nspname = $1", self.schema):
            session.run(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
        parts: list[sql.Composable] = [_declare(field) for field in self.rows]
        if self.key:
            columns = sql.SQL(", ").join(map(sql.Identifier, self.key))
            parts.append(sql.SQL("PRIMARY KEY ({})").format(columns))
        table = sql.Identifier(self.schema, self.table)
        options = sql.SQL(" WITH (fillfactor = {})").format(_UPDATED_FILL) if self.is_updated else sql.SQL("")
        query = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}){}")
        session.run(query.format(table, sql.SQL(", ").join(parts), options))

    def _match(self, field: pa.Field, existing: Mapping[str, _ExistingColumn]) -> TargetColumn:
        """Return how the rows' column is loaded into the table's column of the same name.

        A key is cast to the table's own type before rows are compared: keys that are equal there must be
        equal here. Other columns use the server's assignment cast, which rejects what an explicit cast would
        truncate.
        """
        ours = postgres_type(field.type)
        there = existing.get(field.name)
        if there is None:
            msg = f"{self._name} has no column '{field.name}' ({field.type}); it has {', '.join(existing)}"
            hint = (
                f"Add it (ALTER TABLE … ADD COLUMN, type {ours}), {ADD_COLUMNS_HINT}, or leave it out in the"
                " transform."
            )
            raise SchemaError(msg, node=self.node, hint=hint)
        if not there.written:
            msg = f"column '{field.name}' of {self._name} is generated by Postgres and cannot be written"
            raise SchemaError(msg, node=self.node, hint="Leave it out in the transform.")
        kind = ours.split("(")[0].lower()
        parsed = kind == "text" and (there.kind in PARSES_TEXT or there.enum)
        wide = is_wide(field.type)
        scale = digits(field.type)[1] if wide else field.type.scale if pa.types.is_decimal(field.type) else 0
        rounds = there.scale is not None and scale > there.scale
        if rounds or not (parsed or there.kind in TAKES[kind]):
            msg = (
                f"column '{field.name}' of {self._name} is {there.shown}, which does not hold {field.type}"
                f" ({ours}) without loss"
            )
            hint = "Change the column's type, or cast in the transform."
            raise SchemaError(msg, node=self.node, hint=hint)
        keyed = field.name in self.key
        if keyed:
            self._check_precision(field, there, "key column")
        plain = "text" if kind == "jsonb" or wide else kind
        cast = "numeric" if wide else None
        if parsed or (kind == "jsonb" and there.kind in {"json", "jsonb"}):
            cast = there.shown
        elif keyed and cast is None and there.kind != plain:
            cast = there.kind
        loose = (
            (parsed and not there.enum)
            or there.kind in {"citext", "bpchar", "character"}
            or not there.deterministic
        )
        return TargetColumn(
            field.name,
            "TEXT" if plain == "text" else ours,
            cast,
            supports_direct_copy=there.plain and there.kind == plain,
            exact=not loose,
            length=there.length if keyed else None,
        )

    def _check_precision(self, field: pa.Field, there: _ExistingColumn, what: str) -> None:
        """Raise SchemaError for a compared column that the server rounds or truncates.

        Two values would become one, and deletes would miss their row.
        """
        cut = there.kind == "name"
        if cut or (there.digits is not None and there.digits < _second_digits(field.type)):
            better = "text" if cut else postgres_type(field.type).lower()
            msg = (
                f"{what} '{field.name}' of {self._name} is {there.shown}, which {'cuts' if cut else 'rounds'}"
                f" {field.type}: values that differ become one, and a delete may miss its row"
            )
            hint = (
                f"ALTER TABLE {self._name} ALTER COLUMN {field.name} TYPE {better}, or choose another column."
            )
            raise SchemaError(msg, node=self.node, hint=hint)

    def _check_key(self, session: Session) -> None:
        """Raise TargetError without a unique index over exactly the key: valid, immediate, no predicate."""
        indexes = session.run(_UNIQUE, self.schema, self.table)
        if any(set(columns) == set(self.key) for _, columns in indexes):
            return
        shown = "; ".join(f"{name} ({', '.join(columns)})" for name, columns in indexes) or "none"
        names = ", ".join(self.key)
        msg = f"{self._name} has no unique index over the key ({names}); unique indexes there: {shown}"
        hint = f"CREATE UNIQUE INDEX ON {self._name} ({names}), or correct `primary_key`."
        raise TargetError(msg, node=self.node, hint=hint)

    def _check_rights(self, session: Session) -> None:
        name = sql.Identifier(self.schema, self.table).as_string(None)
        rights = session.run(
            "SELECT r, has_table_privilege($1::text, r), current_user FROM unnest($2::text[]) r",
            name,
            ["SELECT", "INSERT", "UPDATE", "DELETE"],
        )
        role = rights[0][2]
        if lacking := ", ".join(right for right, has, _ in rights if not has):
            msg = f"role {role} lacks {lacking} on {self._name}"
            raise TargetError(msg, node=self.node, hint=f"GRANT {lacking} ON {name} TO {role}")

"""The inputs of one SELECT's columns.

Names are resolved in its relation, through WITH, UNION ALL and subqueries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from headrace.pipeline.sql import statements
from headrace.pipeline.sql.generators import GeneratorCall, find_generator

_SEVERAL = (
    exp.Aliases,
    exp.Inline,
    exp.Explode,
    exp.Posexplode,
    exp.Stack,
)  # one item of a SELECT list, any number of columns


@dataclass(frozen=True, slots=True)
class Origin:
    """A column of a source."""

    node: str
    column: str


@dataclass(frozen=True, slots=True)
class LineageStep:
    """The expression by which a node computes a column.

    `column` is its name there, which a later node may change.
    """

    node: str
    column: str
    expression: str


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """The origins of a column's values. Without steps they are copied. Without origins they are constants."""

    origins: tuple[Origin, ...]
    steps: tuple[LineageStep, ...] = ()


class LineageError(Exception):
    """A node's columns cannot be derived from its SQL. The text has the reason."""


@dataclass(slots=True)
class Relation:
    """The input of a SELECT. Unlisted columns come from `rest`, or from the source itself (`open_source`)."""

    columns: list[tuple[str, ColumnLineage]]
    names: frozenset[str] = frozenset()
    rest: Relation | None = None
    hidden: frozenset[str] = frozenset()
    open_source: str = ""

    @property
    def complete(self) -> bool:
        """Whether all columns are listed."""
        return self.rest is None and not self.open_source

    def find_listed(self, name: str) -> ColumnLineage | None:
        """Return a column by its name, case-insensitive."""
        return next((derived for known, derived in self.columns if known.lower() == name.lower()), None)

    def find_unlisted(self, name: str) -> ColumnLineage | None:
        """Return an unlisted column, which comes through a `*` or directly from a source.

        None if there can be no other columns.
        """
        if self.open_source:
            return ColumnLineage((Origin(self.open_source, name),))
        if self.rest is None or name.lower() in self.hidden:
            return None
        return self.rest.find_listed(name) or self.rest.find_unlisted(name)

    def unknown(self) -> str:
        """Return the source whose columns are unknown, or an empty string if all are listed."""
        at = self
        while at.rest is not None:
            at = at.rest
        return at.open_source

    def rename(self, names: Sequence[str]) -> Relation:
        """Return the relation with the names of `AS t(a, b)`."""
        if not names:
            return self
        if not self.complete or len(names) != len(self.columns):
            msg = f"it names {len(names)} columns by their place, and how many there are is not known"
            raise LineageError(msg)
        return Relation([(name, derived) for name, (_, derived) in zip(names, self.columns, strict=True)])


@dataclass(slots=True)
class _LineageScope:
    """The scope of an expression's names: the relation, earlier aliases in the same list, the outer query."""

    relation: Relation
    outer: _LineageScope | None = None
    aliases: dict[str, ColumnLineage] = field(default_factory=dict)

    def find(self, parts: Sequence[str]) -> tuple[ColumnLineage, bool] | None:
        """Resolve a dotted name to a column. The flag is false for a field of the column. None if unknown."""
        for length in range(1, len(parts)):
            if ".".join(parts[:length]).lower() in self.relation.names:
                name = parts[length]
                if result := self.relation.find_listed(name) or self.relation.find_unlisted(name):
                    return result, len(parts) == length + 1
        name = parts[0]
        result = (
            self.relation.find_listed(name)
            or self.aliases.get(name.lower())
            or self.relation.find_unlisted(name)
        )
        if result:
            return result, len(parts) == 1
        return self.outer.find(parts) if self.outer else None


class LineageReader:
    """Derives the lineage of one node from its SQL."""

    def __init__(self, node: str, nodes: Mapping[str, Relation]) -> None:
        self._node = node
        self._nodes = nodes

    def query(self, query: exp.Expr, around: Mapping[str, Relation], outer: _LineageScope | None) -> Relation:
        """Return a statement's relation. `around` are the WITH names in scope. Raise LineageError."""
        ctes = dict(around)
        for cte in getattr(query, "ctes", ()):
            ctes[cte.alias.lower()] = self.query(cte.this, ctes, outer).rename(cte.alias_column_names)
        if isinstance(query, exp.Subquery):
            return self.query(query.this, ctes, outer).rename(query.alias_column_names)
        if isinstance(query, exp.SetOperation):
            return self._union(
                query, self.query(query.left, ctes, outer), self.query(query.right, ctes, outer)
            )
        if isinstance(query, exp.Select):
            return self._select(query, ctes, outer)
        msg = f"{query.key} is not looked into"
        raise LineageError(msg)

    def _union(self, union: exp.SetOperation, left: Relation, right: Relation) -> Relation:
        by_name = bool(union.args.get("by_name"))
        for side in (left, right):
            if not side.complete:
                msg = (
                    f"UNION ALL takes columns by their place, and the columns of `{side.unknown()}` are"
                    " not known"
                )
                raise LineageError(msg)
        if any(name == "*" for side in (left, right) for name, _ in side.columns) or not (
            by_name or len(left.columns) == len(right.columns)
        ):
            msg = "the branches of UNION ALL have different numbers of columns"
            raise LineageError(msg)
        if by_name:
            columns = [
                (name, _merge_lineages([derived, right.find_listed(name)])) for name, derived in left.columns
            ]
            return Relation(
                [
                    *columns,
                    *((name, derived) for name, derived in right.columns if left.find_listed(name) is None),
                ]
            )
        return Relation(
            [
                (name, _merge_lineages([mine, other]))
                for (name, mine), (_, other) in zip(left.columns, right.columns, strict=True)
            ]
        )

    def _select(
        self, select: exp.Select, ctes: Mapping[str, Relation], outer: _LineageScope | None
    ) -> Relation:
        scope = _LineageScope(self._from(select, ctes, outer), outer)
        generators = [*(select.args.get("joins") or []), *(select.args.get("laterals") or [])]
        for part in generators:
            if (call := find_generator(part)) is None:
                msg = f"`{part.sql(dialect=statements.DIALECT, comments=False)}` is not looked into"
                raise LineageError(msg)
            scope.relation = self._add_generated_columns(call, scope, ctes)
        relation = Relation([])
        for item in select.expressions:
            if isinstance(item, exp.Star) or (
                isinstance(item, exp.Column) and isinstance(item.this, exp.Star)
            ):
                if generators and not isinstance(item, exp.Star):
                    msg = f"`{item.sql(dialect=statements.DIALECT)}` with the items of a list is not analyzed"
                    raise LineageError(msg)
                self._star(item, scope, relation)
                continue
            several = isinstance(item, _SEVERAL)
            name = "*" if several else _name(item)
            derived = self._value(
                item.this if isinstance(item, exp.Aliases) else item.unalias(), name, scope, ctes
            )
            relation.columns.append((name, derived))
            if isinstance(item, exp.Alias):
                scope.aliases[name.lower()] = derived
        return relation

    def _from(
        self, select: exp.Select, ctes: Mapping[str, Relation], outer: _LineageScope | None
    ) -> Relation:
        clause = select.args.get("from_")
        if clause is None:
            return Relation([])
        read = clause.this
        if isinstance(read, exp.Subquery):
            return _rename_columns(self.query(read, ctes, outer), [read.alias])
        if not isinstance(read, exp.Table) or not isinstance(read.this, exp.Identifier):
            msg = f"`{read.sql(dialect=statements.DIALECT, comments=False)}` after FROM is not a node"
            raise LineageError(msg)
        name = ".".join(part.name for part in read.parts)
        result = ctes.get(name.lower()) or self._nodes.get(name)
        if result is None:
            msg = f"`{name}` reads itself"
            raise LineageError(msg)
        return _rename_columns(
            result.rename(read.alias_column_names), [read.alias] if read.alias else [name, read.name]
        )

    def _add_generated_columns(
        self, call: GeneratorCall, scope: _LineageScope, ctes: Mapping[str, Relation]
    ) -> Relation:
        """Add the columns of a generator that follows FROM. Each depends on all its lists."""
        if not call.names:
            msg = (
                f"what the columns of `{call.call.sql(dialect=statements.DIALECT, comments=False)}` are"
                " called is not in the SQL"
            )
            raise LineageError(msg)
        read = scope.relation
        text = call.call.sql(dialect=statements.DIALECT, comments=False)
        inputs = [derived for one in call.lists for derived in self._inputs(one, scope, ctes)]
        added = [(name.name, self._add_step(name.name, text, inputs)) for name in call.names]
        names = read.names | {call.alias.lower()}
        return (
            Relation([*read.columns, *added], names) if read.complete else Relation(added, names, rest=read)
        )

    def _star(self, star: exp.Star | exp.Column, scope: _LineageScope, output: Relation) -> None:
        """Add all columns of the relation. The fields of a struct are one item for several columns."""
        inner = star if isinstance(star, exp.Star) else star.this
        if inner.args.get("replace") or inner.args.get("rename"):
            msg = "`*` with REPLACE or RENAME is not looked into"
            raise LineageError(msg)
        parts = [] if isinstance(star, exp.Star) else [part.name for part in star.parts[:-1]]
        relation = scope.relation
        if parts and ".".join(parts).lower() not in relation.names:
            if (struct := scope.find(parts)) is None:
                raise _missing(parts)
            output.columns.append(("*", self._add_step("*", ".".join([*parts, "*"]), [struct[0]])))
            return
        left_out = {column.name.lower() for column in inner.args.get("except_") or ()}
        output.columns += [
            (name, derived) for name, derived in relation.columns if name.lower() not in left_out
        ]
        if not relation.complete:
            if output.rest is not None:
                msg = f"it takes all columns of `{relation.unknown()}` twice, and they are not known"
                raise LineageError(msg)
            output.rest, output.hidden = relation, frozenset(left_out)

    def _value(
        self, value: exp.Expr, name: str, scope: _LineageScope, ctes: Mapping[str, Relation]
    ) -> ColumnLineage:
        """Return a plain column unchanged.

        Otherwise return all columns in the expression and the expression itself.
        """
        bare = value.unnest()
        if (
            isinstance(bare, exp.Column)
            and (plain := scope.find([part.name for part in bare.parts]))
            and plain[1]
        ):
            return plain[0]
        return self._add_step(
            name,
            value.sql(dialect=statements.DIALECT, comments=False),
            list(self._inputs(value, scope, ctes)),
        )

    def _inputs(
        self, value: exp.Expr, scope: _LineageScope, ctes: Mapping[str, Relation]
    ) -> Iterator[ColumnLineage]:
        """Yield all columns that an expression depends on."""
        if isinstance(value, exp.Query):
            yield from (derived for _, derived in self.query(value, ctes, scope).columns)
        elif isinstance(value, exp.Star):
            yield from (derived for _, derived in scope.relation.columns)
        elif isinstance(value, exp.Column):
            parts = [part.name for part in value.parts]
            if (result := scope.find(parts)) is None:
                raise _missing(parts)
            yield result[0]
        else:
            for part in value.iter_expressions():
                yield from self._inputs(part, scope, ctes)

    def _add_step(self, name: str, expression: str, inputs: Sequence[ColumnLineage]) -> ColumnLineage:
        merged = _merge_lineages(inputs)
        return ColumnLineage(merged.origins, (*merged.steps, LineageStep(self._node, name, expression)))


def _name(item: exp.Expr) -> str:
    bare = item.unnest()
    return (
        bare.alias_or_name
        if isinstance(bare, exp.Alias | exp.Column | exp.Dot)
        else item.sql(dialect=statements.DIALECT, comments=False)
    )


def _missing(parts: Sequence[str]) -> LineageError:
    return LineageError(f"no column `{'.'.join(parts)}` is there to read")


def _rename_columns(relation: Relation, names: Sequence[str]) -> Relation:
    return Relation(
        relation.columns,
        frozenset(name.lower() for name in names),
        relation.rest,
        relation.hidden,
        relation.open_source,
    )


def _merge_lineages(lineages: Sequence[ColumnLineage | None]) -> ColumnLineage:
    there = [derived for derived in lineages if derived is not None]
    origins = dict.fromkeys(origin for derived in there for origin in derived.origins)
    return ColumnLineage(
        tuple(origins), tuple(dict.fromkeys(step for derived in there for step in derived.steps))
    )

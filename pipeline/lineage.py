"""Which source columns every column of a pipeline comes from, and through which expressions. Read from the SQL alone.

A SELECT of a per-row transform reads one relation (joins are refused), so a name has one meaning and no schema is needed to
find it: only `*` needs to know the columns. Names are compared without case and shown as they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from headrace.pipeline import graph, sql
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.nodes import PipelineModel
from headrace.pipeline.types import parse_type, spark_type

Schemas = Mapping[str, Mapping[str, str]]
"""By node the Spark SQL type of every column, in order; an empty one where only the name is known."""

_SEVERAL = (exp.Aliases, exp.Inline, exp.Explode, exp.Posexplode)  # one item of a SELECT list, any number of columns


@dataclass(frozen=True, slots=True)
class Origin:
    """A column of a source."""

    node: str
    column: str


@dataclass(frozen=True, slots=True)
class Step:
    """What a node computes a column by. `column` is its name there, which a later node may change."""

    node: str
    column: str
    expression: str


@dataclass(frozen=True, slots=True)
class Derived:
    """Where the values of a column come from. Without steps they are copied as they are; without origins they are constants."""

    origins: tuple[Origin, ...]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLineage:
    """The columns of a node in order. `unknown` says why there are others, or none at all; empty where all are told."""

    columns: Mapping[str, Derived]
    types: Mapping[str, str]
    unknown: str = ""


class _UntoldError(Exception):
    """A node's columns cannot be told from its SQL; the text says why."""


@dataclass(slots=True)
class _Relation:
    """What a SELECT reads. Columns that are not listed are looked for in `rest`, or are the source's own (`open_source`)."""

    columns: list[tuple[str, Derived]]
    names: frozenset[str] = frozenset()
    rest: _Relation | None = None
    hidden: frozenset[str] = frozenset()
    open_source: str = ""

    @property
    def complete(self) -> bool:
        """Whether all columns are listed."""
        return self.rest is None and not self.open_source

    def listed(self, name: str) -> Derived | None:
        return next((derived for known, derived in self.columns if known.lower() == name.lower()), None)

    def unlisted(self, name: str) -> Derived | None:
        if self.open_source:
            return Derived((Origin(self.open_source, name),))
        if self.rest is None or name.lower() in self.hidden:
            return None
        return self.rest.listed(name) or self.rest.unlisted(name)

    def unknown(self) -> str:
        at = self
        while at.rest is not None:
            at = at.rest
        return at.open_source

    def renamed(self, names: Sequence[str]) -> _Relation:
        """With the names of `AS t(a, b)`."""
        if not names:
            return self
        if not self.complete or len(names) != len(self.columns):
            msg = f"it names {len(names)} columns by their place, and how many there are is not known"
            raise _UntoldError(msg)
        return _Relation([(name, derived) for name, (_, derived) in zip(names, self.columns, strict=True)])


def lineage(model: PipelineModel, schemas: Schemas) -> dict[str, NodeLineage]:
    """The lineage of every node.

    Args:
        model: the pipeline.
        schemas: the columns of nodes, as far as they are known. Those of transforms give their columns' true names and types.
    """
    relations: dict[str, _Relation] = {}
    reasons: dict[str, str] = {}
    types: dict[str, Mapping[str, str]] = {}
    for name in model.sources:
        known = schemas.get(name)
        relations[name] = _Relation(
            [(column, Derived((Origin(name, column),))) for column in known or ()], open_source="" if known else name
        )
        types[name] = known or {}
    for name in graph.in_order(model):
        if poor := next((upstream for upstream in graph.inputs_of(model, name) if upstream in reasons), None):
            reasons[name] = reasons[poor]
            continue
        try:
            text = model.transforms[name].sql
            relations[name] = _named(_Reader(name, relations).query(sql.parse(text, node=name), {}, None), name, schemas.get(name))
        except _UntoldError as error:
            reasons[name] = f"transform `{name}`: {error}"
            continue
        names = [column for column, _ in relations[name].columns]
        known = schemas.get(name)
        kinds = list(known.values()) if known else _types(text, {upstream: types[upstream] for upstream in graph.inputs_of(model, name)})
        types[name] = dict(zip(names, kinds if len(kinds) == len(names) else [""] * len(names), strict=True))
    return {name: _told(name if name not in model.sinks else model.sinks[name].from_, relations, reasons, types) for name in model.nodes()}


def spoken_columns(source: Any) -> dict[str, str]:
    """What the file itself says of a source's columns: the stream's schema, which a history before it shares; {} if nothing."""
    spoken = source.unbounded_source.schema_ if source.type == "hybrid" else getattr(source, "schema_", {})
    try:
        return {column: spark_type(parse_type(kind)) for column, kind in spoken.items()}
    except SchemaError:
        return {}


def _told(name: str, relations: Mapping[str, _Relation], reasons: Mapping[str, str], types: Schemas) -> NodeLineage:
    if name in reasons:
        return NodeLineage({}, {}, reasons[name])
    found = relations[name]
    unknown = "" if found.complete else f"the columns of `{found.unknown()}` are not known"
    return NodeLineage(dict(found.columns), types[name], unknown)


def _named(found: _Relation, node: str, known: Mapping[str, str] | None) -> _Relation:
    """With the names that Spark gives, and with items that stand for several columns spread over theirs."""
    several = [place for place, (name, _) in enumerate(found.columns) if name == "*"]
    if known is None or not found.complete:
        if several:
            msg = "how many columns one of its items stands for is not known"
            raise _UntoldError(msg)
        return found
    columns, names = list(found.columns), list(known)
    if len(several) == 1 and len(names) >= len(columns) - 1:
        place, more = several[0], len(names) - len(columns) + 1
        spread = columns[place][1]
        columns[place : place + 1] = [(name, _labelled(spread, node, name)) for name in names[place : place + more]]
    if len(columns) != len(names):
        msg = "it has other columns than its SELECT list says"
        raise _UntoldError(msg)
    return _Relation([(name, derived) for name, (_, derived) in zip(names, columns, strict=True)])


def _labelled(spread: Derived, node: str, name: str) -> Derived:
    *before, own = spread.steps
    return Derived(spread.origins, (*before, Step(node, name, own.expression)))


@dataclass(slots=True)
class _Scope:
    """Where an expression's names are looked up: the relation, aliases further left in the same list, the query around it."""

    relation: _Relation
    outer: _Scope | None = None
    aliases: dict[str, Derived] = field(default_factory=dict)

    def find(self, parts: Sequence[str]) -> tuple[Derived, bool] | None:
        """What a dotted name means, and whether it is the whole column and not a field of it."""
        for length in range(1, len(parts)):
            if ".".join(parts[:length]).lower() in self.relation.names:
                name = parts[length]
                if found := self.relation.listed(name) or self.relation.unlisted(name):
                    return found, len(parts) == length + 1
        name = parts[0]
        found = self.relation.listed(name) or self.aliases.get(name.lower()) or self.relation.unlisted(name)
        if found:
            return found, len(parts) == 1
        return self.outer.find(parts) if self.outer else None


class _Reader:
    """Reads the SQL of one node."""

    def __init__(self, node: str, nodes: Mapping[str, _Relation]) -> None:
        self._node = node
        self._nodes = nodes

    def query(self, query: exp.Expr, around: Mapping[str, _Relation], outer: _Scope | None) -> _Relation:
        ctes = dict(around)
        for cte in getattr(query, "ctes", ()):
            ctes[cte.alias.lower()] = self.query(cte.this, ctes, outer).renamed(cte.alias_column_names)
        if isinstance(query, exp.Subquery):
            return self.query(query.this, ctes, outer).renamed(query.alias_column_names)
        if isinstance(query, exp.SetOperation):
            return self._union(query, self.query(query.left, ctes, outer), self.query(query.right, ctes, outer))
        if isinstance(query, exp.Select):
            return self._select(query, ctes, outer)
        msg = f"{query.key} is not looked into"
        raise _UntoldError(msg)

    def _union(self, union: exp.SetOperation, left: _Relation, right: _Relation) -> _Relation:
        by_name = bool(union.args.get("by_name"))
        for side in (left, right):
            if not side.complete:
                msg = f"UNION ALL takes columns by their place, and the columns of `{side.unknown()}` are not known"
                raise _UntoldError(msg)
        if any(name == "*" for side in (left, right) for name, _ in side.columns) or not (
            by_name or len(left.columns) == len(right.columns)
        ):
            msg = "the branches of UNION ALL have different numbers of columns"
            raise _UntoldError(msg)
        if by_name:
            columns = [(name, _merged([derived, right.listed(name)])) for name, derived in left.columns]
            return _Relation([*columns, *((name, derived) for name, derived in right.columns if left.listed(name) is None)])
        return _Relation([(name, _merged([mine, other])) for (name, mine), (_, other) in zip(left.columns, right.columns, strict=True)])

    def _select(self, select: exp.Select, ctes: Mapping[str, _Relation], outer: _Scope | None) -> _Relation:
        scope = _Scope(self._from(select, ctes, outer), outer)
        found = _Relation([])
        for item in select.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                self._star(item, scope, found)
                continue
            several = isinstance(item, _SEVERAL)
            name = "*" if several else _name(item)
            derived = self._value(item.this if isinstance(item, exp.Aliases) else item.unalias(), name, scope, ctes)
            found.columns.append((name, derived))
            if isinstance(item, exp.Alias):
                scope.aliases[name.lower()] = derived
        return found

    def _from(self, select: exp.Select, ctes: Mapping[str, _Relation], outer: _Scope | None) -> _Relation:
        clause = select.args.get("from_")
        if clause is None:
            return _Relation([])
        read = clause.this
        if isinstance(read, exp.Subquery):
            return _called(self.query(read, ctes, outer), [read.alias])
        if not isinstance(read, exp.Table) or not isinstance(read.this, exp.Identifier):
            msg = f"`{read.sql(dialect=sql.DIALECT, comments=False)}` behind FROM is not a node"
            raise _UntoldError(msg)
        name = ".".join(part.name for part in read.parts)
        found = ctes.get(name.lower()) or self._nodes.get(name)
        if found is None:
            msg = f"`{name}` reads itself"
            raise _UntoldError(msg)
        return _called(found.renamed(read.alias_column_names), [read.alias] if read.alias else [name, read.name])

    def _star(self, star: exp.Star | exp.Column, scope: _Scope, found: _Relation) -> None:
        """Adds all columns of the relation, or the fields of a struct as one item that stands for several."""
        inner = star if isinstance(star, exp.Star) else star.this
        if inner.args.get("replace") or inner.args.get("rename"):
            msg = "`*` with REPLACE or RENAME is not looked into"
            raise _UntoldError(msg)
        parts = [] if isinstance(star, exp.Star) else [part.name for part in star.parts[:-1]]
        relation = scope.relation
        if parts and ".".join(parts).lower() not in relation.names:
            if (struct := scope.find(parts)) is None:
                raise _missing(parts)
            found.columns.append(("*", self._stepped("*", ".".join([*parts, "*"]), [struct[0]])))
            return
        left_out = {column.name.lower() for column in inner.args.get("except_") or ()}
        found.columns += [(name, derived) for name, derived in relation.columns if name.lower() not in left_out]
        if not relation.complete:
            if found.rest is not None:
                msg = f"it takes all columns of `{relation.unknown()}` twice, and they are not known"
                raise _UntoldError(msg)
            found.rest, found.hidden = relation, frozenset(left_out)

    def _value(self, value: exp.Expr, name: str, scope: _Scope, ctes: Mapping[str, _Relation]) -> Derived:
        """A column as it is, else all columns in the expression and the expression itself."""
        bare = value.unnest()
        if isinstance(bare, exp.Column) and (plain := scope.find([part.name for part in bare.parts])) and plain[1]:
            return plain[0]
        return self._stepped(name, value.sql(dialect=sql.DIALECT, comments=False), list(self._inputs(value, scope, ctes)))

    def _inputs(self, value: exp.Expr, scope: _Scope, ctes: Mapping[str, _Relation]) -> Iterator[Derived]:
        """Everything that an expression takes its value from."""
        if isinstance(value, exp.Query):
            yield from (derived for _, derived in self.query(value, ctes, scope).columns)
        elif isinstance(value, exp.Star):
            yield from (derived for _, derived in scope.relation.columns)
        elif isinstance(value, exp.Column):
            parts = [part.name for part in value.parts]
            if (found := scope.find(parts)) is None:
                raise _missing(parts)
            yield found[0]
        else:
            for part in value.iter_expressions():
                yield from self._inputs(part, scope, ctes)

    def _stepped(self, name: str, expression: str, inputs: Sequence[Derived]) -> Derived:
        merged = _merged(inputs)
        return Derived(merged.origins, (*merged.steps, Step(self._node, name, expression)))


def _name(item: exp.Expr) -> str:
    bare = item.unnest()
    return bare.alias_or_name if isinstance(bare, exp.Alias | exp.Column | exp.Dot) else item.sql(dialect=sql.DIALECT, comments=False)


def _missing(parts: Sequence[str]) -> _UntoldError:
    return _UntoldError(f"no column `{'.'.join(parts)}` is there to read")


def _called(found: _Relation, names: Sequence[str]) -> _Relation:
    return _Relation(found.columns, frozenset(name.lower() for name in names), found.rest, found.hidden, found.open_source)


def _merged(found: Sequence[Derived | None]) -> Derived:
    there = [derived for derived in found if derived is not None]
    origins = dict.fromkeys(origin for derived in there for origin in derived.origins)
    return Derived(tuple(origins), tuple(dict.fromkeys(step for derived in there for step in derived.steps)))


def _types(text: str, inputs: Schemas) -> list[str]:
    """The types of a statement's columns in order, as far as they can be told without Spark; none where they cannot."""
    if not all(inputs.values()) or any(not kind for columns in inputs.values() for kind in columns.values()):
        return []
    schema: dict[str, Any] = {node: dict(columns) for node, columns in inputs.items()}
    try:
        query = annotate_types(qualify(sql.parse(text), schema=schema, dialect=sql.DIALECT), schema=schema, dialect=sql.DIALECT)
    except (SqlglotError, KeyError):
        return []
    return [_spelled(part) for part in query.selects]


def _spelled(part: exp.Expr) -> str:
    kind = part.type
    return "" if kind is None or kind.is_type(exp.DType.UNKNOWN) else kind.sql(dialect=sql.DIALECT)

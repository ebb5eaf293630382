"""Which expressions of a statement are numbers that Spark has no room for: 256-bit integers, and decimals of 39 to 76 digits.

To Spark both are text of their digits. A whole number of up to 76 digits is as good as a 256-bit integer, and computes as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.optimizer.annotate_types import annotate_types

from headrace.pipeline.functions import function_of
from headrace.pipeline.wide import INT256, UINT256, WideInteger

KINDS: Mapping[object, WideInteger] = {exp.DType.UINT256: UINT256, exp.DType.INT256: INT256}
NUMBERS = {*exp.DataType.NUMERIC_TYPES, exp.DType.DECIMAL256}
UNKNOWN = exp.DataType.build("UNKNOWN")
_TEXT = exp.DataType.build("TEXT")
_TEXTS = (exp.SplitPart, exp.SubstringIndex, exp.Left, exp.Right, exp.Overlay, exp.Elt, exp.ParseUrl, exp.RegexpSubstr, exp.Uuid)
_TEXT_NAMES = ("json_value", "printf", "mask", "url_decode", "btrim", "conv", "quote", "bin")
"""Functions whose text sqlglot does not know as such."""
_NAMES = {"uint256": UINT256, "int256": INT256}
_TAKES: tuple[type[exp.Expr], ...] = (exp.Column, exp.Bracket, exp.Dot, exp.Reduce, exp.Identifier, exp.Cast)
_ALIKE: tuple[type[exp.Expr], ...] = (
    exp.ArrayFilter,
    exp.ArraySort,
    exp.ArrayDistinct,
    exp.ArrayCompact,
    exp.ArrayRemove,
    exp.ArrayAppend,
    exp.ArrayPrepend,
    exp.ArrayInsert,
    exp.ArraySlice,
    exp.Reverse,
    exp.Shuffle,
)
"""Functions that give a list of the type of their first argument."""
_JOINED: tuple[type[exp.Expr], ...] = (exp.Concat, exp.ArrayConcat, exp.ArrayIntersect, exp.ArrayExcept, exp.DPipe)
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_WRITTEN = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")


def type_of_wide(kind: pa.DataType) -> exp.DataType:
    """As sqlglot names it."""
    if isinstance(kind, WideInteger):
        return exp.DataType.build("INT256" if kind.signed else "UINT256", dialect="clickhouse")
    return exp.DataType.build(f"Decimal256({kind.precision}, {kind.scale})", dialect="clickhouse")


def wide_of_type(kind: exp.DataType | None) -> pa.DataType | None:
    """The way back; None for every other type."""
    if kind is not None and kind.this == exp.DType.DECIMAL256:
        return pa.decimal256(*(int(part.name) for part in kind.expressions))
    return KINDS.get(kind.this) if kind is not None else None


def told(node: exp.Expr) -> exp.DataType:
    """The type that sqlglot tells from those of the columns."""
    found = annotate_types(node.copy(), dialect=Spark, overwrite_types=False).type
    if found is not None and found.this != exp.DType.UNKNOWN:
        return found
    bare = node.unnest()
    named = isinstance(bare, exp.Anonymous) and bare.name.lower() in _TEXT_NAMES and not bare.find(exp.Kwarg)
    return _TEXT if named or isinstance(bare, _TEXTS) else UNKNOWN


def kind_of(node: exp.Expr | None) -> WideInteger | None:
    """The 256-bit type of an expression, by its functions and by the types of its columns; None for every other, and for a query."""
    if isinstance(node, exp.Paren | exp.Alias):
        return kind_of(node.this)
    if isinstance(node, exp.Anonymous):
        own = function_of(node)
        if own is not None:
            return agreed(node.expressions) if node.name.lower() == "coalesce_meta" else _NAMES.get(own.result)
    if isinstance(node, exp.Explode):
        wide = wide_of_type(items_of(node.this))
    elif isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nvl2):
        return agreed(branches(node))
    else:
        wide = wide_of_type(_taken(node))
    if wide is None or isinstance(wide, WideInteger):
        return wide
    return INT256 if wide.scale == 0 else None


def items_of(node: exp.Expr) -> exp.DataType | None:
    """The type of the items of a list; None where it cannot be told."""
    kind = held(node)
    return kind.expressions[0] if kind.this == exp.DType.ARRAY and kind.expressions else None


def held(node: exp.Expr) -> exp.DataType:
    """The type of an expression, in which wide numbers keep theirs inside of lists, maps and structs; UNKNOWN where it cannot be told."""
    bare = node.unalias().unnest()
    if isinstance(bare, _TAKES):
        found = _taken(bare)
    else:
        wide = kind_of(bare) or decimal_of(bare)
        found = type_of_wide(wide) if wide is not None else _holder(bare)
        found = found if found is not None and holds_wide(found) else None
    if found is None and holds_wide(found := told(bare)):
        return UNKNOWN
    return found


def holds_wide(kind: exp.DataType) -> bool:
    """Whether a type is that of a wide number, or has one inside."""
    return any(wide_of_type(part) is not None for part in kind.find_all(exp.DataType))


def _taken(node: exp.Expr | None) -> exp.DataType | None:
    """The type of a column, of a lambda's variable, of what is taken out of a list, a map or a struct; None where it cannot be told."""
    if isinstance(node, exp.Column | exp.Identifier | exp.Cast):
        return node.type
    if isinstance(node, exp.Reduce):
        last = node.args.get("finish") or node.args["initial"]
        return held(last.this if isinstance(last, exp.Lambda) else last)
    if isinstance(node, exp.Dot):
        return field_type(held(node.this), node.name)
    get = isinstance(node, exp.Anonymous) and node.name.lower() == "get"
    if node is None or not (get or isinstance(node, exp.Bracket)) or isinstance(node.expressions[-1], exp.Slice):
        return None
    of = held(node.expressions[0] if get else node.this)
    if of.this == exp.DType.STRUCT:
        return field_type(of, node.expressions[-1].name)
    return of.expressions[-1] if of.this in (exp.DType.ARRAY, exp.DType.MAP) and of.expressions else None


def field_type(of: exp.DataType, name: str) -> exp.DataType | None:
    """The type of a field of a struct, or of that field of all structs of a list; None where there is none."""
    if of.this == exp.DType.ARRAY and of.expressions:
        inner = field_type(of.expressions[0], name) if of.expressions[0].this == exp.DType.STRUCT else None
        return _nested("ARRAY", inner) if inner is not None else None
    inside = of.expressions if of.this == exp.DType.STRUCT else ()
    return next((one.kind for one in inside if isinstance(one, exp.ColumnDef) and one.name.lower() == name.lower()), None)


def _holder(node: exp.Expr) -> exp.DataType | None:
    """The type of what is made a list, a map or a struct, as far as wide numbers are in it; None for every other expression."""
    found: exp.DataType | None = None
    if isinstance(node, exp.Array):
        found = _nested("ARRAY", _common(node.expressions))
    elif isinstance(node, exp.Struct):
        pairs = [(one.name, one.expression) if isinstance(one, exp.PropertyEQ) else (one.alias_or_name, one) for one in node.expressions]
        found = struct_of([(name, held(value)) for name, value in pairs])
    elif isinstance(node, exp.VarMap | exp.Map) and node.args.get("keys") is not None:
        found = _nested("MAP", *(items_of(node.args[part]) or UNKNOWN for part in ("keys", "values")))
    elif isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nvl2):
        found = _common(branches(node))
    elif isinstance(node, exp.Transform):
        found = _nested("ARRAY", held(_body(node.expression)))
    elif isinstance(node, _ALIKE):
        found = held(node.this)
    elif isinstance(node, exp.Flatten):
        found = items_of(node.this)
    elif joined_lists(node):
        found = _of_joined(node)
    elif isinstance(node, exp.ArraysZip):
        names = [one.name if isinstance(one, exp.Column) else str(at) for at, one in enumerate(node.expressions)]
        items = [items_of(one) or UNKNOWN for one in node.expressions]
        found = _nested("ARRAY", struct_of(list(zip(names, items, strict=True))))
    elif isinstance(node, exp.Anonymous) and node.expressions:
        found = _holder_by_name(node.name.lower(), node.expressions)
    return found


def _holder_by_name(name: str, parts: Sequence[exp.Expr]) -> exp.DataType | None:
    """The same for functions that sqlglot does not know."""
    first = held(parts[0])
    found: exp.DataType | None = None
    if name == "named_struct":
        found = struct_of([(said.name, held(value)) for said, value in zip(parts[::2], parts[1::2], strict=False)])
    elif name == "map_filter":
        found = first
    elif name == "array_repeat":
        found = _nested("ARRAY", first)
    elif name == "zip_with":
        found = _nested("ARRAY", held(_body(parts[-1])))
    elif name == "map_concat":
        found = _merged([held(one) for one in parts])
    elif first.this == exp.DType.MAP and len(first.expressions) == 2:
        key, value = first.expressions
        made = {
            "map_keys": lambda: _nested("ARRAY", key),
            "map_values": lambda: _nested("ARRAY", value),
            "map_entries": lambda: _nested("ARRAY", struct_of([("key", key), ("value", value)])),
            "transform_keys": lambda: _nested("MAP", held(_body(parts[-1])), value),
            "transform_values": lambda: _nested("MAP", key, held(_body(parts[-1]))),
        }
        found = made[name]() if name in made else None
    return found


def joined_lists(node: exp.Expr) -> list[exp.DataType]:
    """The types of the items of lists that a function makes one of; none for every other expression."""
    if not isinstance(node, _JOINED) and not (isinstance(node, exp.Anonymous) and node.name.lower() == "array_union"):
        return []
    return [kind for part in node.iter_expressions() if (kind := items_of(part)) is not None]


def _of_joined(node: exp.Expr) -> exp.DataType:
    """The type of several lists in one; those of both 256-bit integers are lists of the signed one."""
    return _nested("ARRAY", _merged(joined_lists(node)))


def _body(given: exp.Expr) -> exp.Expr:
    return given.this if isinstance(given, exp.Lambda) else given


def _nested(of: str, *parts: exp.DataType) -> exp.DataType:
    return exp.DataType(this=exp.DType[of], expressions=[part.copy() for part in parts], nested=True)


def _common(parts: Sequence[exp.Expr]) -> exp.DataType:
    """The one type of several expressions, NULLs left out; UNKNOWN where they have not one."""
    rest = [part for part in parts if not isinstance(part.unnest(), exp.Null)]
    if (wide := agreed(rest) or agreed_decimal(rest)) is not None:
        return type_of_wide(wide)
    return _merged([held(part) for part in rest])


def _merged(kinds: Sequence[exp.DataType]) -> exp.DataType:
    """One type for several: 256-bit integers of both kinds are signed, also inside of lists, maps and structs; UNKNOWN where there is none."""
    if not kinds or all(kind == kinds[0] for kind in kinds):
        return kinds[0] if kinds else UNKNOWN
    if all(isinstance(wide_of_type(kind), WideInteger) for kind in kinds):
        return type_of_wide(INT256)
    first = kinds[0]
    alike = all(kind.this == first.this and len(kind.expressions) == len(first.expressions) for kind in kinds)
    if not alike or first.this not in (exp.DType.ARRAY, exp.DType.MAP, exp.DType.STRUCT):
        return UNKNOWN
    inside = [[part.kind if isinstance(part, exp.ColumnDef) else part for part in kind.expressions] for kind in kinds]
    parts = [_merged([one or UNKNOWN for one in column]) for column in zip(*inside, strict=True)]
    if first.this != exp.DType.STRUCT:
        return exp.DataType(this=first.this, expressions=[part.copy() for part in parts], nested=True)
    return struct_of([(one.name, part) for one, part in zip(first.expressions, parts, strict=True)])


def struct_of(fields: Sequence[tuple[str, exp.DataType]]) -> exp.DataType:
    """The type of a struct with these fields."""
    made = [exp.ColumnDef(this=exp.to_identifier(name, quoted=True), kind=kind.copy()) for name, kind in fields]
    return exp.DataType(this=exp.DType.STRUCT, expressions=made, nested=True)


def decimal_of(node: exp.Expr | None) -> pa.Decimal256Type | None:
    """The type of an expression that is a wide decimal with digits behind the point; None for every other."""
    if isinstance(node, exp.Paren | exp.Alias):
        return decimal_of(node.this)
    if isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nvl2):
        return agreed_decimal(branches(node))
    wide = wide_of_type(items_of(node.this) if isinstance(node, exp.Explode) else _taken(node))
    return wide if wide is not None and not isinstance(wide, WideInteger) and wide.scale else None


def agreed_decimal(parts: Sequence[exp.Expr]) -> pa.Decimal256Type | None:
    """The wide decimal that several results are: one type, beside NULL and written numbers with room in it."""
    rest = [part for part in parts if not isinstance(part.unnest(), exp.Null)]
    found = {kind for part in rest if (kind := decimal_of(part)) is not None}
    if len(found) != 1:
        return None
    kind = found.pop()
    return kind if all(decimal_of(part) == kind or has_room(written(part), kind) for part in rest) else None


def has_room(number: Decimal | None, kind: pa.Decimal256Type) -> bool:
    """Whether a number fits without loss."""
    if number is None:
        return False
    digits, exponent = number.as_tuple().digits, int(number.as_tuple().exponent)
    return -exponent <= kind.scale and len(digits) + exponent <= kind.precision - kind.scale


def is_wide_number(node: exp.Expr) -> bool:
    """Whether an expression is a number that is text to Spark."""
    return kind_of(node) is not None or decimal_of(node) is not None


def agreed(parts: Sequence[exp.Expr]) -> WideInteger | None:
    """The type of several results: the signed one where both are there. A result that is none of them, and no number, is of another type."""
    kinds = {kind_of(part) for part in parts if not isinstance(part.unnest(), exp.Null)}
    found = {kind for kind in kinds if kind is not None}
    if not found or not all(kind_of(part) is not None or is_whole(part) or isinstance(part.unnest(), exp.Null) for part in parts):
        return None
    return found.pop() if len(found) == 1 else INT256


def branches(node: exp.Expr) -> list[exp.Expr]:
    """The expressions that a choice gives one of, and the items of a list that is written out."""
    if isinstance(node, exp.Coalesce):
        return [node.this, *node.expressions]
    if isinstance(node, exp.Array):
        return list(node.expressions)
    parts = [branch.args["true"] for branch in node.args["ifs"]] + [node.args.get("default")] if isinstance(node, exp.Case) else [
        node.args["true"], node.args.get("false")
    ]  # fmt: skip
    return [part for part in parts if part is not None]


def whole_number(node: exp.Expr) -> str | None:
    """The digits of a whole number that is written out, as a number or in quotes; None for everything else."""
    bare = node.unnest()
    if isinstance(bare, exp.Neg) and isinstance(bare.this, exp.Literal) and not bare.this.is_string and _WHOLE.fullmatch(bare.this.name):
        return f"-{bare.this.name}".split(".", maxsplit=1)[0]
    if isinstance(bare, exp.Literal) and _WHOLE.fullmatch(bare.name):
        return bare.name.removeprefix("+").split(".", maxsplit=1)[0]
    return None


def written(node: exp.Expr) -> Decimal | None:
    """A number that is written out without an exponent, as a number or in quotes."""
    bare = node.unnest()
    negative = isinstance(bare, exp.Neg)
    bare = bare.this.unnest() if negative else bare
    if not isinstance(bare, exp.Literal) or (negative and bare.is_string) or not _WRITTEN.fullmatch(bare.name):
        return None
    return Decimal(f"{'-' if negative else ''}{bare.name}")


def is_whole(node: exp.Expr) -> bool:
    """Whether it is a whole number of at most 64 bits, a decimal without a fraction, or one that is written out."""
    kind = told(node)
    return whole_number(node) is not None or kind.this in exp.DataType.SIGNED_INTEGER_TYPES or is_whole_decimal(kind)


def is_whole_decimal(kind: exp.DataType) -> bool:
    """Whether a type is that of decimals without digits behind the point."""
    said = kind.expressions
    return kind.this == exp.DType.DECIMAL and (len(said) == 1 or (len(said) == 2 and said[1].name == "0"))

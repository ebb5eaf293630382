"""Types of expressions.

Spark stores numbers of more than 38 digits as strings, so only the type identifies them. `rewrite` sets the
type of every expression that contains such a number. sqlglot infers the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import reduce

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.optimizer.annotate_types import annotate_types

from headrace.pipeline.types.int256 import INT256, UINT256, WideInteger

INTEGERS_256: Mapping[object, WideInteger] = {exp.DType.UINT256: UINT256, exp.DType.INT256: INT256}
INTEGERS = (exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT)
UNKNOWN = exp.DataType.build("UNKNOWN")
_INT = exp.DataType.build("INT")
_CONTAINERS = (exp.DType.ARRAY, exp.DType.MAP, exp.DType.STRUCT)


def type_of_wide(kind: pa.DataType) -> exp.DataType:
    """Return sqlglot's type for an Arrow type of more than 38 digits."""
    if isinstance(kind, WideInteger):
        return exp.DataType.build("INT256" if kind.signed else "UINT256", dialect="clickhouse")
    return exp.DataType.build(f"Decimal256({kind.precision}, {kind.scale})", dialect="clickhouse")


def wide_of_type(kind: exp.DataType | None) -> pa.DataType | None:
    """Return the Arrow type for sqlglot's type. None unless it is a number of more than 38 digits."""
    if kind is not None and kind.this == exp.DType.DECIMAL256:
        return pa.decimal256(*(int(part.name) for part in kind.expressions))
    return INTEGERS_256.get(kind.this) if kind is not None else None


def holds_wide(kind: exp.DataType | None) -> bool:
    """Return whether a type is a number of more than 38 digits, or contains one in a list, map or struct."""
    return kind is not None and any(wide_of_type(part) is not None for part in kind.find_all(exp.DataType))


def is_wide(node: exp.Expr) -> bool:
    """Return whether an expression contains a number of more than 38 digits.

    Its children must be rewritten.
    """
    return not isinstance(node, exp.DataType) and holds_wide(node.type)


def infer_type(node: exp.Expr) -> exp.DataType:
    """Return the type of an expression. UNKNOWN if it cannot be inferred."""
    node = node.unalias().unnest()
    if node.type is not None and node.type.this != exp.DType.UNKNOWN:
        return node.type
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    result: exp.DataType | None = None
    if isinstance(node, exp.Dot):
        result = field_type(infer_type(node.this), node.name)
    elif name == "get":
        result = element_type(infer_type(node.expressions[0]))
    elif isinstance(node, exp.Struct) or name == "named_struct":
        result = _struct_type(node)
    elif isinstance(node, exp.VarMap):
        result = _container(
            exp.DType.MAP, [element_type(infer_type(node.args[part])) for part in ("keys", "values")]
        )
    elif isinstance(node, exp.Bracket) and not isinstance(node.expressions[0], exp.Slice):
        kind = infer_type(node.this)
        result = (
            field_type(kind, node.expressions[0].name)
            if kind.this == exp.DType.STRUCT
            else element_type(kind)
        )
    else:
        result = annotate_types(node.copy(), dialect=Spark, overwrite_types=False).type
    return result or UNKNOWN


def _struct_type(node: exp.Expr) -> exp.DataType:
    parts = node.expressions
    if isinstance(node, exp.Struct):
        labelled = (exp.PropertyEQ, exp.Alias, exp.Column, exp.Dot)
        names = [
            one.alias_or_name if isinstance(one, labelled) else f"col{at}"
            for at, one in enumerate(parts, start=1)
        ]
        fields = [
            (name, one.expression if isinstance(one, exp.PropertyEQ) else one)
            for name, one in zip(names, parts, strict=True)
        ]
    else:
        fields = [(name.name, value) for name, value in zip(parts[::2], parts[1::2], strict=False)]
    named = [
        exp.ColumnDef(this=exp.to_identifier(name, quoted=True), kind=infer_type(value).copy())
        for name, value in fields
    ]
    return _container(exp.DType.STRUCT, named)


def element_type(container: exp.DataType) -> exp.DataType:
    """Return the type of a list's items or of a map's values. UNKNOWN for every other type."""
    is_container = container.this in (exp.DType.ARRAY, exp.DType.MAP)
    return container.expressions[-1] if is_container and container.expressions else UNKNOWN


def field_type(struct: exp.DataType, name: str) -> exp.DataType | None:
    """Return the type of a struct's field. None if there is no such field.

    For a list of structs, return the list of the field's type.
    """
    if (
        struct.this == exp.DType.ARRAY
        and struct.expressions
        and struct.expressions[0].this == exp.DType.STRUCT
    ):
        inner = field_type(struct.expressions[0], name)
        return _container(exp.DType.ARRAY, [inner]) if inner is not None else None
    fields = struct.expressions if struct.this == exp.DType.STRUCT else ()
    return next(
        (one.kind for one in fields if isinstance(one, exp.ColumnDef) and one.name.lower() == name.lower()),
        None,
    )


def list_type(item: exp.DataType) -> exp.DataType:
    """Return the type of a list of such items."""
    return _container(exp.DType.ARRAY, [item])


def common_type(kinds: Sequence[exp.DataType]) -> exp.DataType | None:
    """Return the common type of several values. NULL and empty containers fit every type.

    Different types without wide numbers give UNKNOWN. A wide number fits only its own type: None with another
    type.
    """
    return reduce(_common, kinds)


def _common(left: exp.DataType | None, right: exp.DataType | None) -> exp.DataType | None:
    if left is None or right is None:
        return None
    if left == right or right.this == exp.DType.NULL or _is_empty(right):
        return left
    if left.this == exp.DType.NULL or _is_empty(left):
        return right
    if not holds_wide(left) and not holds_wide(right):
        both_integers = left.this in INTEGERS and right.this in INTEGERS
        return max((left, right), key=lambda kind: INTEGERS.index(kind.this)) if both_integers else UNKNOWN
    if (
        left.this != right.this
        or left.this not in _CONTAINERS
        or len(left.expressions) != len(right.expressions)
    ):
        return None
    sides = [
        [part.kind if isinstance(part, exp.ColumnDef) else part for part in kind.expressions]
        for kind in (left, right)
    ]
    parts = [_common(one or UNKNOWN, other or UNKNOWN) for one, other in zip(*sides, strict=True)]
    if left.this == exp.DType.STRUCT:
        named = zip(left.expressions, parts, strict=True)
        parts = [
            exp.ColumnDef(this=field.this.copy(), kind=part.copy())
            for field, part in named
            if part is not None
        ]
    return _container(left.this, parts) if len(parts) == len(left.expressions) and None not in parts else None


def _container(kind: exp.DType, parts: Sequence[exp.Expr | None]) -> exp.DataType:
    return exp.DataType(
        this=kind, expressions=[part.copy() for part in parts if part is not None], nested=True
    )


def _is_empty(kind: exp.DataType) -> bool:
    """Return whether a type is that of `array()` or `map()`."""
    return kind.this in (exp.DType.ARRAY, exp.DType.MAP) and all(
        part.this == exp.DType.NULL for part in kind.expressions
    )


def literal_number(node: exp.Expr) -> Decimal | None:
    """Return the number in a literal without an exponent, quoted or not. None for every other expression."""
    bare = node.unnest()
    literal = bare.this.unnest() if isinstance(bare, exp.Neg) else bare
    if not isinstance(literal, exp.Literal) or (literal is not bare and literal.is_string):
        return None
    try:
        number = Decimal(literal.name)
    except ArithmeticError:
        return None
    plain = number.is_finite() and literal.name.isascii() and not set(literal.name) & set("eE_ ")
    return number.copy_negate() if plain and literal is not bare else number if plain else None


def literal_integer(node: exp.Expr) -> int | None:
    """Return the integer in a literal. None for every other expression."""
    number = literal_number(node)
    return int(number) if number is not None and number.as_integer_ratio()[1] == 1 else None


def scale_of(node: exp.Expr) -> int | None:
    """Return the number of digits after the point of an exact number.

    None for floats, strings and types that cannot be inferred.
    """
    if (number := literal_number(node)) is not None:
        return max(0, -int(number.as_tuple().exponent)) if literal_integer(node) is None else 0
    kind = infer_type(node)
    if (wide := wide_of_type(kind)) is not None:
        return 0 if isinstance(wide, WideInteger) else wide.scale
    if kind.this == exp.DType.DECIMAL and kind.expressions:
        return int(kind.expressions[1].name) if len(kind.expressions) > 1 else 0
    return 0 if kind.this in INTEGERS else None


def bind_lambda(function: exp.Expr) -> None:
    """Set the types of a lambda's variables from the lists or maps that its function reads."""
    if not isinstance(function, exp.Lambda) or function.parent is None:
        return
    names = [one.name.lower() for one in function.expressions]
    kinds = dict.fromkeys(names, UNKNOWN) | dict(
        zip(names, _variable_types(function.parent, function), strict=False)
    )
    for part in function.this.find_all(exp.Identifier, exp.Column):
        qualified = isinstance(part, exp.Column) and bool(part.table)
        if not qualified and not _is_label(part) and (kind := kinds.get(part.name.lower())) is not None:
            part.type = UNKNOWN if holds_wide(kind) else kind


def _is_label(part: exp.Expr) -> bool:
    """Return whether an identifier only names a column, an alias or a field of a struct."""
    labels = ((exp.Column, None), (exp.Dot, "expression"), (exp.PropertyEQ, "this"))
    is_label = any(isinstance(part.parent, kind) and key in (None, part.arg_key) for kind, key in labels)
    return isinstance(part, exp.Identifier) and (part.arg_key == "alias" or is_label)


def _variable_types(call: exp.Expr, function: exp.Lambda) -> list[exp.DataType]:
    kinds = [infer_type(part) for part in call.iter_expressions() if not isinstance(part, exp.Lambda)]
    if isinstance(call, exp.Reduce):
        start = infer_type(call.args["initial"])
        return [start] if function.arg_key == "finish" else [start, element_type(kinds[0])]
    if kinds and kinds[0].this == exp.DType.MAP:
        return [*kinds[0].expressions[:1], *map(element_type, kinds)]
    items = [element_type(kind) for kind in kinds]
    if isinstance(call, exp.Anonymous) and call.name.lower() == "zip_with":
        return items
    return [*items[:1], items[0] if isinstance(call, exp.ArraySort) else _INT] if items else []

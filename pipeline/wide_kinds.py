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
        return _agreed(node.expressions) if node.name.lower() == "coalesce_meta" else _NAMES.get(own.result) if own else None
    if isinstance(node, exp.Explode):
        return items_of(node.this)
    if isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nvl2):
        return _agreed(branches(node))
    wide = wide_of_type(node.type) if isinstance(node, exp.Column) else None
    if wide is None or isinstance(wide, WideInteger):
        return wide
    return INT256 if wide.scale == 0 else None


def items_of(node: exp.Expr) -> WideInteger | None:
    """The 256-bit type of the items of a list that is written out, if they have one."""
    found = {kind_of(one) for one in node.expressions} if isinstance(node, exp.Array) else set()
    return found.pop() if len(found) == 1 else None


def decimal_of(node: exp.Expr | None) -> pa.Decimal256Type | None:
    """The type of an expression that is a wide decimal with digits behind the point; None for every other."""
    if isinstance(node, exp.Paren | exp.Alias):
        return decimal_of(node.this)
    if isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nvl2):
        return agreed_decimal(branches(node))
    wide = wide_of_type(node.type) if isinstance(node, exp.Column) else None
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


def _agreed(parts: Sequence[exp.Expr]) -> WideInteger | None:
    """The type of several results: the signed one where both are there. A result that is none of them, and no number, is of another type."""
    kinds = {kind_of(part) for part in parts if not isinstance(part.unnest(), exp.Null)}
    found = {kind for kind in kinds if kind is not None}
    if not found or not all(kind_of(part) is not None or is_whole(part) or isinstance(part.unnest(), exp.Null) for part in parts):
        return None
    return found.pop() if len(found) == 1 else INT256


def branches(node: exp.Expr) -> list[exp.Expr]:
    """The expressions that a choice gives one of."""
    if isinstance(node, exp.Coalesce):
        return [node.this, *node.expressions]
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
    """Whether it is a whole number of at most 64 bits, or one that is written out."""
    return whole_number(node) is not None or told(node).this in exp.DataType.SIGNED_INTEGER_TYPES

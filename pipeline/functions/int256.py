"""256-bit integers. Spark stores them as strings of decimal digits. Results are in canonical form."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from headrace.pipeline.functions.registry import Function, FunctionCall, Group
from headrace.pipeline.functions.templates import failing, fill

_MODULE = "headrace.jobs.functions.int256"
_BIG = 2**256 - 1
_TOP = 2**255 - 1
_ONES = "repeat('f', 64)"
_NULLS = "does not support null values"
_ROWS: dict[str, tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]] = {
    "u256_add": (
        "The sum.",
        (
            ("u256_add('18446744073709551615', 1)", "18446744073709551616"),
            (f"u256_add('{_BIG - 1}', '1')", str(_BIG)),
        ),
        (
            ("u256_add(NULL, '1')", f"u256_add {_NULLS}"),
            (f"u256_add('{_BIG}', '1')", f"u256_add overflow: {_BIG} + 1 is above 2^256 - 1"),
        ),
    ),
    "u256_sub": (
        "The difference; an error below zero.",
        (("u256_sub('18446744073709551616', '1')", "18446744073709551615"), ("u256_sub('7', '7')", "0")),
        (("u256_sub('1', '2')", "u256_sub overflow: 1 - 2 is below 0"),),
    ),
    "u256_mul": (
        "The product.",
        (
            ("u256_mul('18446744073709551616', '18446744073709551616')", str(2**128)),
            (f"u256_mul('{_BIG}', '0')", "0"),
        ),
        (
            (
                (
                    "u256_mul('340282366920938463463374607431768211456',"
                    " '340282366920938463463374607431768211456')"
                ),
                "u256_mul overflow",
            ),
        ),
    ),
    "u256_div": (
        "The quotient, cut off.",
        (("u256_div('7', '2')", "3"), ("u256_div('0', '5')", "0")),
        (("u256_div('7', '0')", "u256_div: division by zero: 7 / 0"),),
    ),
    "u256_mod": (
        "The remainder.",
        (("u256_mod('7', '2')", "1"), (f"u256_mod('{_BIG}', '10')", "5")),
        (("u256_mod('7', '0')", "u256_mod: division by zero: 7 % 0"),),
    ),
    "i256_add": (
        "The sum.",
        (("i256_add('-5', '3')", "-2"), (f"i256_add('{_TOP}', '-1')", str(_TOP - 1))),
        ((f"i256_add('{_TOP}', '1')", "is above 2^255 - 1"),),
    ),
    "i256_sub": (
        "The difference.",
        (("i256_sub('3', '5')", "-2"),),
        ((f"i256_sub('{-_TOP - 1}', '1')", "is below -2^255"),),
    ),
    "i256_mul": (
        "The product.",
        (("i256_mul('-4', '5')", "-20"), (f"i256_mul('{-_TOP - 1}', '1')", str(-_TOP - 1))),
        ((f"i256_mul('{_TOP}', '2')", "is above 2^255 - 1"),),
    ),
    "i256_div": (
        "The quotient, cut off towards zero.",
        (("i256_div('-7', '2')", "-3"), ("i256_div('7', '-2')", "-3")),
        (
            ("i256_div('-7', '0')", "division by zero"),
            (f"i256_div('{-_TOP - 1}', '-1')", "is above 2^255 - 1"),
        ),
    ),
    "i256_mod": (
        "The remainder; it has the sign of the dividend.",
        (("i256_mod('-7', '2')", "-1"), ("i256_mod('7', '-2')", "1")),
        (("i256_mod('7', '0')", "division by zero"),),
    ),
    "i256_neg": (
        "The number with the other sign.",
        (("i256_neg('5')", "-5"), ("i256_neg('0')", "0")),
        ((f"i256_neg('{-_TOP - 1}')", "is above 2^255 - 1"),),
    ),
    "i256_abs": (
        "The number without its sign.",
        (("i256_abs('-5')", "5"),),
        ((f"i256_abs('{-_TOP - 1}')", "is above 2^255 - 1"), ("i256_abs(NULL)", f"i256_abs {_NULLS}")),
    ),
    "to_u256": (
        "From text (decimal, or hexadecimal after 0x), a whole number, or 32 bytes, the highest first.",
        (
            ("to_u256('00042')", "42"),
            ("to_u256('0xff')", "255"),
            ("to_u256(7)", "7"),
            (f"to_u256(unhex({_ONES}))", str(_BIG)),
            ("to_u256(reverse_bytes32(unhex(concat('01', repeat('0', 62)))))", "1"),
        ),
        (
            ("to_u256('-1')", "to_u256 does not support negative values: -1"),
            (f"to_u256('{_BIG + 1}')", f"to_u256 overflow: {_BIG + 1} is above 2^256 - 1"),
            ("to_u256('1.5')", "to_u256: `1.5` is no whole number"),
            ("to_u256(X'01')", "to_u256 takes 32 bytes, found 1"),
            ("to_u256(NULL)", f"to_u256 {_NULLS}"),
        ),
    ),
    "to_i256": (
        "From text, a whole number, or 32 bytes in two's complement, the highest first.",
        (
            ("to_i256('-1')", "-1"),
            (f"to_i256(unhex({_ONES}))", "-1"),
            ("to_i256(cast(-9223372036854775808 AS BIGINT))", "-9223372036854775808"),
        ),
        (
            (f"to_i256('{_TOP + 1}')", "is above 2^255 - 1"),
            ("to_i256('x')", "to_i256: `x` is no whole number"),
        ),
    ),
}


def _arrow(name: str) -> Function:
    meaning, examples, errors = _ROWS[name]
    unary = name.startswith("to_") or name.endswith(("neg", "abs"))
    kind = "uint256" if "u256" in name else "int256"
    of = "text | int | binary" if name.startswith("to_") else kind if unary else f"{kind}, {kind}"
    return Function(
        name=name,
        signature=f"{name}({of})",
        group=Group.WIDE,
        meaning=meaning,
        result=kind,
        examples=examples,
        errors=errors,
        arrow=f"{_MODULE}:{name}",
        least=1 if unary else 2,
        most=1 if unary else 2,
    )


_ABOVE = (
    "CASE WHEN length({a}) <> length({b}) THEN sign(length({a}) - length({b})) WHEN {a} = {b} THEN 0"
    " WHEN {a} < {b} THEN -1 ELSE 1 END"
)

_CANONICAL = r"\A(?:0|[1-9][0-9]*)\z"
_SHORT = (
    "CASE WHEN octet_length({a}) < octet_length({b}) THEN -1 WHEN octet_length({a}) > octet_length({b})"
    " THEN 1"
    " WHEN {a} < {b} THEN -1 WHEN {a} > {b} THEN 1 ELSE 0 END"
)
"""Of digits as all functions write them: nothing has to be cut off."""


def _compare(call: FunctionCall) -> exp.Expr:
    """Compare digits by their number, then as strings.

    This needs no Python, so a filter stays a Spark filter.
    """
    signed = call.name.lower().startswith("i")
    digits, minus = "^-?[0-9]+$" if signed else "^[0-9]+$", "startswith(CAST({} AS STRING), '-')"
    bare = "ltrim('0', ltrim('-', CAST({} AS STRING)))" if signed else "ltrim('0', CAST({} AS STRING))"
    a, b = bare.format("_1"), bare.format("_2")
    result = f"CAST({_ABOVE.format(a=a, b=b)} AS INT)"
    if signed:
        below = f"CAST({_ABOVE.format(a=b, b=a)} AS INT)"
        m, n = minus.format("_1"), minus.format("_2")
        result = (
            f"CASE WHEN {a} = '' AND {b} = '' THEN 0 WHEN {m} AND {n} THEN {below} WHEN {m} THEN -1"
            f" WHEN {n} THEN 1 ELSE {result} END"
        )
    text = (
        "concat(_name, ': `', CASE WHEN CAST(_1 AS STRING) RLIKE _digits THEN CAST(_2 AS STRING) ELSE"
        " CAST(_1 AS STRING) END, _tail)"
    )
    texts = {
        "name": exp.Literal.string(call.name),
        "digits": exp.Literal.string(digits),
        "tail": exp.Literal.string("` is no whole number"),
    }
    what = fill(text, call.args, **texts)
    x, y = "CAST(_1 AS STRING)", "CAST(_2 AS STRING)"
    return fill(
        f"CASE WHEN _1 IS NULL OR _2 IS NULL THEN CAST(NULL AS INT) WHEN {x} RLIKE _plain AND {y} RLIKE"
        f" _plain THEN {_SHORT.format(a=x, b=y)}"
        f" WHEN NOT ({x} RLIKE _digits AND {y} RLIKE _digits) THEN CAST(_raise AS INT) ELSE {result} END",
        call.args,
        plain=exp.Literal.string(_CANONICAL),
        digits=exp.Literal.string(digits),
        **{"raise": failing(what, call.node)},
    )


def _to_string(call: FunctionCall) -> exp.Expr:
    text = exp.Literal.string(
        f"{call.name}: bytes are no number, say to_{call.name.partition('_')[0]}(…) first"
    )
    wrong = (
        "CASE WHEN typeof(_1) = 'binary' AND _1 IS NOT NULL THEN CAST(_raise AS STRING) ELSE CAST(_1 AS"
        " STRING) END"
    )
    return fill(wrong, call.args, **{"raise": failing(text, call.node)})


def _texts() -> Iterator[Function]:
    for kind, name, low in (("uint256", "u256", "0"), ("int256", "i256", "-5")):
        yield Function(
            name=f"{name}_to_string",
            signature=f"{name}_to_string({kind})",
            group=Group.WIDE,
            result="text",
            sql=_to_string,
            meaning=f"Its decimal digits, as plain text. 32 bytes become a number by `to_{name}` first.",
            examples=(
                (f"{name}_to_string({name}_add('{low}', '2'))", str(int(low) + 2)),
                (f"{name}_to_string(NULL)", "NULL"),
            ),
            errors=(
                (
                    f"{name}_to_string(X'01')",
                    f"{name}_to_string: bytes are no number, say to_{name}(…) first",
                ),
            ),
        )
        yield Function(
            name=f"{name}_compare",
            signature=f"{name}_compare({kind}, {kind})",
            group=Group.WIDE,
            result="int",
            sql=_compare,
            least=2,
            most=2,
            meaning="-1, 0 or 1: the first is less than, equal to or greater than the second. NULL if one"
            " of them is.",
            examples=(
                (f"{name}_compare('10', '9')", "1"),
                (f"{name}_compare('{low}', '00')", str((int(low) > 0) - (int(low) < 0))),
                (f"{name}_compare('7', 7)", "0"),
                (f"{name}_compare('{_TOP}', '{_TOP - 1}')", "1"),
                (f"{name}_compare('007', '8')", "-1"),
                (f"{name}_compare(NULL, '1')", "NULL"),
            ),
            errors=((f"{name}_compare('x', '1')", f"{name}_compare: `x` is no whole number"),),
        )


FUNCTIONS = (
    *map(_arrow, _ROWS),
    *_texts(),
    Function(
        name="to_int64",
        signature="to_int64(int256)",
        group=Group.WIDE,
        meaning="The low 64 bits of 0 to 2^64 - 1 as a signed number, and negative ones as they are; NULL"
        " for what has no room.",
        result="bigint",
        sql=(
            "CASE WHEN try_cast(_1 AS DECIMAL(38, 0)) BETWEEN -9223372036854775808 AND 9223372036854775807"
            " THEN CAST(try_cast(_1 AS DECIMAL(38, 0)) AS BIGINT)"
            " WHEN try_cast(_1 AS DECIMAL(38, 0)) BETWEEN 9223372036854775808 AND 18446744073709551615"
            " THEN CAST(try_cast(_1 AS DECIMAL(38, 0)) - 18446744073709551616 AS BIGINT) END"
        ),
        examples=(
            ("to_int64('42')", "42"),
            ("to_int64('18446744073709551615')", "-1"),
            ("to_int64('-9223372036854775808')", "-9223372036854775808"),
            ("to_int64('-9223372036854775809')", "NULL"),
            ("to_int64('18446744073709551616')", "NULL"),
            (f"to_int64('{_TOP}')", "NULL"),
            ("to_int64(NULL)", "NULL"),
        ),
    ),
    Function(
        name="coalesce_meta",
        signature="coalesce_meta(a, b, ...)",
        group=Group.WIDE,
        meaning="The first that is not NULL; 256-bit integers stay such.",
        result="as its arguments",
        sql=lambda call: exp.Anonymous(this="coalesce", expressions=[arg.copy() for arg in call.args]),
        least=1,
        most=None,
        examples=(("coalesce_meta(NULL, to_u256('7'))", "7"), ("coalesce_meta(NULL, NULL)", "NULL")),
    ),
)

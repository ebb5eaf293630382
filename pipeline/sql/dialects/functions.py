"""Functions of other dialects in Spark's SQL, by name and number of arguments.

`_0`, `_1` ... are the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.sql.dialects.spark import DIALECT
from headrace.pipeline.sql.dialects.types import arrow_type

Templates = Mapping[int, str] | Callable[[list[Any]], exp.Expr | None]
"""The translations of a function by its number of arguments, or a builder of the translation."""

_ARGUMENT = re.compile(r"_\d+")


@lru_cache(maxsize=1024)
def _parse_template(text: str) -> exp.Expr:
    return sqlglot.parse_one(text, dialect=DIALECT)


def template(text: str, *arguments: exp.Expr) -> exp.Expr:
    """Return Spark SQL with `_0`, `_1` ... replaced by expressions. `_0.name` is a field of one."""

    def fill(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            names = [one.name for one in part.parts]
            if _ARGUMENT.fullmatch(names[0]):
                value = arguments[int(names[0][1:])].copy()
                if len(names) == 1 and isinstance(
                    value, exp.Binary | exp.Connector | exp.Not | exp.Lambda | exp.Interval
                ):
                    return exp.paren(value, copy=False)
                return (
                    value
                    if len(names) == 1
                    else exp.Dot.build([value, *(exp.to_identifier(name) for name in names[1:])])
                )
        return part

    return _parse_template(text).copy().transform(fill)


def builder(name: str, templates: Templates) -> Callable[[list[Any]], exp.Expr]:
    """Return the function that sqlglot's parser calls.

    A call with another number of arguments stays as it is.
    """

    def build(arguments: list[Any]) -> exp.Expr:
        chosen = templates(arguments) if callable(templates) else templates.get(len(arguments))
        made = template(chosen, *arguments) if isinstance(chosen, str) else chosen
        if made is None:
            return exp.Anonymous(this=name, expressions=arguments)
        # The parser checks the number of arguments of the result as if the user had written it.
        return (
            exp.Paren(this=made)
            if isinstance(made, exp.Func) and len(arguments) > len(made.arg_types)
            else made
        )

    return build


def _arrow_cast(arguments: list[Any]) -> exp.Expr:
    kind = (
        arrow_type(arguments[1].name)
        if len(arguments) == 2 and isinstance(arguments[1], exp.Literal)
        else None
    )
    if kind is None:
        msg = f"arrow_cast to `{arguments[-1].name if arguments else ''}` cannot be written in Spark's SQL"
        raise UserError(msg, hint="Use CAST with a type of SQL.")
    return exp.Cast(this=arguments[0], to=kind)


def _digest(bits: str) -> Mapping[int, str]:
    return {1: f"unhex(sha2(_0, {bits}))"}


def _regexp_like(arguments: list[Any]) -> exp.Expr:
    value, pattern, *flags = arguments
    return exp.RegexpLike(this=value, expression=pattern, flag=flags[0] if flags else None)


def _build_encoding(names: Mapping[str, str]) -> Callable[[list[Any]], exp.Expr]:
    """Return the builder of encode and decode, by the name of the encoding."""

    def build(arguments: list[Any]) -> exp.Expr:
        code = (
            arguments[1].name.lower() if len(arguments) == 2 and isinstance(arguments[1], exp.Literal) else ""
        )
        if code not in names:
            msg = f"the code `{code}` cannot be written in Spark's SQL"
            raise UserError(msg, hint=f"Allowed: {', '.join(names)}.")
        return template(names[code], arguments[0])

    return build


def _build_formatting(function: str) -> Callable[[list[Any]], exp.Expr]:
    """Return the builder of a function of a time and a format.

    The format has percent signs, as in Rust's chrono and in C.
    """

    def build(arguments: list[Any]) -> exp.Expr:
        if len(arguments) == 1:
            return template(
                "CAST(_0 AS TIMESTAMP)" if function == "to_timestamp" else f"{function}(_0)", arguments[0]
            )
        if len(arguments) != 2 or not isinstance(arguments[1], exp.Literal):
            msg = f"the format of {function} must be written out, and there is one"
            raise UserError(msg, hint="Use coalesce over try_to_timestamp for several formats.")
        return template(
            f"{function}(_0, _1)", arguments[0], exp.Literal.string(java_format(arguments[1].name))
        )

    return build


_CHRONO = {
    "Y": "yyyy", "y": "yy", "m": "MM", "d": "dd", "e": "d", "j": "DDD", "H": "HH", "I": "hh", "M": "mm",
    "S": "ss", "p": "a", "b": "MMM", "h": "MMM", "B": "MMMM", "a": "EEE", "A": "EEEE", "F": "yyyy-MM-dd",
    "T": "HH:mm:ss", "D": "MM/dd/yy", "R": "HH:mm", "z": "xx", ":z": "xxx", "f": "SSSSSS", "3f": "SSS",
    "6f": "SSSSSS", ".3f": ".SSS", ".6f": ".SSSSSS", ".f": ".SSSSSS", "%": "'%'",
}  # fmt: skip


def java_format(text: str) -> str:
    """Return a format such as %Y-%m-%dT%H:%M:%S in Java's letters.

    Raise UserError for a sign without a counterpart.
    """
    result = []
    for sign, letters, rest in re.findall(r"%([:.]?\d?[A-Za-z%])|([A-Za-z']+)|(.)", text, re.DOTALL):
        if sign and sign not in _CHRONO:
            msg = f"`%{sign}` of the format `{text}` has no counterpart in Spark"
            raise UserError(msg, hint=f"Known: {', '.join('%' + known for known in _CHRONO)}.")
        quoted = letters.replace("'", "''")
        result.append(_CHRONO[sign] if sign else f"'{quoted}'" if letters else rest)
    return "".join(result)


def _by_method(arguments: list[Any]) -> exp.Expr:
    method = arguments[1].name.lower() if len(arguments) == 2 else ""
    if method == "md5":
        return template("unhex(md5(_0))", arguments[0])
    if method not in ("sha224", "sha256", "sha384", "sha512"):
        msg = f"digest by `{method}` cannot be written in Spark's SQL"
        raise UserError(msg, hint="Allowed: md5, sha224, sha256, sha384, sha512.")
    return template(f"unhex(sha2(_0, {method[3:]}))", arguments[0])


def _refuse_function(name: str, instead: str, arguments: list[Any]) -> exp.Expr:
    del arguments
    msg = f"{name} cannot be written in Spark's SQL"
    raise UserError(msg, hint=f"Use {instead}.")


def _first_alone(name: str, arguments: list[Any]) -> exp.Expr | None:
    """Refuse arguments after the pattern, because Spark gives them another meaning."""
    if len(arguments) > 2:
        return _refuse_function(
            f"{name} with more than a text and a pattern",
            f"{name}(text, pattern) on a part of the text",
            arguments,
        )
    return None


def _one_list(arguments: list[Any]) -> exp.Expr | None:
    """Concatenate lists. NULL counts as an empty list unless all are NULL."""
    result, *others = arguments or [None]
    for one in others:
        both = exp.Anonymous(this="concat", expressions=[result.copy(), one.copy()])
        result = template(
            "CASE WHEN _0 IS NULL THEN _1 WHEN _1 IS NULL THEN _0 ELSE _2 END", result, one, both
        )
    return result


def _by_unit(build: Callable[[exp.Expr, exp.Expr], exp.Expr]) -> Callable[[list[Any]], exp.Expr | None]:
    """Return the builder of a function of a literal unit name and a time."""

    def build_call(arguments: list[Any]) -> exp.Expr | None:
        if len(arguments) != 2 or not isinstance(arguments[0], exp.Literal):
            return None
        return build(exp.var(arguments[0].name.upper()), arguments[1])

    return build_call


_FIRST = "(CASE WHEN _1 < 0 THEN greatest(array_size(_0) + _1 + 1, 1) WHEN _1 = 0 THEN 1 ELSE _1 END)"
_LAST = "(CASE WHEN _2 < 0 THEN array_size(_0) + _2 + 1 ELSE _2 END)"
SLICED = f"slice(_0, {_FIRST}, greatest({_LAST} - {_FIRST} + 1, 0))"
"""Items from one index to another. Negative indexes count from the end."""
_TRUNC: Templates = {
    1: "(CASE WHEN _0 < 0 THEN ceil(_0) ELSE floor(_0) END)",
    2: "(CASE WHEN _0 < 0 THEN ceil(_0, _1) ELSE floor(_0, _1) END)",
}
_HEX = {"hex": "lower(hex(_0))", "base64": "array_join(regexp_extract_all(base64(_0), '.{1,76}', 0), '\n')"}
_BARE_HEX = {**_HEX, "base64": "rtrim('=', base64(_0))"}
"""Postgres breaks lines after 76 letters. DataFusion omits the padding."""
_UNHEX = {"hex": "unhex(_0)", "base64": "unbase64(_0)"}
_SPLIT = (
    "CASE WHEN _0 = '' THEN slice(array(_0), 1, 0) WHEN _1 IS NULL THEN split(_0, '') WHEN _0 <> '' AND _1"
    " = '' THEN array(_0)"
    r" ELSE split(_0, concat('\\Q', replace(_1, '\\E', '\\E\\\\E\\Q'), '\\E')) END"
)
_SERIES = "CASE WHEN _0 > _1 THEN slice(array(_0), 1, 0) ELSE sequence(_0, _1) END"
_HAS = "coalesce(array_contains(_0, _1), CASE WHEN _0 IS NOT NULL AND _1 IS NOT NULL THEN FALSE END)"
_HAS_ANY = "coalesce(arrays_overlap(_0, _1), CASE WHEN _0 IS NOT NULL AND _1 IS NOT NULL THEN FALSE END)"
"""In DataFusion a missing item gives false even if the list contains NULLs."""

_FIRST_MATCH = (
    "regexp_extract(a, 'x(.)', 1) for the first group and 0 for the whole match: it is '' where"
    " nothing matches"
)

POSTGRES: Mapping[str, Templates] = {
    "log": {1: "log10(_0)", 2: "log(_0, _1)"},
    "log10": {1: "log10(_0)"},
    "trunc": _TRUNC,
    "to_hex": {1: "lower(hex(_0))"},
    "encode": _build_encoding(_HEX),
    "decode": _build_encoding(_UNHEX),
    "sha224": _digest("224"),
    "sha256": _digest("256"),
    "sha384": _digest("384"),
    "sha512": _digest("512"),
    "regexp_like": _regexp_like,
    "regexp_instr": lambda arguments: _first_alone("regexp_instr", arguments),
    "regexp_substr": lambda arguments: _first_alone("regexp_substr", arguments),
    "regexp_match": lambda arguments: _refuse_function("regexp_match", _FIRST_MATCH, arguments),
    "strpos": {2: "locate(_1, _0)"},
    "string_to_array": {2: _SPLIT},
    "array_to_string": {2: "array_join(_0, _1)", 3: "array_join(_0, _1, _2)"},
    "array_length": {1: "nullif(array_size(_0), 0)", 2: "nullif(array_size(_0), 0)"},
    "cardinality": {1: "cardinality(_0)"},
    "array_append": {2: "array_append(coalesce(_0, array()), _1)"},
    "array_prepend": {2: "array_prepend(coalesce(_1, array()), _0)"},
    "array_cat": _one_list,
    "array_position": {2: "nullif(array_position(_0, _1), 0)"},
    "array_remove": {2: "array_remove(_0, _1)"},
    "clock_timestamp": {0: "now()"},
    "statement_timestamp": {0: "now()"},
    "transaction_timestamp": {0: "now()"},
    "div": {2: "(_0 DIV _1)"},
    "uuidv4": {0: "uuid()"},
    "uuidv7": {0: "uuid7()"},
}
"""Functions of Postgres."""

DATAFUSION: Mapping[str, Templates] = {
    "arrow_cast": _arrow_cast,
    "arrow_typeof": {1: "typeof(_0)"},
    "encode": _build_encoding(_BARE_HEX),
    "decode": _build_encoding(_UNHEX),
    "array_sort": {1: "sort_array(_0)"},
    "list_sort": {1: "sort_array(_0)"},
    "isnan": {1: "CASE WHEN _0 IS NOT NULL THEN isnan(_0) END"},
    "startswith": {2: "startswith(_0, _1)"},
    "ends_with": {2: "endswith(_0, _1)"},
    "endswith": {2: "endswith(_0, _1)"},
    "lowercase": {1: "lower(_0)"},
    "uppercase": {1: "upper(_0)"},
    "charlength": {1: "length(_0)"},
    "hex": {1: "lower(hex(_0))"},
    "regexp": _regexp_like,
    "similar": _regexp_like,
    "regexp_count": {2: "regexp_count(_0, _1)"},
    "substr_index": {3: "substring_index(_0, _1, _2)"},
    "digest": _by_method,
    "power": {2: "power(_0, _1)"},
    "pow": {2: "power(_0, _1)"},
    "iszero": {1: "(_0 = 0)"},
    "signum": {1: "sign(_0)"},
    "today": {0: "current_date()"},
    "to_timestamp": _build_formatting("to_timestamp"),
    "to_timestamp_seconds": {1: "CAST(_0 AS TIMESTAMP)"},
    "to_timestamp_millis": {1: "timestamp_millis(_0)"},
    "to_timestamp_micros": {1: "timestamp_micros(_0)"},
    "to_timestamp_nanos": {1: "timestamp_micros(_0 DIV 1000)"},
    "from_unixtime": {1: "CAST(_0 AS TIMESTAMP)"},
    "to_unixtime": {1: "CAST(CAST(_0 AS TIMESTAMP) AS BIGINT)"},
    "to_date": _build_formatting("to_date"),
    "to_char": _build_formatting("date_format"),
    "date_format": _build_formatting("date_format"),
    "dateformat": _build_formatting("date_format"),
    "datetrunc": _by_unit(lambda unit, at: exp.TimestampTrunc(this=at, unit=unit)),
    "datepart": _by_unit(lambda unit, at: exp.Extract(this=unit, expression=at)),
    "make_array": lambda arguments: exp.Array(expressions=arguments),
    "make_list": lambda arguments: exp.Array(expressions=arguments),
    "array_element": {2: "try_element_at(_0, _1)"},
    "array_extract": {2: "try_element_at(_0, _1)"},
    "list_element": {2: "try_element_at(_0, _1)"},
    "list_extract": {2: "try_element_at(_0, _1)"},
    "array_length": {1: "array_size(_0)", 2: "array_size(_0)"},
    "list_length": {1: "array_size(_0)"},
    "array_has": {2: _HAS},
    "array_contains": {2: _HAS},
    "list_contains": {2: _HAS},
    "list_has": {2: _HAS},
    "array_has_all": {2: "(array_size(array_except(_1, _0)) = 0)"},
    "array_has_any": {2: _HAS_ANY},
    "array_concat": _one_list,
    "array_cat": _one_list,
    "list_concat": _one_list,
    "array_join": {2: "array_join(_0, _1)", 3: "array_join(_0, _1, _2)"},
    "list_to_string": {2: "array_join(_0, _1)"},
    "array_remove_all": {2: "array_remove(_0, _1)"},
    "array_remove": lambda arguments: _refuse_function(
        "array_remove", "array_remove_all, which removes every such item", arguments
    ),
    "array_reverse": {1: "reverse(_0)"},
    "array_slice": {3: SLICED},
    "array_indexof": {2: "nullif(array_position(_0, _1), 0)"},
    "list_position": {2: "nullif(array_position(_0, _1), 0)"},
    "empty": {1: "(array_size(_0) = 0)"},
    "array_empty": {1: "(array_size(_0) = 0)"},
    "generate_series": {2: _SERIES, 3: "sequence(_0, _1, _2)"},
    "get_field": lambda arguments: exp.Bracket(this=arguments[0], expressions=arguments[1:]),
    "map_extract": {2: "array(try_element_at(_0, _1))"},
    "element_at": {2: "array(try_element_at(_0, _1))"},
    "uuid": {0: "uuid()"},
    "nvl": {2: "coalesce(_0, _1)"},
}
"""Functions of DataFusion beyond those of Postgres, and Streamling's names for them."""

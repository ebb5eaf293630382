"""Patterns in strings: Flink's names and rules.

A pattern that Java cannot compile, or a NULL argument, gives NULL.
"""

from __future__ import annotations

import re
import warnings

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.functions.registry import Builder, DialectScope, Function, FunctionCall, Group
from headrace.pipeline.functions.templates import fill, literal_text, text_of

_PLAIN = re.compile(
    r"(?:[\w\s,:;=@%&~'\"<>/!#-]|\\[dDwWsSbB.\\+*?^$|()\[\]{}/-]|[.^$|+*?()]|\{\d+(?:,\d*)?\}|\[\^?(?:[\w\s,:;=@%.+*?()$|/!#-]|\\[dDwWsS.\\\]\[^-])+\])*",
    re.ASCII,
)
"""Patterns with the same meaning in Java and Python."""
_FLAGS = "imsx"


def _groups(pattern: exp.Expr) -> int | None:
    """Return the number of groups of a literal pattern that certainly compiles in Java.

    None for any other.
    """
    text = text_of(pattern)
    if text is None or _PLAIN.fullmatch(text) is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return re.compile(text).groups
        except (re.error, Warning):
            return None


def _guard_pattern(pattern: exp.Expr, node: exp.Expr) -> exp.Expr:
    """Return NULL if Java cannot compile the pattern. A pattern that certainly compiles needs no check."""
    if _groups(pattern) is not None:
        return node
    return fill(
        "CASE WHEN try_reflect('java.util.regex.Pattern', 'compile', CAST(_1 AS STRING)) IS NOT NULL THEN"
        " _2 END",
        [pattern, node],
    )


def _pattern(template: str, *defaults: str) -> Builder:
    def build(call: FunctionCall) -> exp.Expr:
        extra = (
            [exp.Literal.number(one) for one in defaults[len(call.args) - 2 :]]
            if len(call.args) - 2 < len(defaults)
            else []
        )
        return _guard_pattern(call.args[1], fill(template, [*call.args, *extra]))

    return build


def _extract(template: str, otherwise: int, kind: str) -> Builder:
    """Return the builder of a function with a group. NULL if there is no such group."""

    def build(call: FunctionCall) -> exp.Expr:
        group = call.args[2] if len(call.args) > 2 else exp.Literal.number(otherwise)
        count = _groups(call.args[1])
        if count is not None and isinstance(group, exp.Literal) and group.name.isdecimal():
            return fill(
                template if int(group.name) <= count else f"CAST(NULL AS {kind})", [*call.args[:2], group]
            )
        counted = "size(regexp_extract_all(_2, '(?<!\\\\\\\\)[(](?:(?![?])|(?=[?]<[a-zA-Z]))', 0))"
        result = fill(f"CASE WHEN _3 BETWEEN 0 AND {counted} THEN {template} END", [*call.args[:2], group])
        return _guard_pattern(call.args[1], result)

    return build


def _like(call: FunctionCall) -> exp.Expr:
    """Put the flags before the pattern, as Java reads them."""
    text, pattern, *flags = call.args
    if flags and (message := literal_text(call, 2, "the flags")):
        if not set(message) <= set(_FLAGS):
            msg = f"`{call.name}`: the flags `{message}` are not possible"
            raise UserError(msg, hint=f"Allowed: {', '.join(_FLAGS)}.", node=call.node)
        known = text_of(pattern)
        set_ = exp.Literal.string(f"(?{message})")
        pattern = (
            exp.Literal.string(f"(?{message}){known}")
            if known is not None
            else fill("concat(_1, _2)", [set_, pattern])
        )
    return _guard_pattern(pattern, fill("_1 RLIKE _2", [text, pattern]))


def _replace(call: FunctionCall) -> exp.Expr:
    """Use the replacement literally, including its backslashes and dollars."""
    text = text_of(call.args[2])
    if text is not None:
        by: exp.Expr = exp.Literal.string(text.replace("\\", "\\\\").replace("$", "\\$"))
    else:
        by = fill(r"replace(replace(_1, '\\', '\\\\'), '$', '\\$')", [call.args[2]])
    return _guard_pattern(call.args[1], fill("regexp_replace(_1, _2, _3)", [call.args[0], call.args[1], by]))


def _place(text: str) -> str:
    """Return the position of the first match of `_2`, 0 if there is none.

    It is counted in characters. Spark counts some of them as two.
    """
    return (
        f"(CASE WHEN regexp_instr({text}, _2) > 1 THEN length(get(split({text}, _2, 2), 0)) + 1 ELSE"
        f" regexp_instr({text}, _2) END)"
    )


def _regexp_instr(call: FunctionCall) -> exp.Expr:
    """Search for later matches in the rest of the string. Spark's function finds only the first match."""
    args = [*call.args, *(exp.Literal.number(1) for _ in range(4 - len(call.args)))]
    plain = all(isinstance(arg, exp.Literal) and arg.name == "1" for arg in args[2:])
    if plain:
        return _guard_pattern(args[1], fill(_place("_1"), args))
    rest = _place("substr(_1, _3)")
    first = f"CASE WHEN {rest} > 0 THEN {rest} + _3 - 1 ELSE 0 END"
    if isinstance(args[3], exp.Literal) and args[3].name == "1":
        result = fill(
            "CASE WHEN _1 IS NOT NULL AND _2 IS NOT NULL AND _3 IS NOT NULL THEN CASE WHEN _3 > length(_1)"
            f" OR _3 < 1 THEN 0 ELSE {first} END END",
            args,
        )
    else:
        later = "substr(_1, hr_at.next)"
        at = _place(later)
        step = (
            f"CASE WHEN hr_at.next = 0 OR hr_at.next > length(_1) OR regexp_instr({later}, _2) = 0 THEN"
            " named_struct('at', 0, 'next', 0)"
            f" ELSE named_struct('at', {at} + hr_at.next - 1,"
            f" 'next', {at} + hr_at.next - 1 + greatest(length(regexp_substr({later}, _2)), 1)) END"
        )
        result = fill(
            f"CASE WHEN _1 IS NOT NULL AND _2 IS NOT NULL AND _3 IS NOT NULL AND _4 >= 1 AND _3 >= 1 THEN"
            " aggregate(sequence(1, _4), named_struct('at', 0, 'next', CAST(_3 AS INT)), (hr_at, hr_n) ->"
            f" {step}).at"
            " WHEN _1 IS NOT NULL AND _2 IS NOT NULL AND _3 IS NOT NULL AND _4 IS NOT NULL THEN 0 END",
            args,
        )
    return _guard_pattern(args[1], result)


FUNCTIONS = (
    Function(
        name="regexp_extract",
        signature="regexp_extract(text, pattern[, group = 0])",
        group=Group.STRINGS,
        result="text",
        where=DialectScope.DATAFUSION,
        least=2,
        most=3,
        sql=_extract("CASE WHEN _1 RLIKE _2 THEN regexp_extract(_1, _2, _3) END", 0, "STRING"),
        meaning=(
            "A group of the first match, the whole match by default; NULL if nothing matches. Spark's takes"
            " group 1, and gives empty text."
        ),
        examples=(
            ("regexp_extract('foothebar', 'foo(.*?)(bar)', 2)", "bar"),
            ("regexp_extract('foothebar', 'foo(.*?)(bar)')", "foothebar"),
            ("regexp_extract('abc', 'x')", "NULL"),
            ("regexp_extract('abc', '(')", "NULL"),
            ("regexp_extract('abc', '[[]')", "NULL"),
            ("regexp_extract('abc', 'b', 7)", "NULL"),
            ("regexp_extract(NULL, 'b')", "NULL"),
            ("regexp_extract('abc', '(?<n>b)', 1)", "b"),
            ("regexp_extract('abc', '(?<n>b)', 2)", "NULL"),
            ("regexp_extract('abc', 'b', 0)", "b"),
        ),
    ),
    Function(
        name="regexp_extract_all",
        signature="regexp_extract_all(text, pattern[, group = 1])",
        group=Group.STRINGS,
        result="list of text",
        where=DialectScope.DATAFUSION,
        least=2,
        most=3,
        sql=_extract("regexp_extract_all(_1, _2, _3)", 1, "ARRAY<STRING>"),
        meaning="A group of every match.",
        examples=(
            ("regexp_extract_all('100-200, 300-400', '(\\\\d+)-(\\\\d+)', 2)", "[200, 400]"),
            ("regexp_extract_all('a1b2', '([a-z])\\\\d')", "[a, b]"),
            ("regexp_extract_all('abc', '(x)')", "[]"),
            ("regexp_extract_all('abc', 'b')", "NULL"),
            ("regexp_extract_all('abc', 'b', 0)", "[b]"),
            ("regexp_extract_all('abc', '(')", "NULL"),
            ("regexp_extract_all(NULL, '(b)')", "NULL"),
        ),
    ),
    Function(
        name="regexp_substr",
        signature="regexp_substr(text, pattern)",
        group=Group.STRINGS,
        result="text",
        where=DialectScope.DATAFUSION,
        least=2,
        most=2,
        sql=_pattern("regexp_substr(_1, _2)"),
        meaning="The first match, NULL if there is none. Spark's fails on a pattern that it cannot compile.",
        examples=(
            ("regexp_substr('a12b34', '[0-9]+')", "12"),
            ("regexp_substr('abc', 'x')", "NULL"),
            ("regexp_substr('abc', '[')", "NULL"),
        ),
    ),
    Function(
        name="regexp_count",
        signature="regexp_count(text, pattern)",
        group=Group.STRINGS,
        result="int",
        where=DialectScope.DATAFUSION,
        least=2,
        most=2,
        sql=_pattern("regexp_count(_1, _2)"),
        meaning="The number of matches.",
        examples=(
            ("regexp_count('a12b34', '[0-9]+')", "2"),
            ("regexp_count('abc', 'x')", "0"),
            ("regexp_count('abc', '*')", "NULL"),
            ("regexp_count(NULL, 'a')", "NULL"),
        ),
    ),
    Function(
        name="regexp_instr",
        signature="regexp_instr(text, pattern[, start = 1[, occurrence = 1]])",
        group=Group.STRINGS,
        result="int",
        where=DialectScope.DATAFUSION,
        least=2,
        most=4,
        sql=_regexp_instr,
        meaning="Where a match begins, counted from 1; 0 if there is none.",
        examples=(
            ("regexp_instr('a1b2', '[0-9]')", "2"),
            ("regexp_instr('a1b2', '[0-9]', 3)", "4"),
            ("regexp_instr('a1b2', '[0-9]', 1, 2)", "4"),
            ("regexp_instr('a1b2', '[0-9]', 1, 3)", "0"),
            ("regexp_instr('a1b2', '[0-9]', 9)", "0"),
            ("regexp_instr('abc', '(')", "NULL"),
            ("regexp_instr(NULL, 'a')", "NULL"),
            ("regexp_instr(NULL, 'a', 0)", "NULL"),
            ("regexp_instr('😀a😀ab', 'a')", "2"),
            ("regexp_instr('😀a😀ab', 'a', 3)", "4"),
            ("regexp_instr('😀a😀ab', 'a', 1, 2)", "4"),
        ),
    ),
    Function(
        name="regexp_replace",
        signature="regexp_replace(text, pattern, replacement)",
        group=Group.STRINGS,
        result="text",
        where=DialectScope.DATAFUSION,
        least=3,
        most=3,
        sql=_replace,
        meaning="Every match replaced. The replacement means itself; in Spark's, $ and \\\\ refer to groups.",
        examples=(
            ("regexp_replace('a.b.c', '\\\\.', '$1')", "a$1b$1c"),
            ("regexp_replace('abc', 'b', '\\\\')", "a\\c"),
            ("regexp_replace('abc', '(', 'x')", "NULL"),
            ("regexp_replace('abc', 'b', CAST(NULL AS STRING))", "NULL"),
            ("regexp_replace('abc', 'b', concat('$', '0'))", "a$0c"),
        ),
    ),
    Function(
        name="regexp_like",
        signature="regexp_like(text, pattern[, 'flags'])",
        aliases=("regexp",),
        group=Group.STRINGS,
        result="boolean",
        where=DialectScope.DATAFUSION,
        least=2,
        most=3,
        sql=_like,
        meaning="Whether a pattern matches anywhere in the text. Flags: i (in any case), m, s, x.",
        examples=(
            ("regexp_like('abc', 'B')", "false"),
            ("regexp_like('abc', 'B', 'i')", "true"),
            ("regexp_like('abc', concat('B', ''), 'i')", "true"),
            ("regexp('abc', '^a.c$')", "true"),
            ("regexp_like('abc', '(')", "NULL"),
            ("regexp_like(NULL, 'a')", "NULL"),
        ),
        errors=(("regexp_like('abc', 'b', 'U')", "the flags `U` are not possible"),),
    ),
    Function(
        name="similar",
        signature="similar(text, pattern[, 'flags'])",
        group=Group.STRINGS,
        result="boolean",
        least=2,
        most=3,
        sql=_like,
        meaning="The same as `regexp_like`.",
        examples=(
            ("similar('abc', 'b+')", "true"),
            ("similar('abc', '(')", "NULL"),
            ("similar('abc', NULL)", "NULL"),
        ),
    ),
)

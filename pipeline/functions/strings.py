"""Strings: Flink's names and rules. A NULL argument gives NULL."""

from __future__ import annotations

import re

from sqlglot import exp

from headrace.pipeline.functions.registry import DialectScope, Function, FunctionCall, Group
from headrace.pipeline.functions.templates import fill, text_of

_NESTED = 8
"""The highest occurrence for which each search is written into the next."""
_DIGITS = 9
_BEHIND = 10**9
"""A position after the end of every text: the search starts there if the previous one found nothing."""


def _split(call: FunctionCall) -> exp.Expr:
    return _pieces(call.args[0], call.args[1] if len(call.args) > 1 else exp.Literal.string(" "))


def _pieces(text: exp.Expr, at: exp.Expr) -> exp.Expr:
    """Split at the literal delimiter. An empty one splits between characters."""
    position = text_of(at)
    if position is not None:
        return fill(
            "split(_1, _2, -1)" if position else "split(_1, _2)",
            [text, exp.Literal.string(re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", position))],
        )
    return fill(
        r"CASE WHEN _2 = '' THEN split(_1, '') ELSE split(_1, concat('\\Q', replace(_2, '\\E',"
        r" '\\E\\\\E\\Q'), '\\E'), -1) END",
        [text, at],
    )


def _split_index(call: FunctionCall) -> exp.Expr:
    return fill("get(_1, _2)", [_pieces(call.args[0], call.args[1]), call.args[2]])


def _instr(call: FunctionCall) -> exp.Expr:
    """Search forward from a position, or backward from one counted from the end.

    Each match begins at least one character after the previous one.
    """
    start = call.args[2] if len(call.args) > 2 else exp.Literal.number(1)
    occurrence = call.args[3] if len(call.args) > 3 else exp.Literal.number(1)
    ahead = "locate(_2, _1, {})".format
    behind = "locate(reverse(_2), reverse(_1), {})".format
    first = "greatest(-_3 - length(_2) + 1, 1)"
    args = [*call.args[:2], start, occurrence]
    text = _written_out(text_of(call.args[1]), _whole(start), _whole(occurrence))
    if text is not None:
        return fill(text, args)
    q = behind(first)
    forward = ahead("_3")
    if _whole(occurrence) != 1:
        forward, q = _nth(ahead("_3"), ahead("hr_at + 1")), _nth(q, behind("hr_at + 1"))
    backward = f"CASE WHEN {q} > 0 THEN length(_1) - {q} - length(_2) + 2 ELSE 0 END"
    whole = (
        f"CASE WHEN _1 IS NULL OR _2 IS NULL OR _4 IS NULL THEN CAST(NULL AS INT) WHEN _3 > 0 THEN {forward}"
        f" WHEN _3 < 0 THEN {backward} WHEN _3 = 0 THEN 0 END"
    )
    return fill(whole, args)


def _whole(arg: exp.Expr) -> int | None:
    """Return the value of a literal integer. None for other expressions."""
    text = arg.this if isinstance(arg, exp.Neg) else arg
    if (
        not isinstance(text, exp.Literal)
        or text.is_string
        or not text.name.isdecimal()
        or len(text.name) > _DIGITS
    ):
        return None
    return int(text.name) * (1 if text is arg else -1)


def _written_out(sub: str | None, start: int | None, occurrence: int | None) -> str | None:
    """Return a search in which all but the text is literal, without a list. None for other searches."""
    if not sub or not start or occurrence is None or not 0 < occurrence <= _NESTED:
        return None
    if start > 0:
        result = "locate(_2, _1, _3)"
        for _ in range(occurrence - 1):
            result = f"locate(_2, _1, pmod({result} - 1, {_BEHIND}) + 2)"
    else:
        kept = f"left(_1, length(_1) - {-start - len(sub)})" if -start > len(sub) else "_1"
        result = (
            f"greatest(length({kept}) - length(substring_index({kept}, _2, -{occurrence})) -"
            f" {len(sub) - 1}, 0)"
        )
    return f"CASE WHEN _1 IS NOT NULL THEN {result} END"


def _nth(first: str, following: str) -> str:
    """Return the search for occurrence `_4`. `hr_at` is the position of the previous one."""
    later = (
        f"aggregate(sequence(2, _4), {first}, (hr_at, hr_n) -> CASE WHEN hr_at = 0 THEN 0 ELSE"
        f" {following} END)"
    )
    return f"(CASE WHEN _4 = 1 THEN {first} WHEN _4 > 1 THEN {later} ELSE 0 END)"


def _elt(call: FunctionCall) -> exp.Expr:
    return fill(
        "get(_1, _2)",
        [
            exp.Anonymous(this="array", expressions=[arg.copy() for arg in call.args[1:]]),
            fill("_1 - 1", [call.args[0]]),
        ],
    )


FUNCTIONS = (
    Function(
        name="locate",
        signature="locate(sub, text[, start = 1])",
        group=Group.STRINGS,
        result="int",
        where=DialectScope.SPARK,
        least=2,
        most=3,
        sql="locate(_1, _2, _3)",
        meaning="Where a text begins in another, counted from 1; 0 if it is not there.",
        examples=(
            ("locate('b', 'abcb')", "2"),
            ("locate('b', 'abcb', 3)", "4"),
            ("locate('x', 'abc')", "0"),
            ("locate('', 'abc')", "1"),
            ("locate(NULL, 'abc')", "NULL"),
        ),
    ),
    Function(
        name="instr",
        signature="instr(text, sub[, start = 1[, occurrence = 1]])",
        group=Group.STRINGS,
        result="int",
        where=DialectScope.DATAFUSION,
        only_from=3,
        least=2,
        most=4,
        sql=_instr,
        meaning="Where a text begins in another, counted from 1; 0 if it is not there. A negative start"
        " counts from the end and searches backward."
        " With more than two arguments it is there in every dialect.",
        examples=(
            ("instr('banana', 'an', 1, 2)", "4"),
            ("instr('banana', 'an')", "2"),
            ("instr('banana', 'an', 3)", "4"),
            ("instr('banana', 'a', -1)", "6"),
            ("instr('banana', 'an', -1)", "4"),
            ("instr('banana', 'a', -2)", "4"),
            ("instr('banana', 'a', -1, 2)", "4"),
            ("instr('banana', 'a', -1, 4)", "0"),
            ("instr('aaa', 'aa', 1, 2)", "2"),
            ("instr('banana', 'x', 1, 1)", "0"),
            ("instr('banana', 'a', 0)", "0"),
            ("instr('banana', 'a', 1, 0)", "0"),
            ("instr('banana', 'an', -1, 2)", "2"),
            ("instr('banana', 'nana', 1, 2)", "0"),
            ("instr('a', 'banana', -1, 2)", "0"),
            ("instr('aaaa', 'aa', -1, 2)", "2"),
            ("instr('éaéaé', 'aé', -1, 2)", "2"),
            ("instr('banana', 'a', -7)", "0"),
            ("instr('banana', 'an', -4)", "2"),
            ("instr('banana', concat('an', ''), -4)", "2"),
            ("instr('banana', '', -1)", "7"),
            ("instr('banana', 'a', ascii('a') - 98, length('ab'))", "4"),
            ("instr(NULL, 'a', 1)", "NULL"),
            ("instr(NULL, 'a', 1, 2)", "NULL"),
            ("instr(NULL, 'a', -1, 2)", "NULL"),
        ),
    ),
    Function(
        name="elt",
        signature="elt(index, a, b, ...)",
        group=Group.STRINGS,
        result="as its arguments",
        where=DialectScope.DATAFUSION,
        least=2,
        most=None,
        sql=_elt,
        meaning="The argument at an index, counted from 1; NULL where there is none. Spark's fails there.",
        examples=(
            ("elt(2, 'a', 'b')", "b"),
            ("elt(3, 'a', 'b')", "NULL"),
            ("elt(0, 'a')", "NULL"),
            ("elt(NULL, 'a')", "NULL"),
        ),
    ),
    Function(
        name="parse_url",
        signature="parse_url(url, part[, key])",
        group=Group.STRINGS,
        result="text",
        where=DialectScope.DATAFUSION,
        least=2,
        most=3,
        sql=lambda call: fill(
            "try_parse_url(_1, upper(_2))" if len(call.args) == 2 else "try_parse_url(_1, upper(_2), _3)",
            call.args,
        ),
        meaning=(
            "HOST, PATH, QUERY, REF, PROTOCOL, FILE, AUTHORITY or USERINFO of a URL, or the value of a key"
            " of its query. "
            "NULL for no URL; Spark's fails there."
        ),
        examples=(
            ("parse_url('http://u@h.com:80/p?q=1&r=2#f', 'HOST')", "h.com"),
            ("parse_url('http://h.com/p?q=1&r=2', 'QUERY', 'r')", "2"),
            ("parse_url('http://u@h.com:80/p', 'AUTHORITY')", "u@h.com:80"),
            ("parse_url('a b', 'HOST')", "NULL"),
            ("parse_url('http://h.com', 'PORT')", "NULL"),
            ("parse_url(NULL, 'HOST')", "NULL"),
        ),
    ),
    Function(
        name="split",
        signature="split(text, delimiter)",
        group=Group.STRINGS,
        result="list of text",
        where=DialectScope.DATAFUSION,
        least=2,
        most=2,
        sql=_split,
        meaning="The parts between delimiters, empty ones too; an empty delimiter gives the characters."
        " Spark's takes a pattern.",
        examples=(
            ("split('a.b..c', '.')", "[a, b, , c]"),
            ("split('abc', '')", "[a, b, c]"),
            ("split('a,', ',')", "[a, ]"),
            ("split('abc', 'x')", "[abc]"),
            ("split('', ',')", "[]"),
            ("split('a|b', concat('|', ''))", "[a, b]"),
            ("split(NULL, ',')", "NULL"),
            ("split('a', NULL)", "NULL"),
        ),
    ),
    Function(
        name="_gs_split_string_to_array",
        signature="_gs_split_string_to_array(text[, separator = ' '])",
        aliases=("_gs_split_string_by",),
        group=Group.ARRAYS,
        result="list of text",
        least=1,
        most=2,
        sql=_split,
        meaning="The parts between separators.",
        examples=(
            ("_gs_split_string_to_array('a b  c')", "[a, b, , c]"),
            ("_gs_split_string_to_array('a||b', '||')", "[a, b]"),
            ("_gs_split_string_by('a-b', '-')", "[a, b]"),
            ("_gs_split_string_to_array(NULL)", "NULL"),
        ),
    ),
    Function(
        name="split_index",
        signature="split_index(text, delimiter, index)",
        group=Group.STRINGS,
        result="text",
        least=3,
        most=3,
        sql=_split_index,
        meaning="One part, counted from 0; NULL where there is none.",
        examples=(
            ("split_index('a,b,c', ',', 1)", "b"),
            ("split_index('a,b', ',', 2)", "NULL"),
            ("split_index('a,b', ',', -1)", "NULL"),
            ("split_index(NULL, ',', 0)", "NULL"),
        ),
    ),
    Function(
        name="translate",
        signature="translate(text, from, to)",
        group=Group.STRINGS,
        result="text",
        where=DialectScope.SPARK,
        least=3,
        most=3,
        sql="translate(_1, _2, _3)",
        meaning="Each character of the second text becomes the one at the same place of the third, or is"
        " left out if there is none.",
        examples=(
            ("translate('abcb', 'ab', 'x')", "xc"),
            ("translate('abc', '', 'x')", "abc"),
            ("translate(NULL, 'a', 'b')", "NULL"),
        ),
    ),
    Function(
        name="translate3",
        signature="translate3(text, from, to)",
        group=Group.STRINGS,
        result="text",
        least=3,
        most=3,
        sql="translate(_1, _2, _3)",
        meaning="The same as `translate`.",
        examples=(("translate3('abc', 'abc', 'xyz')", "xyz"),),
    ),
    Function(
        name="url_encode",
        signature="url_encode(text)",
        group=Group.STRINGS,
        result="text",
        where=DialectScope.SPARK,
        sql="url_encode(_1)",
        meaning="As a form is sent: a blank becomes +.",
        examples=(
            ("url_encode('a b&é')", "a+b%26%C3%A9"),
            ("url_encode('')", ""),
            ("url_encode(NULL)", "NULL"),
        ),
    ),
    Function(
        name="url_decode",
        signature="url_decode(text)",
        group=Group.STRINGS,
        result="text",
        where=DialectScope.DATAFUSION,
        sql="try_url_decode(_1)",
        meaning="The way back; NULL where it is not encoded so. Spark's fails there.",
        examples=(
            ("url_decode('a+b%26')", "a b&"),
            ("url_decode('%zz')", "NULL"),
            ("url_decode(NULL)", "NULL"),
        ),
    ),
    *(
        Function(
            name=name,
            signature=f"{name}(text, {what})",
            group=Group.STRINGS,
            result="boolean",
            where=DialectScope.SPARK,
            least=2,
            most=2,
            sql=f"{name}(_1, _2)",
            meaning=f"Whether the text {name[:-4]} with another.",
            examples=(
                (f"{name}('abc', '{good}')", "true"),
                (f"{name}('abc', 'b')", "false"),
                (f"{name}('abc', '')", "true"),
                (f"{name}(NULL, 'a')", "NULL"),
            ),
        )
        for name, what, good in (("startswith", "prefix", "ab"), ("endswith", "suffix", "bc"))
    ),
    *(
        Function(
            name=f"{name}case",
            signature=f"{name}case(text)",
            group=Group.STRINGS,
            result="text",
            sql=f"{name}(_1)",
            meaning=f"In {size} letters.",
            examples=((f"{name}case('aBc')", good), (f"{name}case(NULL)", "NULL")),
        )
        for name, size, good in (("lower", "small", "abc"), ("upper", "capital", "ABC"))
    ),
    Function(
        name="charlength",
        signature="charlength(text)",
        group=Group.STRINGS,
        result="int",
        sql="char_length(_1)",
        meaning="The number of characters; the same as `character_length`.",
        examples=(("charlength('né')", "2"), ("charlength('')", "0"), ("charlength(NULL)", "NULL")),
    ),
)

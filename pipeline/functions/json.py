"""JSON in strings, by Flink's names and rules. Paths are literals of `$`, `.key`, `[n]` and `['key']`.

Numbers with a fraction are printed as doubles. Integers keep all their digits.
"""

from __future__ import annotations

import re

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.functions.json_clauses import MOST_ARGUMENTS, clause_value, with_clause_options
from headrace.pipeline.functions.registry import Builder, DialectScope, Function, FunctionCall, Group
from headrace.pipeline.functions.templates import fill, literal_text, text_of, with_failures

_PATH = re.compile(r"\$(?:\.[^.\[\]'\"*?()@\s]+|\[[0-9]+\]|\['[^'\[\]*?]+'\])*")
_QUOTED = re.compile(r'\["([^"\'\[\]*?]+)"\]')
_KINDS = {"VALUE": "", "OBJECT": "{", "ARRAY": "[", "SCALAR": "-"}
VALID = (
    "is_variant_null(try_variant_get(try_parse_json(concat('[', {0}, ',[[[[null]]]]]')),"
    " '$[1][0][0][0][0]', 'variant'))"
)
"""Whether the text is exactly one JSON value. Spark's parser stops after the first value.

Spark has read the whole text if the appended item follows. It is improbable in data, and fastest to test.
"""
_AS_JSON = "to_json(try_variant_get(try_parse_json(_1), _2, 'variant'))"
"""The value at the path as JSON. Strings begin with a quote, containers with a bracket."""
_FOUND = "get_json_object(_1, _2)"
_BRACKET = f"(startswith({_FOUND}, '{{') OR startswith({_FOUND}, '['))"
_UNSURE = "(contains(_1, '\"{') OR contains(_1, '\"[') OR contains(_1, '\\\\u') OR contains(_1, _quote))"
"""Whether a string in the document may look like an object or an array. Only then it is parsed again."""
_SURE = (
    f"((startswith({_FOUND}, '{{\"') OR startswith({_FOUND}, '[\"')) AND NOT contains(_1, '\\\\') AND"
    " NOT contains(_1, _quote))"
)
"""A cheap test that the value is no string. A quote in a string has a backslash, or is in apostrophes."""
_IS_TEXT = f"startswith({_AS_JSON}, '\"')"
_QUOTE = {"quote": exp.Literal.string("'")}
_LOOKS = f"get(regexp_extract_all({_FOUND}, {{0}}, 0), 0)"
"""The value if it has the right form, else NULL. For WHERE, CASE and others that share no expressions."""
_LIKE_SCALAR, _LIKE_CONTAINER = r"'(?s)\\A(?:[^\\[{].*)?\\z'", r"'(?s)\\A[\\[{].*'"


def _path(call: FunctionCall) -> exp.Expr:
    """Return the checked path. Keys in double quotes are translated to Spark's form."""
    path = _QUOTED.sub(r"['\1']", literal_text(call, 1, "the path"))
    if not _PATH.fullmatch(path):
        msg = f"`{call.name}`: the path `{path}` is not possible"
        raise UserError(
            msg,
            hint="A path is $ and then any of .key, [n] and ['key'], such as $.items[0]['a b'].",
            node=call.node,
        )
    return exp.Literal.string(path)


def _may_be_null(path: exp.Expr) -> bool:
    """Return whether Spark gives JSON's null as a string at the path: at the root and in lists."""
    return path.name.endswith(("$", "]"))


def _unsure(path: exp.Expr) -> str:
    return f"({_UNSURE} OR contains(_1, '\"null\"'))" if _may_be_null(path) else _UNSURE


def _scalar(call: FunctionCall) -> exp.Expr:
    """Return a value that is neither an object, nor an array, nor null."""
    path = _path(call)
    doubtful = f"CASE WHEN {_unsure(path)} AND {_IS_TEXT} THEN {_FOUND} END"
    if call.shared:
        other = f"({_BRACKET} OR {_FOUND} = 'null')" if _may_be_null(path) else _BRACKET
        return fill(f"CASE WHEN {other} THEN {doubtful} ELSE {_FOUND} END", [call.args[0], path], **_QUOTE)
    pattern = _LIKE_SCALAR.replace(r"\\A", r"\\A(?!null\\z)") if _may_be_null(path) else _LIKE_SCALAR
    return fill(f"coalesce({_LOOKS.format(pattern)}, {doubtful})", [call.args[0], path], **_QUOTE)


def _container(call: FunctionCall) -> exp.Expr:
    if call.shared:
        container = f"CASE WHEN {_BRACKET} AND (NOT {_UNSURE} OR NOT {_IS_TEXT}) THEN {_FOUND} END"
        result = f"CASE WHEN {_SURE} THEN {_FOUND} ELSE {container} END"
    else:
        result = f"CASE WHEN NOT {_UNSURE} OR NOT {_IS_TEXT} THEN {_LOOKS.format(_LIKE_CONTAINER)} END"
    return fill(result, [call.args[0], _path(call)], **_QUOTE)


def _json_exists(call: FunctionCall) -> exp.Expr:
    """Return NULL for NULL, and by default false for invalid JSON. JSON's null does not exist."""
    call = with_clause_options(call)
    path = _path(call)
    there = f"{_FOUND} IS NOT NULL"
    if _may_be_null(path):
        there = f"(coalesce({_FOUND}, 'null') <> 'null' OR coalesce({_unsure(path)} AND {_IS_TEXT}, FALSE))"
    result = fill(there, [call.args[0], path], **_QUOTE)
    text = call.options.get("on_error")
    word = ((text_of(text) if text is not None else None) or "FALSE").upper()
    if word == "FALSE":
        return fill("CASE WHEN _1 IS NOT NULL THEN _2 END", [call.args[0], result])
    otherwise = {
        "TRUE": "TRUE",
        "UNKNOWN": "CAST(NULL AS BOOLEAN)",
        "ERROR": "CAST(hr_fail('json_exists: this is no JSON') AS BOOLEAN)",
    }.get(word, "FALSE")
    whole = fill(
        f"CASE WHEN _1 IS NULL THEN CAST(NULL AS BOOLEAN) WHEN NOT {VALID.format('_1')} THEN {otherwise}"
        " ELSE _2 END",
        [call.args[0], result],
    )
    return with_failures(whole, call.node)


def _json_value(call: FunctionCall) -> exp.Expr:
    """Return the scalar, cast by RETURNING. Clauses set the result for a missing value and an error."""
    call = with_clause_options(call)
    scalar = result = _scalar(call)
    returning = call.options.get("returning")
    if returning is not None:
        result = exp.TryCast(this=result, to=returning.copy(), safe=True)
    if not {"on_empty", "on_error"} & call.options.keys():
        return result
    return _with_clauses(call, result, scalar if returning is not None else None)


def _with_clauses(call: FunctionCall, node: exp.Expr, uncast: exp.Expr | None = None) -> exp.Expr:
    """Apply the clauses. Missing values, null, and values of the other type are empty.

    Invalid JSON is an error, and so is `uncast` if its cast gives NULL. The document is checked only for a
    NULL result.
    """
    wrong = f"NOT {VALID.format('_1')}" + (" OR _3 IS NOT NULL" if uncast is not None else "")
    whole = fill(
        f"coalesce(_2, CASE WHEN _1 IS NULL THEN NULL WHEN {wrong} THEN _error ELSE _empty END)",
        [call.args[0], node, *([uncast] if uncast is not None else [])],
        error=clause_value(
            call, "on_error", "this is no JSON" + (", or not of the type" if uncast is not None else "")
        ),
        empty=clause_value(call, "on_empty", "there is nothing at the path"),
    )
    return with_failures(whole, call.node)


def _json_query(call: FunctionCall) -> exp.Expr:
    """Return objects and arrays. A wrapper puts brackets around everything, or around all but arrays."""
    call = with_clause_options(call)
    wrapper = (text_of(call.options["wrapper"]) or "") if "wrapper" in call.options else "WITHOUT"
    result = _container(call)
    if wrapper != "WITHOUT":
        scalar = fill(f"nullif({_AS_JSON}, 'null')", [call.args[0], _path(call)])
        wrapped = "coalesce(concat('[', _1, ']'), concat('[', _2, ']'))"
        result = fill(
            f"CASE WHEN startswith(_1, '[') THEN _1 ELSE {wrapped} END"
            if wrapper == "CONDITIONAL"
            else wrapped,
            [result, scalar],
        )
    return _with_clauses(call, result) if {"on_empty", "on_error"} & call.options.keys() else result


def _is_json(call: FunctionCall) -> exp.Expr:
    kind = call.args[1].name.upper() if len(call.args) > 1 else "VALUE"
    if kind not in _KINDS:
        msg = f"`is_json`: `{kind}` is no kind of JSON"
        raise UserError(msg, hint=f"Allowed: {', '.join(_KINDS)}.", node=call.node)
    first = {"VALUE": "", "SCALAR": "ltrim(_1) RLIKE '^[^\\\\[{]' AND "}.get(
        kind, f"startswith(ltrim(_1), '{_KINDS[kind]}') AND "
    )
    return fill(f"coalesce({first}{VALID.format('_1')}, FALSE)", [call.args[0]])


def build_checked(template: str) -> Builder:
    """Return a builder of the template with the validity of its argument and the function's name."""
    return lambda call: with_failures(
        fill(template.format(valid=VALID.format("_1"), name=call.name), call.args), call.node
    )


OR_FAIL = (
    "CASE WHEN _1 IS NULL OR {valid} THEN _1 ELSE hr_fail(concat('{name}: this is no JSON: ',"
    " left(_1, 100))) END"
)
_DOC = """'{"a": {"b": [1, "x", null]}, "n": 7, "s": "{1}", "d": 1.5, "z": null}'"""

FUNCTIONS = (
    Function(
        name="json_value",
        signature="json_value(text, path [RETURNING type] [NULL|ERROR|DEFAULT x ON EMPTY] [... ON ERROR])",
        group=Group.JSON,
        result="text, or the type after RETURNING",
        least=2,
        most=MOST_ARGUMENTS["json_value"],
        sql=_json_value,
        meaning=(
            "The scalar at a path, as text; NULL for objects and arrays, for nothing, and for what is no"
            " JSON. ON EMPTY is about nothing, "
            "null, objects and arrays, ON ERROR about what is no JSON, and what cannot be cast. The clauses"
            " may also be given by place, "
            "as Streamling does."
        ),
        examples=(
            (f"json_value({_DOC}, '$.n')", "7"),
            (f"json_value({_DOC}, '$.a.b[1]')", "x"),
            (f"json_value({_DOC}, '$.a')", "NULL"),
            (f"json_value({_DOC}, '$.s')", "{1}"),
            (f"json_value({_DOC}, '$.z')", "NULL"),
            (f"json_value({_DOC}, '$.x')", "NULL"),
            ("json_value('{', '$.a')", "NULL"),
            ("json_value('', '$.a')", "NULL"),
            ("json_value(NULL, '$.a')", "NULL"),
            ("json_value('{\"a b\": true}', '$[''a b'']')", "true"),
            ("json_value('null', '$')", "NULL"),
            ("json_value('\"null\"', '$')", "null"),
            ("json_value('\"a\"', '$')", "a"),
            ("json_value('[1]', '$')", "NULL"),
            (f"json_value('{{\"v\": {2**256 - 1}}}', '$.v')", str(2**256 - 1)),
            (f"json_value({_DOC}, '$.n' RETURNING INT) + 1", "8"),
            ("json_value('[null, \"null\"]', '$[0]')", "NULL"),
            ("json_value('[null, \"null\"]', '$[1]')", "null"),
            ("json_value('[\"nullable\", \"\"]', '$[0]')", "nullable"),
            ("json_value('{\"a b\": 1}', '$[\"a b\"]')", "1"),
            (f"json_value({_DOC}, '$.x' DEFAULT 'none' ON EMPTY)", "none"),
            (f"json_value({_DOC}, '$.a' DEFAULT 'none' ON EMPTY DEFAULT 'bad' ON ERROR)", "none"),
            (f"json_value({_DOC}, '$.z' DEFAULT 'none' ON EMPTY DEFAULT 'bad' ON ERROR)", "none"),
            ("json_value('no', '$.a' DEFAULT 'none' ON EMPTY DEFAULT 'bad' ON ERROR)", "bad"),
            (f"json_value({_DOC}, '$.a.b[1]' RETURNING INT DEFAULT -1 ON ERROR)", "-1"),
            ("json_value('{\"a\": null}', '$.a', 'STRING', 'DEFAULT', 'missing', 'NULL', NULL)", "missing"),
            ("json_value('no', '$.a', 'STRING', 'NULL', NULL, 'DEFAULT', 'oops')", "oops"),
            ("json_value('no', '$.a', 'STRING', 'DEFAULT', 'x', 'NULL', NULL)", "NULL"),
        ),
        errors=(
            ("json_value('{}', '$.a' ERROR ON EMPTY)", "json_value: there is nothing at the path"),
            ("json_value('no', '$.a', 'STRING', 'NULL', NULL, 'ERROR', NULL)", "json_value: this is no JSON"),
            ("json_value('{}', '$.a', 'STRING')", "`json_value` takes 2 or 7 arguments, found 3"),
            ("json_value('{}', '$..a')", "the path `$..a` is not possible"),
            ("json_value('{}', lower('$.a'))", "the path must be written out"),
        ),
    ),
    Function(
        name="json_query",
        signature="json_query(text, path [WITH [CONDITIONAL] WRAPPER] [NULL|ERROR|EMPTY ARRAY|EMPTY OBJECT"
        " ON EMPTY] [... ON ERROR])",
        group=Group.JSON,
        result="text",
        least=2,
        most=MOST_ARGUMENTS["json_query"],
        sql=_json_query,
        meaning=(
            "The object or array at a path, as JSON; NULL for scalars, for nothing, and for what is no"
            " JSON. ON EMPTY is about nothing, null "
            "and scalars, ON ERROR about what is no JSON. A conditional wrapper leaves arrays alone. The"
            " clauses may also be given by "
            "place, as Streamling does."
        ),
        examples=(
            (f"json_query({_DOC}, '$.a')", '{"b":[1,"x",null]}'),
            (f"json_query({_DOC}, '$.a.b')", '[1,"x",null]'),
            (f"json_query({_DOC}, '$.n')", "NULL"),
            (f"json_query({_DOC}, '$.s')", "NULL"),
            (f"json_query({_DOC}, '$.x')", "NULL"),
            ("json_query('[', '$')", "NULL"),
            ("json_query(NULL, '$')", "NULL"),
            (f"json_query({_DOC}, '$.n' WITH WRAPPER)", "[7]"),
            (f"json_query({_DOC}, '$.a' WITH WRAPPER)", '[{"b":[1,"x",null]}]'),
            (f"json_query({_DOC}, '$.a' WITH CONDITIONAL WRAPPER)", '[{"b":[1,"x",null]}]'),
            (f"json_query({_DOC}, '$.a.b' WITH CONDITIONAL WRAPPER)", '[1,"x",null]'),
            (f"json_query({_DOC}, '$.a.b' WITH WRAPPER)", '[[1,"x",null]]'),
            (f"json_query({_DOC}, '$.s' WITH WRAPPER)", '["{1}"]'),
            (f"json_query({_DOC}, '$.z' WITH WRAPPER)", "NULL"),
            (f"json_query({_DOC}, '$.x' EMPTY ARRAY ON EMPTY)", "[]"),
            (f"json_query({_DOC}, '$.n' EMPTY OBJECT ON EMPTY ERROR ON ERROR)", "{}"),
            ("json_query('no', '$.a' EMPTY OBJECT ON ERROR)", "{}"),
            ("json_query('1', '$', 'STRING', 'WITH CONDITIONAL ARRAY', 'NULL', 'NULL')", "[1]"),
            ("json_query('{}', '$.a', 'STRING', 'WITHOUT ARRAY', 'EMPTY OBJECT', 'NULL')", "{}"),
            ("json_query('no', '$.a', 'STRING', 'WITHOUT ARRAY', 'NULL', 'EMPTY ARRAY')", "[]"),
        ),
        errors=(
            ("json_query('no', '$' ERROR ON ERROR)", "json_query: this is no JSON"),
            (
                "json_query('{}', '$', 'STRING', 'WITH ARRAYS', 'NULL', 'NULL')",
                "`'WITH ARRAYS'` is not allowed here",
            ),
        ),
    ),
    Function(
        name="json_exists",
        signature="json_exists(text, path [TRUE|FALSE|UNKNOWN|ERROR ON ERROR])",
        group=Group.JSON,
        result="boolean",
        least=2,
        most=MOST_ARGUMENTS["json_exists"],
        sql=_json_exists,
        meaning="Whether there is anything at a path; JSON's null is nothing. The value before ON ERROR may"
        " also be a third argument.",
        examples=(
            (f"json_exists({_DOC}, '$.a.b[1]')", "true"),
            (f"json_exists({_DOC}, '$.a.b[2]')", "false"),
            (f"json_exists({_DOC}, '$.a.b[3]')", "false"),
            (f"json_exists({_DOC}, '$.a')", "true"),
            (f"json_exists({_DOC}, '$.z')", "false"),
            ("json_exists('null', '$')", "false"),
            ("json_exists('[\"null\", \"\"]', '$[0]')", "true"),
            ("json_exists('[\"null\", \"\"]', '$[1]')", "true"),
            ("json_exists('no', '$.a')", "false"),
            ("json_exists(NULL, '$.a')", "NULL"),
            ("json_exists('no', '$.a' UNKNOWN ON ERROR)", "NULL"),
            ("json_exists('no', '$.a' TRUE ON ERROR)", "true"),
            ("json_exists('no', '$.a', 'UNKNOWN')", "NULL"),
        ),
        errors=(("json_exists('no', '$.a' ERROR ON ERROR)", "json_exists: this is no JSON"),),
    ),
    Function(
        name="is_json",
        signature="is_json(text[, VALUE|OBJECT|ARRAY|SCALAR])",
        group=Group.JSON,
        result="boolean",
        least=1,
        most=2,
        sql=_is_json,
        meaning=(
            "Whether a text is JSON, and of that kind; false for NULL. An object with the same key twice is"
            " not taken for "
            "JSON. `text IS JSON OBJECT` is the same."
        ),
        examples=(
            ("is_json('{}')", "true"),
            ("is_json('1', 'SCALAR')", "true"),
            ("is_json('1', OBJECT)", "false"),
            ("is_json(' [1]', 'ARRAY')", "true"),
            ("is_json('{\"a\":1}' , 'OBJECT')", "true"),
            ("is_json('{}x')", "false"),
            ("is_json('{} {}')", "false"),
            ("is_json('1, 2')", "false"),
            ("is_json('1] [2')", "false"),
            ("is_json('')", "false"),
            ("is_json('abc')", "false"),
            ("is_json('\"abc\"', 'SCALAR')", "true"),
            ('is_json(\'{"a":1,"a":2}\')', "false"),
            ("is_json('{''a'': 1}')", "false"),
            ("is_json('{\"a\": NaN}')", "false"),
            ("is_json('[01]')", "false"),
            ("is_json('{\"a\": 1,}')", "false"),
            ("is_json(concat('[\"a', chr(10), '\"]'))", "false"),
            ("is_json(concat('[1,', chr(10), '2]'))", "true"),
            ("is_json('1}')", "false"),
            ("is_json('1, \"text\": 2')", "false"),
            ("is_json(NULL)", "false"),
            ("'[]' IS JSON ARRAY", "true"),
            ("is_json('[]', 'SCALAR')", "false"),
        ),
        errors=(("is_json('1', 'NUMBER')", "`NUMBER` is no kind of JSON"),),
    ),
    Function(
        name="parse_json",
        signature="parse_json(text)",
        group=Group.JSON,
        result="text",
        where=DialectScope.DATAFUSION,
        sql=build_checked(OR_FAIL),
        meaning="The text, checked to be JSON. Spark's gives a VARIANT.",
        examples=(("parse_json('[1]')", "[1]"), ("parse_json(NULL)", "NULL")),
        errors=(("parse_json('[1')", "parse_json: this is no JSON: [1"),),
    ),
    Function(
        name="try_parse_json",
        signature="try_parse_json(text)",
        group=Group.JSON,
        result="text",
        where=DialectScope.DATAFUSION,
        sql=f"CASE WHEN {VALID.format('_1')} THEN _1 END",
        meaning="The text if it is JSON, else NULL. Spark's gives a VARIANT.",
        examples=(
            ("try_parse_json('[1]')", "[1]"),
            ("try_parse_json('[1')", "NULL"),
            ("try_parse_json(NULL)", "NULL"),
        ),
    ),
)

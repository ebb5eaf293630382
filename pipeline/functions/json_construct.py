"""JSON built from values, and JSON strings as values."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.functions.json import OR_FAIL, VALID, build_checked
from headrace.pipeline.functions.registry import Function, FunctionCall, Group
from headrace.pipeline.functions.templates import NAME, fill, quote_json, text_of, with_failures

_WRITTEN = (
    "substr(to_json(CASE WHEN {0} IS NOT NULL THEN array({0}) END, map('ignoreNullFields', 'false')), 2,"
    " length(to_json(CASE WHEN {0} IS NOT NULL THEN array({0}) END, map('ignoreNullFields', 'false'))) - 2)"
)
_PLAIN_TEXT = r'\\A"[^"\\\\\\x00-\\x1f\\ufffd]*"\\z'
"""A string whose characters need no escapes in JSON."""
_RAW = (
    "json",
    "json_object",
    "json_object_absent_on_null",
    "json_array",
    "json_array_absent_on_null",
    "json_string",
    "json_quote",
    "parse_json",
    "try_parse_json",
)


def _to_json(value: exp.Expr) -> exp.Expr:
    """Return any value as JSON. NULL stays NULL. JSON stays unchanged."""
    if isinstance(value, exp.Null):
        return exp.Null()
    return value.copy() if value.meta.get(NAME) in _RAW else fill(_WRITTEN.format("_1"), [value])


def _object(call: FunctionCall, *, absent: bool) -> exp.Expr:
    if len(call.args) % 2:
        msg = f"`{call.name}` takes keys and values in turn, found {len(call.args)} arguments"
        raise UserError(
            msg,
            hint="It is called as json_object('key', value, ...), or json_object('key' VALUE value, ...).",
            node=call.node,
        )
    keys, values = call.args[::2], call.args[1::2]
    if not keys:
        return exp.Literal.string("{}")
    plain = (
        not absent
        and all(text_of(key) for key in keys)
        and not any(value.meta.get(NAME) in _RAW for value in values)
    )
    if plain:
        pairs = [part.copy() for key, value in zip(keys, values, strict=True) for part in (key, value)]
        return fill(
            "to_json(_1, map('ignoreNullFields', 'false'))",
            [exp.Anonymous(this="named_struct", expressions=pairs)],
        )
    return _join_parts(
        "{", [_pair(call, key, value, absent=absent) for key, value in zip(keys, values, strict=True)], "}"
    )


def _pair(call: FunctionCall, key: exp.Expr, value: exp.Expr, *, absent: bool) -> exp.Expr:
    text = text_of(key)
    name = (
        exp.Literal.string(quote_json(text))
        if text is not None
        else fill("coalesce(_1, hr_fail('json_object: a key is NULL'))", [_to_json(key)])
    )
    return fill(
        "concat(_1, ':', _2)" if absent else "concat(_1, ':', coalesce(_2, 'null'))",
        [with_failures(name, call.node), _to_json(value)],
    )


def _array(call: FunctionCall, *, absent: bool) -> exp.Expr:
    return _join_parts(
        "[",
        [
            _to_json(value) if absent else fill("coalesce(_1, 'null')", [_to_json(value)])
            for value in call.args
        ],
        "]",
    )


def _join_parts(opening: str, parts: Sequence[exp.Expr], closing: str) -> exp.Expr:
    """Join the parts without those that are NULL."""
    inside = exp.Anonymous(this="concat_ws", expressions=[exp.Literal.string(","), *parts])
    return exp.Anonymous(
        this="concat", expressions=[exp.Literal.string(opening), inside, exp.Literal.string(closing)]
    )


FUNCTIONS = (
    Function(
        name="json_object",
        signature="json_object(key, value, ...)",
        group=Group.JSON,
        result="text",
        least=0,
        most=None,
        sql=lambda call: _object(call, absent=False),
        meaning=(
            "An object of keys and values, NULL as null. Values that another JSON function of this page"
            " made are put in as "
            "JSON. `'key' VALUE value` and `ABSENT ON NULL` may be written too."
        ),
        examples=(
            ("json_object('a', 1, 'b', 'x\"y', 'c', NULL)", '{"a":1,"b":"x\\"y","c":null}'),
            ("json_object('a' VALUE json_array(1, true))", '{"a":[1,true]}'),
            ("json_object()", "{}"),
            ("json_object('j', json('{\"x\": 1}'))", '{"j":{"x": 1}}'),
            ("json_object(concat('a', 'b'), 1.50)", '{"ab":1.50}'),
            ("json_object('a' VALUE NULL, 'b' VALUE 2 ABSENT ON NULL)", '{"b":2}'),
        ),
    ),
    Function(
        name="json_object_absent_on_null",
        signature="json_object_absent_on_null(key, value, ...)",
        group=Group.JSON,
        result="text",
        least=0,
        most=None,
        sql=lambda call: _object(call, absent=True),
        meaning="The same without values that are NULL.",
        examples=(
            ("json_object_absent_on_null('a', 1, 'b', NULL)", '{"a":1}'),
            ("json_object_absent_on_null('b', NULL)", "{}"),
        ),
        errors=(
            ("json_object_absent_on_null('a')", "takes keys and values in turn"),
            ("json_object_absent_on_null(CAST(NULL AS STRING), 1)", "json_object: a key is NULL"),
        ),
    ),
    Function(
        name="json_array",
        signature="json_array(a, b, ...)",
        group=Group.JSON,
        result="text",
        least=0,
        most=None,
        sql=lambda call: _array(call, absent=False),
        meaning="An array of values of any types, NULL as null. `ABSENT ON NULL` may be written.",
        examples=(
            ("json_array(1, 'a', NULL, array(true))", '[1,"a",null,[true]]'),
            ("json_array()", "[]"),
            ("json_array(json_object('a', 1))", '[{"a":1}]'),
            ("json_array(1, NULL ABSENT ON NULL)", "[1]"),
        ),
    ),
    Function(
        name="json_array_absent_on_null",
        signature="json_array_absent_on_null(a, b, ...)",
        group=Group.JSON,
        result="text",
        least=0,
        most=None,
        sql=lambda call: _array(call, absent=True),
        meaning="The same without values that are NULL.",
        examples=(
            ("json_array_absent_on_null(1, NULL, 2)", "[1,2]"),
            ("json_array_absent_on_null(NULL)", "[]"),
        ),
    ),
    Function(
        name="json_string",
        signature="json_string(value)",
        group=Group.JSON,
        result="text",
        sql=_WRITTEN.format("_1"),
        meaning="Any value as JSON: structs as objects, lists as arrays, bytes in base 64.",
        examples=(
            (
                "json_string(named_struct('a', 1, 'b', array('x', NULL), 'c', CAST(NULL AS INT)))",
                '{"a":1,"b":["x",null],"c":null}',
            ),
            ("json_string('a\"b')", '"a\\"b"'),
            ("json_string(1.50)", "1.50"),
            ("json_string(true)", "true"),
            ("json_string(map('k', 1))", '{"k":1}'),
            ("json_string(CAST(NULL AS STRING))", "NULL"),
        ),
    ),
    Function(
        name="json_quote",
        signature="json_quote(text)",
        group=Group.JSON,
        result="text",
        sql=_WRITTEN.format("CAST(_1 AS STRING)"),
        meaning="A text as JSON text.",
        examples=(
            ("json_quote('a\"b')", '"a\\"b"'),
            ("json_quote('a\\nb')", '"a\\nb"'),
            ("json_quote('')", '""'),
            ("json_quote('é]')", '"é]"'),
            ("json_quote(NULL)", "NULL"),
        ),
    ),
    Function(
        name="json_unquote",
        signature="json_unquote(text)",
        group=Group.JSON,
        result="text",
        sql=f"coalesce(CASE WHEN _1 RLIKE '{_PLAIN_TEXT}' THEN substr(_1, 2, length(_1) - 2)"
        f" WHEN _1 LIKE '\"%\"' AND {VALID.format('_1')} THEN get_json_object(_1, '$') END, _1)",
        meaning="The way back; what is no JSON text stays as it is.",
        examples=(
            ('json_unquote(\'"a\\\\"b"\')', 'a"b'),
            ("json_unquote('abc')", "abc"),
            ('json_unquote(\'"a" b"\')', '"a" b"'),
            ("json_unquote('\"\\\\u00e9\"')", "é"),
            ("json_unquote('\"')", '"'),
            ("json_unquote('\"abc\"')", "abc"),
            ("json_unquote('\"é\"')", "é"),
            ("json_unquote('\"\"')", ""),
            ("json_unquote('\"a\nb\"')", '"a\nb"'),
            ("json_unquote(NULL)", "NULL"),
        ),
    ),
    Function(
        name="json",
        signature="json(text)",
        group=Group.JSON,
        result="text",
        sql=build_checked(OR_FAIL),
        meaning="The text, checked to be JSON; `json_object` and `json_array` put it in as it is.",
        examples=(("json('{\"a\": 1}')", '{"a": 1}'), ("json(NULL)", "NULL")),
        errors=(("json('{')", "json: this is no JSON: {"),),
    ),
    Function(
        name="_gs_json_objects_to_clickhouse_tuples",
        signature="_gs_json_objects_to_clickhouse_tuples(text, keys)",
        group=Group.JSON,
        result="text",
        least=2,
        most=2,
        arrow="headrace.jobs.functions.clickhouse_tuple:clickhouse_tuples",
        meaning=(
            "A JSON array of objects as ClickHouse reads an array of tuples, with the values of these keys"
            " in their order; `[]` for NULL. "
            "Quotes in texts are escaped; an object is a text of JSON."
        ),
        examples=(
            (
                (
                    '_gs_json_objects_to_clickhouse_tuples(\'[{"a": 1, "b": "it\'\'s"}, {"b": null}]\','
                    " array('a', 'b'))"
                ),
                "[(1, 'it\\'s'), (null, null)]",
            ),
            ("_gs_json_objects_to_clickhouse_tuples('[]', array('a'))", "[]"),
            (
                (
                    f'_gs_json_objects_to_clickhouse_tuples(\'[{{"a": {2**256 - 1}, "b": [true, {{"c":'
                    f" 1}}]}}]', array('a', 'b'))"
                ),
                f"[({2**256 - 1}, [true,'{{\"c\":1}}'])]",
            ),
            ("_gs_json_objects_to_clickhouse_tuples('[1]', array('a'))", "[(null)]"),
            ("_gs_json_objects_to_clickhouse_tuples(NULL, array('a'))", "[]"),
        ),
        errors=(("_gs_json_objects_to_clickhouse_tuples('no', array('a'))", "this is no JSON array: no"),),
    ),
)

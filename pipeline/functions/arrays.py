"""Lists, and lists of structs."""

from __future__ import annotations

from sqlglot import exp

from headrace.pipeline.functions.registry import Function, FunctionCall, Group
from headrace.pipeline.functions.templates import field_of, fill, literal_text, with_failures

_LIST = (
    "array(named_struct('k', 'a', 'n', 1), named_struct('k', 'b', 'n', 2), named_struct('k', 'a', 'n', 3))"
)


def _field(call: FunctionCall) -> exp.Expr:
    return field_of("hr_x", literal_text(call, 1, "the field"))


def _filter(call: FunctionCall) -> exp.Expr:
    return fill("filter(_1, hr_x -> _field = _2)", [call.args[0], call.args[2]], field=_field(call))


def _first(call: FunctionCall) -> exp.Expr:
    return fill("get(_1, 0)", [_filter(call)])


def _among(call: FunctionCall) -> exp.Expr:
    return fill(
        "filter(_1, hr_x -> array_contains(_2, _field))", [call.args[0], call.args[2]], field=_field(call)
    )


def _one_field(call: FunctionCall) -> exp.Expr:
    """Read the field from the whole list at once, because Spark compiles that."""
    of = exp.Dot(
        this=exp.Paren(this=call.args[0].copy()),
        expression=exp.to_identifier(literal_text(call, 1, "the field"), quoted=True),
    )
    return fill("CAST(_1 AS ARRAY<STRING>)", [of])


def _zip(call: FunctionCall) -> exp.Expr:
    """Combine the items by index. Headrace chooses the names of the fields."""
    others = range(2, len(call.args) + 1)
    fields = "".join(f", 'f{place - 1}', get(_{place}, hr_i)" for place in others)
    unequal = " OR ".join(f"size(_1) <> size(_{place})" for place in others)
    none = " OR ".join(f"_{place} IS NULL" for place in (1, *others))
    whole = fill(
        f"CASE WHEN {none} THEN NULL WHEN {unequal} THEN hr_fail('_gs_zip_arrays takes lists of the same"
        " length')"
        f" ELSE transform(_1, (hr_x, hr_i) -> named_struct('f0', hr_x{fields})) END",
        call.args,
    )
    return with_failures(whole, call.node)


def _series(call: FunctionCall) -> exp.Expr:
    step = call.args[2] if len(call.args) > 2 else exp.Literal.number(1)
    run = "sequence(CAST(_1 AS BIGINT), CAST(_2 AS BIGINT), CAST(_3 AS BIGINT))"
    whole = fill(
        "CASE WHEN _3 = 0 THEN hr_fail('_gs_generate_series: the step is 0') WHEN (_3 > 0 AND _1 > _2) OR"
        " (_3 < 0 AND _1 < _2)"
        f" THEN slice(array(CAST(_1 AS BIGINT)), 1, 0) ELSE {run} END",
        [*call.args[:2], step],
    )
    return with_failures(whole, call.node)


FUNCTIONS = (
    Function(
        name="array_filter",
        signature="array_filter(list, 'field', value)",
        group=Group.ARRAYS,
        result="list of struct",
        least=3,
        most=3,
        sql=_filter,
        meaning="The structs of a list whose field has a value.",
        examples=(
            (f"array_filter({_LIST}, 'k', 'a')", "[{a, 1}, {a, 3}]"),
            (f"array_filter({_LIST}, 'k', 'x')", "[]"),
            (f"array_filter({_LIST}, 'k', NULL)", "[]"),
            (f"array_filter(CASE WHEN FALSE THEN {_LIST} END, 'k', 'a')", "NULL"),
        ),
        errors=(
            (f"array_filter({_LIST}, lower('K'), 'a')", "the field must be written out"),
            (f"array_filter({_LIST}, 'k')", "takes 3 arguments, found 2"),
        ),
    ),
    Function(
        name="array_filter_first",
        signature="array_filter_first(list, 'field', value)",
        group=Group.ARRAYS,
        result="struct",
        least=3,
        most=3,
        sql=_first,
        meaning="The first struct of a list whose field has a value; NULL if there is none.",
        examples=(
            (f"array_filter_first({_LIST}, 'k', 'b')", "{b, 2}"),
            (f"array_filter_first({_LIST}, 'k', 'x')", "NULL"),
        ),
    ),
    Function(
        name="array_filter_in",
        signature="array_filter_in(list, 'field', values)",
        group=Group.ARRAYS,
        result="list of struct",
        least=3,
        most=3,
        sql=_among,
        meaning="The structs of a list whose field is among the values. Each row's own values are used.",
        examples=(
            (f"array_filter_in({_LIST}, 'k', array('b', 'c'))", "[{b, 2}]"),
            (f"array_filter_in({_LIST}, 'n', array(1, 3))", "[{a, 1}, {a, 3}]"),
        ),
    ),
    Function(
        name="array_struct_field",
        signature="array_struct_field(list, 'field')",
        group=Group.ARRAYS,
        result="list of text",
        least=2,
        most=2,
        sql=_one_field,
        meaning="One field of each struct of a list, as text.",
        examples=(
            (f"array_struct_field({_LIST}, 'n')", "[1, 2, 3]"),
            (f"array_struct_field({_LIST}, 'k')", "[a, b, a]"),
            (
                "array_struct_field(array(named_struct('k', 1), NULL, named_struct('k', NULL)), 'k')",
                "[1, null, null]",
            ),
            (
                (
                    "array_struct_field(array_enumerate(array_filter(array(named_struct('k', 1)), 'k', 1)),"
                    " 'value')"
                ),
                "[{1}]",
            ),
            (f"array_struct_field(CASE WHEN FALSE THEN {_LIST} END, 'k')", "NULL"),
        ),
    ),
    Function(
        name="array_enumerate",
        signature="array_enumerate(list)",
        group=Group.ARRAYS,
        result="list of struct<index bigint, value>",
        sql="transform(_1, (hr_x, hr_i) -> named_struct('index', CAST(hr_i AS BIGINT), 'value', hr_x))",
        meaning="Each item with its place, counted from 0.",
        examples=(
            ("array_enumerate(array('a', 'b'))", "[{0, a}, {1, b}]"),
            ("typeof(array_enumerate(array('a')))", "array<struct<index:bigint,value:string>>"),
            ("array_enumerate(array_enumerate(array('a')))", "[{0, {0, a}}]"),
            ("array_enumerate(slice(array(1), 1, 0))", "[]"),
            ("array_enumerate(CAST(NULL AS ARRAY<INT>))", "NULL"),
        ),
    ),
    Function(
        name="_gs_zip_arrays",
        signature="_gs_zip_arrays(a, b[, c[, d]])",
        group=Group.ARRAYS,
        result="list of struct<f0, f1, ...>",
        least=2,
        most=4,
        sql=_zip,
        meaning="Lists of the same length side by side.",
        examples=(
            ("_gs_zip_arrays(array(1, 2), array('a', 'b'))", "[{1, a}, {2, b}]"),
            ("_gs_zip_arrays(array(1), array('a'), array(true), array(2.5))", "[{1, a, true, 2.5}]"),
            ("_gs_zip_arrays(array(1), CAST(NULL AS ARRAY<INT>))", "NULL"),
        ),
        errors=(
            ("_gs_zip_arrays(array(1, 2), array('a'))", "_gs_zip_arrays takes lists of the same length"),
        ),
    ),
    Function(
        name="_gs_generate_series",
        signature="_gs_generate_series(start, stop[, step = 1])",
        group=Group.ARRAYS,
        result="list of bigint",
        least=2,
        most=3,
        sql=_series,
        meaning="Whole numbers from start to stop, both included; a negative step counts down.",
        examples=(
            ("_gs_generate_series(1, 5, 2)", "[1, 3, 5]"),
            ("_gs_generate_series(1, 3)", "[1, 2, 3]"),
            ("_gs_generate_series(3, 1)", "[]"),
            ("_gs_generate_series(5, 1, -2)", "[5, 3, 1]"),
            ("_gs_generate_series(1, 5, -1)", "[]"),
            ("_gs_generate_series(2, 2)", "[2]"),
            ("_gs_generate_series(NULL, 2)", "NULL"),
        ),
        errors=(("_gs_generate_series(1, 5, 0)", "_gs_generate_series: the step is 0"),),
    ),
    Function(
        name="_gs_map_to_array_struct",
        signature="_gs_map_to_array_struct(map)",
        group=Group.ARRAYS,
        result="list of struct<key, value>",
        sql="map_entries(_1)",
        meaning="The entries of a map.",
        examples=(
            ("_gs_map_to_array_struct(map('a', 1, 'b', 2))", "[{a, 1}, {b, 2}]"),
            ("_gs_map_to_array_struct(map())", "[]"),
        ),
    ),
    Function(
        name="to_large_list",
        signature="to_large_list(list)",
        group=Group.ARRAYS,
        result="as its argument",
        sql="_1",
        meaning="The list: Spark has one kind of it.",
        examples=(("to_large_list(array(1, 2))", "[1, 2]"),),
    ),
)

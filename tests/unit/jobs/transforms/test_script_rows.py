"""The values that a script's function can return, and the resulting rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from helpers.script_nodes import bare, hidden, rows, run, script

from headrace.pipeline.errors import DataError, FileLocation, UserError
from headrace.pipeline.sql.system_columns import FAN_OUT, POS

ONE = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]


@pytest.mark.parametrize("name", ["process(input)", "invoke(input)"])
def test_both_names_are_called(name: str) -> None:
    assert bare(f"function {name} {{ return {{...input, id: input.id * 10}} }}", ONE) == [
        row | {"id": row["id"] * 10} for row in ONE
    ]


def test_a_constant_will_do() -> None:
    assert bare("const process = (input) => input", ONE) == ONE


@pytest.mark.parametrize(
    "source",
    [
        "(row) => ({id: row.id, name: 'x'})",
        "function (row) { return {id: row.id, name: 'x'} }",
        "function tag(row) { row.name = 'x'; return row };\n",
    ],
)
@pytest.mark.parametrize("language", ["js", "ts"])
def test_a_script_that_is_one_function_may_call_it_as_it_likes(source: str, language: str) -> None:
    assert bare(source, ONE, language=language) == [row | {"name": "x"} for row in ONE]


@pytest.mark.parametrize("nothing", ["null", "undefined", "[]", "[null, undefined]"])
def test_nothing_drops_the_row(nothing: str) -> None:
    assert bare(f"function process(r) {{ return r.id === 2 ? r : {nothing} }}", ONE) == [ONE[1]]


def test_an_array_fans_out_and_is_numbered() -> None:
    result = run(
        "function process(r) { return r.id === 2 ? r : [r, null, {id: -r.id}] }",
        pa.Table.from_pylist(ONE),
        sub=3,
    )
    assert result.column("id").to_pylist() == [1, -1, 2, 3, -3]
    pos = result.column(POS).to_pylist()
    assert [(one["off"], one["sub"] - 3 * FAN_OUT) for one in pos] == [(0, 0), (0, 2), (1, 0), (2, 0), (2, 2)]
    assert {(one["source"], one["part"]) for one in pos} == {(9, 7)}


def test_a_fourth_fan_out_in_a_row_is_refused_and_not_wrapped_round() -> None:
    table = pa.Table.from_pylist(ONE)
    assert (
        run("function process(r) { return r }", table, sub=FAN_OUT**2).column(POS)[0].as_py()["sub"]
        == FAN_OUT**3
    )
    with pytest.raises(DataError, match="the limit is three"):
        run("function process(r) { return r }", table, sub=FAN_OUT**3 // 8)


def test_with_a_schema_there_are_its_columns_alone_in_the_order_of_their_names() -> None:
    result = run(
        "function process(r) { return {b: r.name, a: r.id, c: 1} }",
        pa.Table.from_pylist(ONE),
        {"z": "string", "b": "string", "a": "int32"},
    )
    assert result.column_names == ["a", "b", "z", "_gs_op", "_gs_pos"]
    assert result.schema.field("a").type == pa.int32()
    assert result.column("z").null_count == 3


def test_columns_that_are_left_out_are_null_without_a_schema() -> None:
    assert bare("function process(r) { return {id: r.id} }", ONE) == [row | {"name": None} for row in ONE]


def test_the_operation_is_seen_carried_over_and_set() -> None:
    assert [row["_gs_op"] for row in rows("function process(r) { return {id: r.id} }", ONE, ops="iud")] == [
        "i",
        "u",
        "d",
    ]
    assert [
        row["name"] for row in rows("function process(r) { return {name: r._gs_op} }", ONE, ops="iud")
    ] == ["i", "u", "d"]
    deletes = rows("function process(r) { return [r, {...r, _gs_op: 'd'}] }", ONE, ops="iii")
    assert [row["_gs_op"] for row in deletes] == ["i", "d"] * 3
    mutated = rows("function process(r) { r._gs_op = undefined; return {id: r.id} }", ONE, ops="ddd")
    assert [row["_gs_op"] for row in mutated] == ["d"] * 3


@pytest.mark.parametrize("op", ["'x'", "'insert'", "1", "''"])
def test_an_operation_is_one_of_three(op: str) -> None:
    with pytest.raises(DataError, match="`_gs_op` must be i, u or d"):
        rows(f"function process(r) {{ return {{...r, _gs_op: {op}}} }}", ONE)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("5", "returned 5"),
        ("'text'", "a text of 4 characters"),
        ("true", "returned true"),
        ("[[r]]", "an array"),
        ("[7]", "returned 7"),
        ("Promise.resolve(r)", "returned a Promise"),
        ("new Map()", "returned a Map"),
        ("new Date()", "returned a Date"),
        ("Symbol('x')", "a symbol"),
        ("(() => r)", "a function"),
        ("10n", "a BigInt"),
    ],
)
def test_what_is_no_row_is_refused_with_the_row_at_hand(result: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        rows(f"function process(r) {{ return r.id < 3 ? r : {result} }}", ONE)
    assert message in caught.value.message
    assert caught.value.message.startswith("row id 3 (partition 7, offset 2): ")
    assert caught.value.node == "n"


def test_an_error_of_the_script_is_told_with_its_line_and_its_place() -> None:
    source = "function process(r) {\n  const x = r.name\n  return {id: x.length}\n}"
    with pytest.raises(DataError) as caught:
        rows(source, ONE)
    assert (
        "row id 3 (partition 7, offset 2): TypeError: cannot read property 'length' of null (line 3 of the"
        " script)"
    ) in caught.value.message
    made = script(source, pa.Table.from_pylist(ONE).schema, at=FileLocation("f.yaml", 11, 7))
    with pytest.raises(DataError, match=r"line 3 of the script, f\.yaml:13:"):
        list(made.rows(hidden(pa.Table.from_pylist(ONE)).to_batches(), pa.schema([])))


def test_no_value_of_a_text_is_told() -> None:
    with pytest.raises(DataError) as caught:
        rows("function process(r) { return {id: r.name} }", [{"id": 1, "name": "hunter2"}])
    assert "column `id` is int64, which cannot hold a text of 7 characters" in caught.value.message
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("function process(r) {", "SyntaxError"),
        ("let a = 1;\nlet a = 2;", "SyntaxError"),
        ("const other = 1", "there is no function `process(input)` or `invoke(data)`"),
        ("const process = {}", "there is no function"),
        ("async function process(r) { return r }", "must be a plain function"),
        ("function* process(r) { yield r }", "must be a plain function"),
        ("throw new Error('at the top')", "at the top"),
        ("import x from 'fs'", "SyntaxError"),
        ("undeclared = 1; function process(r) {}", "undeclared"),
    ],
)
def test_a_script_that_does_not_load_is_told_before_any_row(source: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        script(source, pa.schema({"id": pa.int64()}), at=FileLocation("f.yaml", 11, 7)).check()
    assert message in caught.value.message
    assert caught.value.place is not None
    assert caught.value.place.file == "f.yaml"
    assert caught.value.place.line in (11, 12)


def test_a_place_is_told_only_where_there_is_one() -> None:
    """Not that of Headrace's own code round the script, and no column behind the script's end."""
    columns = pa.table({"id": [1]})
    for source, at, where in (
        ("// nothing\nconst x = 3", "p.yaml:40:7", ""),
        ("\nasync function process(r) { return r }", "p.yaml:40:7", ""),
        ("function process(r) {\n  return {...r\n}", "p.yaml:42", " (line 3 of the script, p.yaml:42)"),
    ):
        with pytest.raises(UserError) as caught:
            script(source, columns.schema, at=FileLocation("p.yaml", 40, 7)).check()
        assert str(caught.value.place) == at
        assert caught.value.message.endswith(where) if where else "line" not in caught.value.message
    with pytest.raises(UserError, match=r"deterministic: false` \(line 2 of the script, p\.yaml:41:"):
        run(
            "function process(r) {\n  r.id = Math.random();\n  return r;\n}\n",
            columns,
            at=FileLocation("p.yaml", 40, 7),
        )


def test_clocks_stand_at_the_epochs_time_and_chance_is_refused() -> None:
    source = (
        "function process(r) { return {id: Date.now(), name: new Date().toISOString() + Date() + (new"
        " Date() instanceof Date)} }"
    )
    table = hidden(pa.Table.from_pylist(ONE))
    made = script(source, pa.Table.from_pylist(ONE).schema).at(datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC))
    result = pa.Table.from_batches(made.rows(table.to_batches(), table.schema))
    assert result.column("id").to_pylist() == [1714979289000] * 3
    assert result.column("name")[0].as_py() == "2024-05-06T07:08:09.000ZMon May 06 2024 07:08:09 GMT+0000true"
    for way in ("Math.random()", "new (new Date(0).constructor)().getTime() > 1e9 || performance.now()"):
        with pytest.raises(DataError, match=r"deterministic: false|performance"):
            bare(f"function process(r) {{ return {{id: {way}}} }}", ONE)
    assert bare(
        "function process(r) { return {id: new Date(2020, 0, 1) - 0, name: '' + Date.UTC(1970, 0)} }", ONE
    )[0] == {
        "id": 1577836800000,
        "name": "0",
    }


def test_what_is_not_deterministic_has_clock_chance_and_memory() -> None:
    source = (
        "let n = 0; function process(r) { n += 1; return {id: n, name: `${Date.now() > 1.6e12}"
        " ${Math.random() < 1}`} }"
    )
    assert bare(source, ONE, deterministic=False) == [{"id": n, "name": "true true"} for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "source",
    [
        "let n = 0; function process(r) { n += 1; return {id: n} }",
        (
            "const seen = new Set(); function process(r) { if (seen.size) return null; seen.add(r.id); return r"
            " }"
        ),
        "let last = null; function process(r) { const found = [r, last]; last = r; return found }",
    ],
)
def test_a_script_that_remembers_rows_is_found_out(source: str) -> None:
    with pytest.raises(DataError, match="keeps something from row to row"):
        bare(source, ONE)


def test_a_cache_that_changes_no_row_is_fine() -> None:
    source = "const known = {}; function process(r) { return {id: (known[r.id] ??= r.id * 2)} }"
    assert [row["id"] for row in bare(source, ONE)] == [2, 4, 6]


def test_rows_that_share_a_place_are_no_memory() -> None:
    """As UNION ALL of a source with itself makes them."""
    table = hidden(pa.Table.from_pylist(ONE))
    (batch,) = pa.concat_tables([table, table]).combine_chunks().to_batches()
    for source, count in (
        ("function process(r) { return [r, r] }", 12),
        ("function process(r) { return r.id < 3 ? r : null }", 4),
    ):
        result = script(source, pa.Table.from_pylist(ONE).schema).rows([batch], table.schema)
        assert pa.Table.from_batches(result, table.schema).num_rows == count


def test_batches_of_any_size_give_the_same_rows() -> None:
    table = pa.table({"id": pa.array(range(1000))})
    source = "function process(r) { return r.id % 3 ? {id: r.id} : [r, r] }"
    one, other = (run(source, table, batch_size=size) for size in (1, 333))
    assert one.equals(other)
    assert one.num_rows == 1334


def test_no_rows_are_no_rows() -> None:
    assert run("function process(r) { return r }", pa.table({"id": pa.array([], pa.int64())})).num_rows == 0


def test_names_of_columns_are_only_names() -> None:
    names = [
        "__proto__",
        "constructor",
        'a"b',
        "a\\b",
        "`",
        "toString",
        "ü",
        "a b",
        "${x}",
        "hasOwnProperty",
        "length",
    ]
    row = {name: index for index, name in enumerate(names)}
    assert bare("function process(r) { return r }", [row, row]) == [row, row]
    assert bare("function process(r) { r.toString = 99; r.constructor = 98; return r }", [row]) == [
        row | {"toString": 99, "constructor": 98}
    ]

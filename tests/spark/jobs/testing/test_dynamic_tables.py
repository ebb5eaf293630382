"""Dynamic tables in tests of pipelines, and the semantics of `dynamic_table_check`."""

from __future__ import annotations

import random

import pytest
from helpers.pipeline_cases import Run

from headrace.jobs.testing.report import failure
from headrace.jobs.testing.runner import CaseOutcome

PIPELINE = """\
name: orders
sources:
  moves:
    type: kafka
    topic: moves
    schema: {{id: int64, wallet: string, other: string}}
transforms:
  known:
    type: dynamic_table
    backend_type: {backend}
    backend_entity_name: known
    {fills}
  banned: {{type: dynamic_table, backend_type: Postgres, backend_entity_name: lists.banned}}
  seen:
    type: sql
    sql: "{sql}"
sinks:
  out: {{type: print, from: seen}}
"""
FILLS = "sql: SELECT lower(wallet) FROM moves WHERE id >= 10"
GIVEN = (
    "moves: {rows: [{id: 1, wallet: a, other: b}, {id: 2, wallet: c}, {id: 3, other: a}, {id: 10,"
    " wallet: X}, {id: 11, wallet: x, _gs_op: d}]}"
)


def checked(
    run: Run,
    sql: str,
    expect: str,
    *,
    inputs: str = GIVEN,
    tables: str = "known: [a]",
    fills: str = "",
    backend: str = "InMemory",
) -> CaseOutcome:
    parts = [f"      {part}" for part in (inputs, tables) if part]
    text = "  t:\n    given:\n" + "\n".join(parts) + f"\n    expect:\n      {expect}\n"
    return run(text, PIPELINE.format(sql=sql, fills=fills, backend=backend))


CHECKS = {
    "dynamic_table_check('known', wallet)": [1],
    "NOT dynamic_table_check('known', wallet)": [2, 10, 11],
    "dynamic_table_check('known', wallet) IS NULL": [3],
    "Dynamic_Table_Check('known', array(wallet, other))": [1, 3],
    "NOT dynamic_table_check('known', array(wallet, other))": [2, 10, 11],
    "dynamic_table_check('known', array())": [],
    "dynamic_table_check('known', NULL) IS NULL AND id = 1": [1],
    "dynamic_table_check('known', CAST(NULL AS ARRAY<STRING>)) IS NULL AND id = 1": [1],
    "dynamic_table_check('known', wallet) OR dynamic_table_check('known', other)": [1, 3],
    "dynamic_table_check('known', wallet) OR dynamic_table_check('banned', wallet)": [1, 2],
    "dynamic_table_check('known', concat('', m.wallet))": [1],
    "CASE WHEN dynamic_table_check('known', wallet) THEN false ELSE id < 3 END": [2],
}
BOTH = "known: [a]\n      banned: {rows: [{value: c}]}"


def test_what_a_check_is_true_for(run: Run) -> None:
    columns = ", ".join(f"coalesce({check}, false) AS c{at}" for at, check in enumerate(CHECKS))
    rows = [
        [f"c{at}: {str(number in ids).lower()}" for at, ids in enumerate(CHECKS.values())]
        for number in (1, 2, 3, 10, 11)
    ]
    shown = ", ".join(
        f"{{id: {number}, {', '.join(cells)}}}" for number, cells in zip((1, 2, 3, 10, 11), rows, strict=True)
    )
    assert (
        failure(checked(run, f"SELECT id, {columns} FROM moves m", f"seen: {{rows: [{shown}]}}", tables=BOTH))
        == []
    )


def test_a_check_is_a_condition(run: Run) -> None:
    sql = (
        "SELECT id FROM moves WHERE dynamic_table_check('known', wallet)"
        " UNION ALL SELECT id FROM moves WHERE dynamic_table_check('banned', wallet) AND NOT"
        " dynamic_table_check('known', other)"
        " UNION ALL SELECT id + 100 FROM (SELECT id, dynamic_table_check('known', other) AS yes FROM moves)"
        " m WHERE yes"
    )
    outcome = checked(
        run,
        sql.replace(" AND NOT dynamic_table_check('known', other)", ""),
        "seen: {rows: [{id: 1}, {id: 2}, {id: 103}]}",
        tables=BOTH,
    )
    assert failure(outcome) == []
    assert failure(checked(run, sql, "seen: {rows: [{id: 1}, {id: 103}]}", tables=BOTH)) == []


def test_checks_stand_anywhere_in_a_projection(run: Run) -> None:
    sql = (
        "SELECT id, dynamic_table_check('known', wallet) AS yes,"
        " CASE WHEN dynamic_table_check('known', wallet) THEN 'in' WHEN NOT dynamic_table_check('known',"
        " wallet) THEN 'out' END AS word"
        " FROM moves WHERE id < 10"
    )
    rows = "[{id: 1, yes: true, word: in}, {id: 2, yes: false, word: out}, {id: 3}]"
    assert failure(checked(run, sql, f"seen: {{rows: {rows}}}")) == []
    assert not checked(run, sql, f"seen: {{rows: {rows.replace('true', 'false')}}}").passed


@pytest.mark.parametrize("backend", ["InMemory", "Postgres"])
def test_a_batch_sees_what_it_brings_itself(run: Run, backend: str) -> None:
    sql = "SELECT id FROM moves WHERE dynamic_table_check('known', lower(wallet))"
    expect = "seen: {rows: [{id: 1}, {id: 10}, {id: 11, _gs_op: d}]}"
    assert failure(checked(run, sql, expect, fills=FILLS, backend=backend)) == []
    outcome = checked(run, sql, "known: [x, a]", fills=FILLS, backend=backend)
    assert failure(outcome) == []
    assert not checked(run, sql, "known: [a]", fills=FILLS, backend=backend).passed
    alone = checked(
        run, sql, "seen: {rows: [{id: 10}, {id: 11, _gs_op: d}]}", tables="", fills=FILLS, backend=backend
    )
    assert failure(alone) == [], "the values of the case before were still there"


def test_values_are_texts_as_they_are_written(run: Run) -> None:
    inputs = "moves: {rows: [{id: 1, wallet: '0x1F'}, {id: 2, wallet: '31'}, {id: 3, wallet: '007'}]}"
    sql = "SELECT id FROM moves WHERE dynamic_table_check('known', wallet)"
    assert (
        failure(
            checked(run, sql, "seen: {rows: [{id: 1}, {id: 3}]}", inputs=inputs, tables="known: [0x1F, 007]")
        )
        == []
    )


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT id FROM moves WHERE dynamic_table_check('known', id)",
            "takes a string or a list of strings, not bigint",
        ),
        (
            "SELECT id FROM moves WHERE dynamic_table_check('known', array(id))",
            "a list of strings, not array<bigint>",
        ),
    ],
)
def test_a_check_takes_texts(run: Run, sql: str, message: str) -> None:
    outcome = checked(run, sql, "seen: {rows: []}")
    assert outcome.error
    assert message in outcome.error.message
    assert outcome.error.place
    assert outcome.error.place.line


def test_a_table_is_filled_with_texts(run: Run) -> None:
    outcome = checked(run, "SELECT id FROM moves", "seen: {rows: []}", fills="sql: SELECT id FROM moves")
    assert outcome.error
    assert "dynamic table side output expects a string column, got bigint" in outcome.error.message
    assert outcome.error.node == "known"


def test_a_list_is_for_a_table_only(run: Run) -> None:
    from headrace.pipeline.errors import PipelineFileError

    with pytest.raises(
        PipelineFileError,
        match=r"`given.moves` is a list, and only a dynamic table has values without columns",
    ):
        checked(run, "SELECT id FROM moves", "seen: {rows: []}", inputs="moves: [1]")


def test_a_set_in_python_says_the_same(run: Run) -> None:
    dice = random.Random(11)
    letters = ["", "a", "b", "é", "日", "A", " ", "'", "\\\\", "a b", "\U0001f600"]
    values = sorted({"".join(dice.choices(letters, k=dice.randrange(4))) for _ in range(60)})
    members = set(dice.sample(values, 25))
    rows = [(at, dice.choice([*values, None])) for at in range(300)]

    def spelled(value: str | None) -> str:
        return "null" if value is None else "'" + value.replace("'", "''") + "'"

    inputs = (
        "moves: {rows: [" + ", ".join(f"{{id: {at}, wallet: {spelled(value)}}}" for at, value in rows) + "]}"
    )
    table = "known: [" + ", ".join(spelled(value) for value in sorted(members)) + "]"
    wanted = [(at, None if value is None else value in members) for at, value in rows]
    expect = (
        "seen: {rows: ["
        + ", ".join(
            f"{{id: {at}, yes: {str(yes).lower() if yes is not None else 'null'}}}" for at, yes in wanted
        )
        + "]}"
    )
    assert (
        failure(
            checked(
                run,
                "SELECT id, dynamic_table_check('known', wallet) AS yes FROM moves",
                expect,
                inputs=inputs,
                tables=table,
            )
        )
        == []
    )

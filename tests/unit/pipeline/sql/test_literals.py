"""Literals of a transform pass the parser unchanged."""

from __future__ import annotations

import pytest
from sqlglot import exp

from headrace.pipeline.sql import statements


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("'It''s'", "It's"), ("''''", "'"), ("''", ""), ('"a""b"', 'a"b'),
        ("""'say "hi"'""", 'say "hi"'), ("""'a""b'""", 'a""b'), ('''"it''s"''', "it''s"),
        (r"'It\'s'", "It's"), (r"'a\\b'", "a\\b"), ("'é😀'", "é😀"),
    ],
)  # fmt: skip
def test_quotes_survive(written: str, meant: str) -> None:
    """Parsed once, and again from what the first parse writes: that is how a statement reaches Spark."""
    text = f"select {written} as x from s"
    for _ in range(2):
        literal = statements.parse(text).selects[0].unalias()
        assert isinstance(literal, exp.Literal)
        assert literal.this == meant
        text = statements.compile_statement(text, ())


@pytest.mark.parametrize(
    "call",
    [
        "rand()", "uuid()", "shuffle(array(a))", "randstr(5)", "uniform(1, 9)", ("aes_encrypt(a, 'sixteen"
                                                                                " letters.')"),
                                                                                "input_file_block_start()",
        ("reflect('java.lang.System',"
        " 'nanoTime')"), ("java_method('java.lang.System',"
                        " 'nanoTime')"), "try_reflect('java.lang.System', 'nanoTime')",
        "session_user()", "current_user", "version()", "transform(array(a), x -> concat(x, randstr(3)))",
    ],
)  # fmt: skip
def test_what_gives_other_values_in_a_replay_is_known(call: str) -> None:
    assert len(statements.nondeterministic_calls(f"SELECT {call} AS x FROM s")) == 1
    assert statements.nondeterministic_calls(
        f"SELECT a FROM (SELECT {call} AS a FROM s)"
    ) == statements.nondeterministic_calls(f"SELECT {call} AS x FROM s")


def test_what_is_the_same_in_a_replay_needs_no_stage() -> None:
    assert (
        statements.nondeterministic_calls(
            "SELECT now() AS t, current_date AS d, uuid7() AS u, hash(a) AS h, `user`, version, random FROM s"
        )
        == ()
    )


@pytest.mark.parametrize(
    ("predicate", "calls"),
    [
        ("day >= today() - 7", ("today()",)),
        ("at > NOW64(3) AND at < now('UTC')", ("NOW64()", "now()")),
        ("at < CURRENT_TIMESTAMP -- now()", ("CURRENT_TIMESTAMP",)),
        ("rand() % 10 = 0 OR randCanonical () < 0.1", ("rand()", "randCanonical()")),
        ("id IN (SELECT id FROM t WHERE d = yesterday())", ("yesterday()",)),
        (
            (
                "note = 'now()' /* rand() */ AND `today` = 1 AND \"current_date\" > 1 AND now > 2 AND rank(x) ="
                " 1"
            ),
            (),
        ),
        ("cityHash64(id) % 10 = 0 AND toDate(at) > '2025-01-01' AND range_ = 1", ()),
        ("id = 'torn", ()),
    ],
)
def test_what_lets_other_rows_through_in_clickhouse(predicate: str, calls: tuple[str, ...]) -> None:
    assert statements.nondeterministic_in_clickhouse(predicate) == calls


@pytest.mark.parametrize(
    ("predicate", "calls"),
    [
        ("hour(at) < hour(current_time())", ("current_time()",)),
        ("at > try_to_timestamp('now')", ("now",)),
        ("current_time > 5 AND try_to_timestamp(word) IS NULL", ()),
    ],
)
def test_what_lets_other_rows_through_in_spark(predicate: str, calls: tuple[str, ...]) -> None:
    assert statements.nondeterministic_filter_calls(predicate) == calls

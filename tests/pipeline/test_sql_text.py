"""Literals of a transform come through the parser as they were written."""

from __future__ import annotations

import pytest
from sqlglot import exp

from headrace.pipeline import sql


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
        literal = sql.parse(text).selects[0].unalias()
        assert isinstance(literal, exp.Literal)
        assert literal.this == meant
        text = sql.with_hidden(text, ())

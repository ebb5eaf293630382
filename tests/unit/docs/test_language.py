"""Docs, docstrings, comments, messages and help texts use none of the rejected words.

The list is a list of words, not of rules of style: a reader of the Dagster or Flink documentation would
stumble over each of them.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.checkout import ROOT

REJECTED = (
    r"anew",
    r"beside",
    r"hitherto|thereof|henceforth|likewise|amid|lest",
    r"told|tells? apart",
    r"whoever|somebody",
    r"(?<!`)nobody(?![`'\"])",
    r"mend(?:s|ed|ing)?",
    r"without a word",
    r"(?<!offsets )(?<!lags )(?<!lag )(?<!rows )behind(?! a mirror)",
    r"had better",
    r"and its kin",
    r"the whole story",
    r"stands? (?:at|by|in|there|before)",
    r"is asked|are asked",
    r"brings",
    r"if not given",
)
WORDS = re.compile(rf"\b(?:{'|'.join(REJECTED)})\b", re.IGNORECASE)
FOLDERS = (
    "pipeline",
    "jobs",
    "connectors",
    "orchestration",
    "headrace",
    "tools",
    "benchmarks",
    "examples",
    "docs",
    "docker",
    "helm",
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every line of a page or a YAML file; of a module every string and comment, with its line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if (
            token.type in (tokenize.STRING, tokenize.COMMENT)
            or tokenize.tok_name[token.type] == "FSTRING_MIDDLE"
        ):
            yield token.start[0], re.sub(r"\{[^{}]*\}", "{}", token.string)


def pages() -> list[Path]:
    folders = [ROOT / folder for folder in FOLDERS]
    result = [
        path
        for folder in folders
        for kind in ("*.py", "*.md", "*.yaml", "Dockerfile")
        for path in folder.rglob(kind)
        if "node_modules" not in path.parts
    ]
    return sorted({path.resolve() for path in [*result, *ROOT.glob("*.md"), ROOT / "Makefile"]})


def rejected(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {text.strip()[:120]!r}"
        for line, text in texts(path)
        for match in WORDS.finditer(text)
    ]


def test_no_rejected_word_is_used() -> None:
    assert [hit for path in pages() for hit in rejected(path)] == []


@pytest.mark.parametrize("text", ['"""Made anew."""', "x = 1  # told by the server", 'f"stands at {x}"'])
def test_strings_and_comments_are_searched(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.py"
    page.write_text(f"{text}\n")
    assert [WORDS.search(result) for _, result in texts(page) if WORDS.search(result)]


@pytest.mark.parametrize(
    "text", ["the run lags behind the topic", "`nobody` needs it", "Behind a mirror, set it"]
)
def test_standard_meanings_are_allowed(text: str) -> None:
    assert WORDS.search(text) is None

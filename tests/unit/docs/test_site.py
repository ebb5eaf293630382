"""The navigation of the site has every page; hand-written pages stay short."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.checkout import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
LIMIT = 20_000
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\w[\w'.-]*")
_GENERATED = ("Written by `make docs`", "Written by `make bench`", "Written by `make bench-peers`")


def words(page: Path) -> int:
    """Words of prose, headings and tables; code blocks do not count."""
    return len(_WORD.findall(_CODE.sub("", page.read_text())))


def generated(page: Path) -> bool:
    return any(mark in page.read_text()[:600] for mark in _GENERATED)


def test_hand_written_pages_have_at_most_20000_words() -> None:
    counts = {str(page.relative_to(ROOT)): words(page) for page in PAGES if not generated(page)}
    assert sum(counts.values()) <= LIMIT, sorted(counts.items(), key=lambda entry: -entry[1])[:10]


def test_navigation_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == [str(page.relative_to(ROOT / "docs")) for page in PAGES]


def test_titles_are_short() -> None:
    for page in PAGES:
        title = page.read_text().splitlines()[0]
        assert title.startswith("# "), page
        assert len(title.split()) <= 15, title

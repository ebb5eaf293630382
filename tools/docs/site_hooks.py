"""Hooks of mkdocs: the site shows code blocks without the attributes that tests read."""

from __future__ import annotations

import re
from typing import Any

_SKIP = re.compile(r'^(```\w+) skip="[^"]*"$', re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page without `skip="…"` after the language of a block."""
    return _SKIP.sub(r"\1", markdown)

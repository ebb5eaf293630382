"""The formats of `headrace explain`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.jobs.explain.model import Explanation


class Format(StrEnum):
    """For people, for documents that draw Mermaid, for programs."""

    TEXT = "text"
    MERMAID = "mermaid"
    JSON = "json"


def render(explanation: Explanation, form: Format, *, lineage: bool = False) -> str:
    """Return the document. `lineage` adds column lineage to the text; the JSON always contains it."""
    from headrace.jobs.explain.json import document
    from headrace.jobs.explain.mermaid import mermaid
    from headrace.jobs.explain.text import text

    if form is Format.TEXT:
        return text(explanation, lineage=lineage)
    if form is Format.JSON:
        return json.dumps(document(explanation), indent=2, ensure_ascii=False)
    return mermaid(explanation)

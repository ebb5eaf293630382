"""What Spark's analyzer finds wrong with a transform, in the words of the file: which name, in which line of the SQL, what is meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.connectors.base import HIDDEN
from headrace.pipeline.functions import offered
from headrace.pipeline.plugins.found import function_names
from headrace.pipeline.problems import meant

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_OURS = re.compile(r"`hr_(\w+?)_\d+`")
"""The views that stand for nodes."""
_NOISE = (
    re.compile(r"^\[[A-Z_.]+\] "),
    re.compile(r"\s*SQLSTATE: \w+"),
    re.compile(r"; line \d+.*", re.DOTALL),
    re.compile(r"\n\n==.*", re.DOTALL),
)
_UNKNOWN = {"UNRESOLVED_COLUMN": "column", "FIELD_NOT_FOUND": "field", "UNRESOLVED_ROUTINE": "function"}


def explained(error: PySparkException, text: str) -> tuple[str, str]:
    """Message and hint for an error over the statement `text` of the file."""
    parameters = error.getMessageParameters() or {}
    kind = next((word for sign, word in _UNKNOWN.items() if (error.getCondition() or "").startswith(sign)), None)
    wrong = (parameters.get("objectName") or parameters.get("fieldName") or parameters.get("routineName") or "").replace("`", "")
    if kind is None or not wrong:
        return _plain(error), f"--- SQL ---\n{text.strip()}"
    name = wrong.split(".")[-1]
    if kind == "function":
        written = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)
        return f"there is no function `{written[0] if written else wrong}`{meant(name.lower(), [*offered(), *function_names()])}", _where(
            text, name
        )
    proposed = (parameters.get("proposal") or parameters.get("fields") or "").split(", ")
    near = list(dict.fromkeys(last for one in proposed if (last := one.split("`.`")[-1].strip("`")) and last not in HIDDEN))
    return f"there is no {kind} `{wrong}`{meant(name, near)}", _where(text, name) + (f"\nThere are: {', '.join(near)}." if near else "")


def _plain(error: PySparkException) -> str:
    said = error.getMessage() or str(error)
    for noise in _NOISE:
        said = noise.sub("", said)
    return _OURS.sub(r"`\1`", said).strip()


def _where(text: str, name: str) -> str:
    """The first line of the statement that has the name, with its number."""
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    for number, line in enumerate(text.splitlines(), start=1):
        if word.search(line):
            return f"Line {number} of the SQL: {line.strip()}"
    return f"--- SQL ---\n{text.strip()}"

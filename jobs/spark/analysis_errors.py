"""Explains errors of Spark's analyzer: which name, in which line of the SQL, and what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.pipeline.functions import suggestable_names
from headrace.pipeline.plugins.discovery import function_names
from headrace.pipeline.sql.system_columns import HIDDEN
from headrace.pipeline.sql.unsupported import AGGREGATE
from headrace.pipeline.suggestions import suggest_closest

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_VIEW_NAME = re.compile(r"`hr_(\w+?)_\d+`")
"""Names of the views of nodes."""
SPARK_CODES = re.compile(r"^\[[A-Z_.0-9]+\] |\s*SQLSTATE: \w+")
"""The codes that Spark adds to a message."""
_NOISE = (
    SPARK_CODES,
    re.compile(r"; line \d+.*", re.DOTALL),
    re.compile(r"\n\n==.*", re.DOTALL),
)
_INTERNAL_PREFIX = "_gs_"
"""Prefixes of column names that the user has not written."""
_PROPOSED = 5
"""Columns that Spark proposes at most, hidden ones among them."""
_UNKNOWN = {"UNRESOLVED_COLUMN": "column", "FIELD_NOT_FOUND": "field", "UNRESOLVED_ROUTINE": "function"}


def explain_analysis_error(error: PySparkException, text: str) -> tuple[str, str]:
    """Message and hint for an error over the statement `text` of the file."""
    parameters = error.getMessageParameters() or {}
    kind = next(
        (name_type for sign, name_type in _UNKNOWN.items() if (error.getCondition() or "").startswith(sign)),
        None,
    )
    wrong = (
        parameters.get("objectName") or parameters.get("fieldName") or parameters.get("routineName") or ""
    ).replace("`", "")
    shown = f"--- SQL ---\n{text.strip()}"
    if kind is None or not wrong:
        message, hint = _of_rows(error.getCondition() or "", parameters)
        return message or _plain(error), f"{hint}\n{shown}".lstrip()
    name = wrong.split(".")[-1]
    if kind == "function":
        written = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)
        return (
            (
                "there is no function"
                f" `{written[0] if written else wrong}`"
                f"{suggest_closest(name.lower(), [*suggestable_names(), *function_names()])}"
            ),
            _where(text, name),
        )
    proposed = (parameters.get("proposal") or parameters.get("fields") or "").split(", ")
    near = list(
        dict.fromkeys(
            last
            for one in proposed
            if (last := one.split("`.`")[-1].strip("`")) and not last.startswith(_INTERNAL_PREFIX)
        )
    )
    lead = "There are, among others" if kind == "column" and len(proposed) >= _PROPOSED else "There are"
    return f"there is no {kind} `{wrong}`{suggest_closest(name, near)}", _where(text, name) + (
        f"\n{lead}: {', '.join(near)}." if near else ""
    )


def _of_rows(condition: str, result: Mapping[str, str]) -> tuple[str, str]:
    """Return message and hint for errors in branches and in generator functions; nothing for others.

    Numbers of columns count the hidden ones, which the user has not written.
    """
    match condition:
        case "NUM_COLUMNS_MISMATCH":
            first, other = (
                int(result[key]) - len(HIDDEN) for key in ("firstNumColumns", "invalidNumColumns")
            )
            msg = (
                f"the {result['invalidOrdinalNum']} branch of UNION ALL has {_count_columns(other)}, and the"
                f" first has {first}"
            )
            return (
                msg,
                "Branches need the same columns in the same order; write NULL for one that a branch lacks.",
            )
        case "INCOMPATIBLE_COLUMN_TYPE":
            kinds = [result[key].replace('"', "") for key in ("dataType1", "dataType2")]
            which = (
                f"the {result['columnOrdinalNumber']} column of the {result['tableOrdinalNumber']} branch"
                " of UNION ALL"
            )
            return (
                f"{which} is {kinds[0]}, and of the first branch {kinds[1]}",
                "Make them the same with CAST.",
            )
        case "UDTF_ALIAS_NUMBER_MISMATCH":
            named = [
                name for name in result["aliasesNames"].split(",") if not name.strip().startswith("_gs_n")
            ]
            unseen = int("_gs_n" in result["aliasesNames"])
            msg = (
                f"{_count_columns(int(result['aliasesSize']) - unseen)} to be named where one row becomes"
                f" several, and {len(named)} named"
            )
            return msg, "A list gives one column, a map two (key and value), and inline one for each field."
        case "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE" if (
            result["sqlExpr"].strip('"').startswith(("posexplode(", "inline("))
        ):
            structs = result["sqlExpr"].strip('"').startswith("inline(")
            kind = result["inputType"].strip('"')
            kind = kind.removeprefix("ARRAY<").removesuffix(">") if structs else kind
            msg = f"what becomes several rows is {'a list of ' if structs else 'a '}{kind}"
            return (
                msg,
                "inline and stack take lists of structs."
                if structs
                else "explode and unnest take a list or a map; a struct's fields are `name.*`.",
            )
        case "MISSING_GROUP_BY":
            return AGGREGATE
    return "", ""


def _count_columns(number: int) -> str:
    return f"{number} column{'' if number == 1 else 's'}"


def _plain(error: PySparkException) -> str:
    message = error.getMessage() or str(error)
    for noise in _NOISE:
        message = noise.sub("", message)
    return _VIEW_NAME.sub(r"`\1`", message).strip()


def _where(text: str, name: str) -> str:
    """Return the first line of the statement that contains the name, with its number.

    Else the whole statement.
    """
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    for number, line in enumerate(text.splitlines(), start=1):
        if pattern.search(line):
            return f"Line {number} of the SQL: {line.strip()}"
    return f"--- SQL ---\n{text.strip()}"

"""Hints for wrong values: the expected value, and the option that was probably intended."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

WANTED: dict[str, str] = {
    "string_type": "a text",
    "dict_type": "a map of keys and values",
    "model_type": "a map of keys and values",
    "model_attributes_type": "a map of keys and values",
    "tuple_type": "a list",
    "columns_type": "a list of columns, or a text with commas",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "finite_number": "a whole number",
    "greater_than": "a whole number above 0",
    "float_type": "a number",
    "float_parsing": "a number",
    "greater_than_equal": "0 or more",
    "less_than_equal": "a smaller number",
    "time_delta_type": "a duration such as 500ms or 1h 30m",
    "time_delta_parsing": "a duration such as 500ms or 1h 30m",
    "date_type": "a day such as 2013-01-31, or a month such as 2013-01",
    "date_parsing": "a day such as 2013-01-31, or a month such as 2013-01",
    "date_from_datetime_parsing": "a day such as 2013-01-31, or a month such as 2013-01",
    "date_from_datetime_inexact": "a day such as 2013-01-31, or a month such as 2013-01",
    "string_pattern_mismatch": "letters, digits, `_` and `-`, beginning with a letter or `_`",
}
"""The expected value by pydantic's error type."""


def suggest_closest(value: str, options: Iterable[str]) -> str:
    """Return `; did you mean ...?` if an option is similar to the value. Otherwise return an empty string."""
    options = list(options)
    close = difflib.get_close_matches(value, options, n=1) or [
        name for name in options if name.lower() == value.lower()
    ]
    return f"; did you mean `{close[0]}`?" if close else ""

"""Failures of an insert that are errors of a row, by the codes and texts of a ClickHouse server.

The local gateway does not report a violated constraint of a streamed insert, so no test sees one there.
"""

from __future__ import annotations

from clickhouse_connect.driver.exceptions import DatabaseError

from headrace.connectors.clickhouse.loader import explain_refusal

VIOLATED = (
    "Received ClickHouse exception, code: 469, server response: Code: 469. DB::Exception: Constraint `short` for"
    " table shop.__headrace_stage_1 (0c1f) is violated at row 3. Expression: (length(v) < 5). Column values:"
    " v = 'a secret'. (VIOLATED_CONSTRAINT) (version 26.9.2.1)"
)


def failure(text: str, code: int) -> DatabaseError:
    error = DatabaseError(text)
    error.code = code
    return error


def test_a_violated_constraint_is_named_without_values() -> None:
    result = explain_refusal(failure(VIOLATED, 469), "out")
    assert result is not None
    assert result.node == "out"
    assert result.message == "a row violates constraint `short`: (length(v) < 5)"
    assert "secret" not in str(result)


def test_an_unknown_text_of_a_violated_constraint_is_an_error_of_a_row_too() -> None:
    result = explain_refusal(failure("Code: 469. DB::Exception: v = 'a secret'", 469), "out")
    assert result is not None
    assert result.message == "a row violates a constraint"


def test_a_value_that_does_not_fit_is_an_error_of_a_row() -> None:
    result = explain_refusal(
        failure("Code: 131. DB::Exception: String too long for type FixedString(3)", 131), "out"
    )
    assert result is not None
    assert "String too long for type FixedString(3)" in result.message


def test_other_failures_are_no_errors_of_a_row() -> None:
    assert explain_refusal(failure("Code: 241. DB::Exception: Memory limit exceeded", 241), "out") is None

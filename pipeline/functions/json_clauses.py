"""The clauses of JSON functions, such as DEFAULT x ON EMPTY, and the arguments for them in Streamling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from headrace.pipeline.errors import UserError
from headrace.pipeline.functions.registry import FunctionCall
from headrace.pipeline.functions.templates import fill, text_of

_TEXTS = ("STRING", "VARCHAR", "CHAR", "ARRAY", "ARRAY<STRING>", "ARRAY<VARCHAR>")
_WRAPPERS = {
    "WITHOUT ARRAY": "WITHOUT",
    "WITH CONDITIONAL ARRAY": "CONDITIONAL",
    "WITH UNCONDITIONAL ARRAY": "UNCONDITIONAL",
}
MOST_ARGUMENTS = {"json_value": 7, "json_query": 6, "json_exists": 3}
"""The number of arguments with those for clauses."""


def with_clause_options(call: FunctionCall) -> FunctionCall:
    """Return Streamling's arguments after the path as clauses. Raise UserError for an unknown word."""
    behind = call.args[2:]
    if not behind:
        return call
    if len(call.args) != MOST_ARGUMENTS[call.name]:
        msg = f"`{call.name}` takes 2 or {MOST_ARGUMENTS[call.name]} arguments, found {len(call.args)}"
        raise UserError(
            msg,
            hint="Write the clauses of the SQL standard after the path, such as NULL ON EMPTY.",
            node=call.node,
        )
    return replace(call, args=call.args[:2], options={**call.options, **dict(_clauses(call, behind))})


def _clauses(call: FunctionCall, behind: Sequence[exp.Expr]) -> Iterator[tuple[str, exp.Expr]]:
    if call.name == "json_exists":
        yield "on_error", exp.Literal.string(_word(call, behind[0], ("TRUE", "FALSE", "ERROR", "UNKNOWN")))
        return
    if not isinstance(behind[0], exp.Null):
        _word(call, behind[0], _TEXTS if call.name == "json_query" else _TEXTS[:3])
    if call.name == "json_query":
        wrapper = _word(call, behind[1], (*_WRAPPERS, *(f"{words} WRAPPER" for words in _WRAPPERS)))
        yield "wrapper", exp.Literal.string(_WRAPPERS[wrapper.removesuffix(" WRAPPER")])
        for clause, text in (("on_empty", behind[2]), ("on_error", behind[3])):
            yield (
                clause,
                exp.Literal.string(_word(call, text, ("NULL", "ERROR", "EMPTY ARRAY", "EMPTY OBJECT"))),
            )
        return
    for clause, text, default in (("on_empty", behind[1], behind[2]), ("on_error", behind[3], behind[4])):
        word = _word(call, text, ("NULL", "ERROR", "DEFAULT"))
        yield (
            clause,
            exp.Tuple(expressions=[default.copy()]) if word == "DEFAULT" else exp.Literal.string(word),
        )


def _word(call: FunctionCall, clause: exp.Expr, allowed: Sequence[str]) -> str:
    word = " ".join((text_of(clause) or "").upper().split())
    if word not in allowed:
        msg = f"`{call.name}`: `{clause.sql('spark')}` is not allowed here"
        raise UserError(msg, hint=f"Allowed: {', '.join(allowed)}, as a text.", node=call.node)
    return word


def clause_value(call: FunctionCall, clause: str, what: str) -> exp.Expr:
    """Return the value that ON EMPTY or ON ERROR gives. `what` is the text of the error, if it gives one."""
    clause_text = call.options.get(clause)
    if isinstance(clause_text, exp.Tuple):
        default = clause_text.expressions[0]
        kind = call.options.get("returning") or exp.DataType.build("string", dialect="spark")
        return exp.Cast(this=default.copy(), to=kind.copy())
    word = (text_of(clause_text) or "NULL").upper() if clause_text is not None else "NULL"
    if word == "ERROR":
        return fill(
            "hr_fail(concat(_name, ': ', _what))",
            [],
            name=exp.Literal.string(call.name),
            what=exp.Literal.string(what),
        )
    if word.startswith("EMPTY"):
        return exp.Literal.string("[]" if word.endswith("ARRAY") else "{}")
    return exp.Null()

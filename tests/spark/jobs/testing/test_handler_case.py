"""A test of a pipeline with a service: the test has the responses, and no request is sent."""

from __future__ import annotations

from helpers.pipeline_cases import ORDERS, Run

from headrace.jobs.testing.report import failure

ASK = (
    "  asked: {type: handler, from: priced, url: 'http://127.0.0.1:1/', schema_override: {score: float64,"
    " placed_at: null}}\nsinks:"
)
ASKING = ORDERS.replace("sinks:", ASK).replace("from: priced\n    table", "from: asked\n    table")
TEST = "  t:\n    given:\n      {given}\n    expect:\n      {expect}\n"


def test_answers_are_given_in_their_types(run: Run) -> None:
    inputs = "asked: {rows: [{id: 1, amount: 2.50, score: 0.5}, {id: 1, amount: 3, score: 1}]}"
    expect = "orders_pg: {rows: [{id: 1, amount: 3.00, score: 1}]}"
    assert failure(run(TEST.format(given=inputs, expect=expect), ASKING)) == []


def test_without_answers_the_test_says_how_to_give_them(run: Run) -> None:
    inputs = "orders: {rows: [{id: 1, cents: 250}]}"
    outcome = run(TEST.format(given=inputs, expect="asked: {rows: [{id: 1}]}"), ASKING)
    assert outcome.error is not None
    assert (outcome.error.node, outcome.error.message) == ("asked", "a test asks no service")
    assert "given: {asked: " in outcome.error.hint
    assert run(TEST.format(given=inputs, expect="priced: {columns: id, rows: [{id: 1}]}"), ASKING).passed

"""Comparison of rows, and the rows of a target after an epoch."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.lakehouse_rows import last_by_key
from headrace.connectors.spark_types import POS_ARROW
from headrace.jobs.testing.diff import compare, same
from headrace.jobs.testing.sink_state import apply_to_target
from headrace.pipeline.errors import DataError, GuaranteeError
from headrace.pipeline.model.connectors import sink_entries

NAN = float("nan")


def rows(*pairs: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"id": one, "v": other} for one, other in pairs]


def test_equal_rows_in_any_order_do_not_differ() -> None:
    assert compare("n", rows((1, "a"), (2, None)), rows((2, None), (1, "a"))) is None


def test_every_row_counts_once() -> None:
    result = compare("n", rows((1, "a"), (1, "a")), rows((1, "a")))
    assert result is not None
    assert (result.missing, result.extra) == ([1], [])
    result = compare("n", rows((1, "a")), rows((1, "a"), (1, "a")))
    assert result is not None
    assert (result.missing, result.extra) == ([], rows((1, "a")))


def test_rows_of_one_key_are_matched_and_their_columns_named() -> None:
    result = compare("n", rows((1, "a"), (2, "b"), (3, "c")), rows((4, "d"), (2, "x"), (1, "a")), ("id",))
    assert result is not None
    assert result.missing == [2]
    assert result.extra == rows((4, "d"))
    assert [(change.at, change.columns, change.found) for change in result.changed] == [
        (1, ("v",), {"id": 2, "v": "x"})
    ]


def test_without_a_key_nothing_is_matched() -> None:
    result = compare("n", rows((1, "a")), rows((1, "b")))
    assert result is not None
    assert (result.missing, result.extra, result.changed) == ([0], rows((1, "b")), [])


def test_order_counts_where_it_is_asked_for() -> None:
    result = compare("n", rows((1, "a"), (2, "b")), rows((2, "b"), (1, "a")), ordered=True)
    assert result is not None
    assert result.misplaced
    assert not result.missing
    assert compare("n", rows((1, "a"), (2, "b")), rows((1, "a"), (2, "b")), ordered=True) is None
    assert compare("n", rows((1, "a"), (2, "b")), rows((1, "a"), (2, "c")), ordered=True) is not None


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "equal"),
    [
        (1.0, 1.0005, 0.001, True),
        (1.0, 1.002, 0.001, False),
        (Decimal("0.1"), Decimal("0.2"), 0.1, True),
        (Decimal("0.1"), Decimal("0.21"), 0.1, False),
        (1, 2, 5.0, False),
        (NAN, NAN, 0.0, True),
        (NAN, 1.0, 9.0, False),
        (float("inf"), float("inf"), 0.0, True),
        (float("inf"), 1.0, 9.0, False),
        ([1.0], [1.05], 0.1, True),
        ({"a": 1.0}, {"a": 1.2}, 0.1, False),
        (None, 0.0, 1.0, False),
    ],
)
def test_tolerance_is_for_floats_and_decimals(one: Any, other: Any, tolerance: float, equal: bool) -> None:
    assert same(one, other, tolerance) is equal


def test_a_tolerance_does_not_pair_rows_crosswise() -> None:
    assert compare("n", rows((1, 1.0), (1, 1.1)), rows((1, 1.05), (1, 0.95)), tolerance=0.1) is None


def changes(*steps: tuple[str, Any, Any]) -> list[dict[str, Any]]:
    return [{"id": key, "v": value, "_gs_op": op} for op, key, value in steps]


def sink(kind: str, **more: Any) -> Any:
    return sink_entries()[kind].config_class().model_validate({"type": kind, "from": "n"} | more)


def postgres(**more: Any) -> Any:
    return sink("postgres", table="t", **more)


DELTA = sink("delta", path="/lake/t")


@pytest.mark.parametrize(
    ("sink", "steps", "expected"),
    [
        (postgres(), [("i", 1, 5), ("u", 1, 4), ("i", 2, 1)], rows((1, 4), (2, 1))),
        (postgres(), [("i", 1, 5), ("d", 1, None)], []),
        (postgres(), [("d", 1, None), ("i", 1, 6)], rows((1, 6))),
        (postgres(), [("i", 1, 5), ("d", 1, None), ("u", 1, 7)], rows((1, 7))),
        (postgres(on_conflict="nothing"), [("i", 1, 5), ("u", 1, 4)], rows((1, 5))),
        (postgres(on_conflict="nothing"), [("i", 1, 5), ("d", 1, None), ("i", 1, 4)], rows((1, 4))),
        (
            postgres(update_where={"v": ">"}),
            [("i", 1, 5), ("u", 1, 4), ("u", 1, 5), ("u", 1, 9), ("u", 1, 8)],
            rows((1, 9)),
        ),
        (postgres(update_where={"v": "<"}), [("i", 1, 5), ("u", 1, 6), ("u", 1, 2)], rows((1, 2))),
        (postgres(update_where={"v": ">"}), [("i", 1, 5), ("u", 1, None)], rows((1, 5))),
        (postgres(update_where={"v": ">"}), [("i", 1, 5), ("d", 1, None), ("i", 1, 3)], rows((1, 3))),
        (postgres(update_where={"v": ">", "id": "!="}), [("i", 1, 5), ("u", 1, 6)], rows((1, 5))),
        (DELTA, [("i", 1, 5), ("u", 1, 4), ("d", 2, None)], rows((1, 4))),
    ],
)
def test_what_a_table_with_a_key_holds(sink: Any, steps: list[Any], expected: list[Any]) -> None:
    assert apply_to_target("s", sink, ("id",), changes(*steps)) == expected


def test_a_delta_table_holds_what_its_merge_is_given() -> None:
    draw = random.Random(7)
    steps = changes(*((draw.choice("iuud"), draw.randrange(6), draw.randrange(9)) for _ in range(60)))
    places = [{"source": 0, "part": 0, "off": at, "sub": 0} for at in range(len(steps))]
    merged = last_by_key(
        "s", pa.Table.from_pylist(steps).append_column("_gs_pos", pa.array(places, POS_ARROW)), ("id",)
    ).to_pylist()
    there = [(row["id"], row["v"]) for row in merged if row["_gs_op"] != "d"]
    assert sorted(there) == sorted(
        (row["id"], row["v"]) for row in apply_to_target("s", DELTA, ("id",), steps)
    )
    assert 0 < len(there) < 6


def test_what_a_table_without_a_key_holds() -> None:
    assert apply_to_target("s", postgres(), (), changes(("i", 1, 5), ("u", 1, 5))) == rows((1, 5), (1, 5))
    with pytest.raises(GuaranteeError, match="a delete arrived"):
        apply_to_target("s", postgres(), (), changes(("d", 1, 5)))


def test_a_null_in_a_key_is_refused() -> None:
    with pytest.raises(DataError, match="key column 'id' is null"):
        apply_to_target("s", postgres(), ("id",), changes(("i", None, 5)))


def test_a_sink_that_keeps_nothing_gets_every_operation() -> None:
    steps = changes(("i", 1, 5), ("d", 1, None))
    assert apply_to_target("s", sink("print"), ("id",), steps) == steps

"""Several rows from one, for plugins: distinct positions, or an error."""

from __future__ import annotations

import pyarrow as pa
import pytest
from helpers.script_nodes import hidden

from headrace import fan_out
from headrace.pipeline.errors import DataError
from headrace.pipeline.sql.system_columns import FAN_OUT, POS


def batch(sub: int = 0) -> pa.RecordBatch:
    return hidden(pa.table({"id": [1, 2, 3]}), sub=sub).combine_chunks().to_batches()[0]


def test_rows_of_one_are_numbered_in_their_order() -> None:
    result = fan_out(batch(sub=5), [0, 0, 2])
    assert result.column("id").to_pylist() == [1, 1, 3]
    assert [(place["off"], place["sub"] - 5 * FAN_OUT) for place in result.column(POS).to_pylist()] == [
        (0, 0),
        (0, 1),
        (2, 0),
    ]
    assert fan_out(batch(), []).num_rows == 0


def test_places_that_are_used_up_are_an_error_and_not_wrapped_round() -> None:
    deep = batch(sub=1)
    for _ in range(3):
        deep = fan_out(deep, [0, 0])
    with pytest.raises(DataError, match="the limit is three"):
        fan_out(fan_out(deep, [0]), [0])
    with pytest.raises(DataError, match="one row makes 1,048,577 rows or more"):
        fan_out(batch(), [0] * (FAN_OUT + 1))

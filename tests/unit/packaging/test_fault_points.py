"""The methods that `make test-faults` interrupts exist."""

from __future__ import annotations

import pytest
from helpers.fault_points import DELTA, DURING, POINTS, POSTGRES, find_class


@pytest.mark.parametrize(("place", "method"), [point[:2] for point in (*POINTS.values(), *DURING.values())])
def test_a_point_is_a_method(place: str, method: str) -> None:
    assert callable(getattr(find_class(place), method))


@pytest.mark.parametrize("sink", [POSTGRES, DELTA])
def test_the_two_sinks_write(sink: str) -> None:
    assert callable(find_class(sink).write)

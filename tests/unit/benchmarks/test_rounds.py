"""The median of repeated benchmarks, and the benchmarks that repeat."""

from __future__ import annotations

import pytest

from benchmarks.cases import CASES
from benchmarks.kit import BenchmarkFigure
from benchmarks.rounds import choose_medians, has_rounds


def test_each_line_is_of_the_round_with_its_median_ratio() -> None:
    bare = [BenchmarkFigure("bare", f"{rate} M rows/s", "1.00") for rate in ("0.9", "1.10", "1.0")]
    ours = [
        BenchmarkFigure(f"headrace, {epochs} epochs", "0.5 M rows/s", ratio)
        for epochs, ratio in ((9, "0.90"), (10, "0.70"), (11, "0.80"))
    ]
    assert choose_medians(list(zip(bare, ours, strict=True))) == [bare[2], ours[2]]


def test_lines_without_a_ratio_are_compared_by_value() -> None:
    lines = [[BenchmarkFigure("rows", value)] for value in ("9,500", "10,500.5", "12")]
    assert choose_medians(lines) == [lines[0][0]]


def test_rounds_with_other_lines_are_an_error() -> None:
    line = BenchmarkFigure("rows", "1")
    with pytest.raises(ValueError, match="zip"):
        choose_medians([[line], [line, line]])


def test_throughput_is_measured_in_rounds() -> None:
    assert [name for name in CASES if has_rounds(name)] == [
        "history",
        "upsert",
        "publishing",
        "avro",
        "clickhouse",
        "tables",
        "startup",
        "warm",
        "watching",
    ]

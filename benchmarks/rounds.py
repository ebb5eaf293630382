"""Repeated runs of a benchmark, of which the median counts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.kit import BenchmarkFigure

ROUNDS = 3
_ONE_ROUND = frozenset(
    {"epoch", "live", "latency", "both", "growth", "memory", "functions", "lookups", "script", "streams"}
)
"""They repeat inside one run, or measure sizes, which do not vary."""


def has_rounds(name: str) -> bool:
    """Return whether a benchmark is run several times."""
    return name not in _ONE_ROUND


def choose_medians(rounds: Sequence[Sequence[BenchmarkFigure]]) -> list[BenchmarkFigure]:
    """Return for each line of a table the figure of the round with the median ratio.

    Lines with the same ratio, or without one, are compared by their values. Raise ValueError if the rounds
    have different numbers of lines.
    """
    return [sorted(line, key=_sort_key)[len(line) // 2] for line in zip(*rounds, strict=True)]


def _sort_key(figure: BenchmarkFigure) -> tuple[float, float]:
    return _read_number(figure.ratio), _read_number(figure.value)


def _read_number(text: str) -> float:
    number = re.search(r"\d+(?:,\d{3})*(?:\.\d+)?", text)
    return float(number[0].replace(",", "")) if number else 0.0

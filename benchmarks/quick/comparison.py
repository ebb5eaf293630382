"""Measures ratios in interleaved rounds and compares them with recorded ones.

A ratio is the bare way's processor time divided by ours, both from the same round: load on the machine slows
both. Larger is better.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 3
MEASUREMENTS = 3
"""How often a ratio is measured before it is recorded, and at most before it counts as dropped."""
ALLOWED_DROP = 0.15


@dataclass(frozen=True, slots=True)
class RatioStep:
    """Work that is done both ways. Each function does it once and returns its processor time, in seconds."""

    name: str
    what: str
    ours: Callable[[], float]
    bare: Callable[[], float]


def measure_ratio(step: RatioStep, rounds: int = ROUNDS) -> float:
    """Return the median ratio of the rounds. One more round before them warms caches and is not counted."""
    ratios: list[float] = []
    for number in range(rounds + 1):
        # Each way goes first in half of the rounds, so that work which a round leaves to the servers slows both.
        if number % 2:
            bare, ours = step.bare(), step.ours()
        else:
            ours, bare = step.ours(), step.bare()
        if number:
            ratios.append(bare / ours)
    return statistics.median(ratios)


def compare_ratios(
    steps: Iterable[RatioStep], recorded: Mapping[str, float], rounds: int = ROUNDS
) -> list[str]:
    """Print each step's ratio, and return a message for each that dropped in every measurement."""
    failures: list[str] = []
    for step in steps:
        if (old := recorded.get(step.name)) is None:
            failures.append(f"{step.name}: no recorded ratio. Record it: python -m benchmarks.quick --record")
            continue
        least = old * (1 - ALLOWED_DROP)
        ratio = 0.0
        for _ in range(MEASUREMENTS):
            ratio = measure_ratio(step, rounds)
            print_ratio(step, ratio, f"recorded {old:.2f}")
            if ratio >= least:
                break
        if ratio < least:
            failures.append(
                f"{step.name}: {step.what} dropped from {old:.2f} to {ratio:.2f} of the bare way,"
                f" {1 - ratio / old:.0%}; at most {ALLOWED_DROP:.0%} is allowed. Run `git stash` and the command"
                " again to see whether the machine or the change is the reason."
            )
    return failures


def record_ratios(steps: Iterable[RatioStep], path: Path, rounds: int = ROUNDS) -> None:
    """Write the least ratio of several measurements of every step. Ratios of other steps stay."""
    recorded = read_recorded(path) if path.exists() else {}
    for step in steps:
        recorded[step.name] = round(min(measure_ratio(step, rounds) for _ in range(MEASUREMENTS)), 3)
        print_ratio(step, recorded[step.name], "recorded now")
    path.write_text(json.dumps(recorded, indent=2, sort_keys=True) + "\n")


def read_recorded(path: Path) -> dict[str, float]:
    """Return the recorded ratios by the name of their step."""
    return json.loads(path.read_text())


def print_ratio(step: RatioStep, ratio: float, note: str) -> None:
    """Print a line of the result."""
    print(f"{step.name:10} {step.what:62} {ratio:5.2f}  ({note})", flush=True)

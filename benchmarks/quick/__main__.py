"""`python -m benchmarks.quick [NAME …] [--record]`: compare ratios with benchmarks/recorded.json, or record them."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.kit import open_runner
from benchmarks.quick.comparison import compare_ratios, read_recorded, record_ratios
from benchmarks.quick.steps import create_steps

RECORDED = Path(__file__).parent.parent / "recorded.json"


def main() -> int:
    """Run the steps. Return 1 if a ratio dropped by more than is allowed."""
    parser = argparse.ArgumentParser(prog="benchmarks.quick")
    parser.add_argument("names", nargs="*", help="steps; default: all")
    parser.add_argument("--record", action="store_true", help="write the ratios instead of comparing them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, open_runner(Path(folder)) as runner:
        steps = create_steps(runner)
        known = [step.name for step in steps]
        if unknown := [name for name in arguments.names if name not in known]:
            parser.error(f"there is no step {', '.join(unknown)}; there are {', '.join(known)}")
        chosen = [step for step in steps if not arguments.names or step.name in arguments.names]
        if arguments.record:
            record_ratios(chosen, RECORDED)
            return 0
        failures = compare_ratios(chosen, read_recorded(RECORDED))
    for line in failures:
        print(f"dropped: {line}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""How much of a long suite runs: a sample, or all of it in `make test-faults`."""

import os

FULL = bool(os.environ.get("HEADRACE_TEST_FULL"))

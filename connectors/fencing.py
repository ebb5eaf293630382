"""The one fencing error: a compare-and-set failed, because another run took over the target."""

from __future__ import annotations

from headrace.pipeline.errors import FencedError

_HINT = "Another run of this pipeline holds the lease; this run stops."


def check_generation(actual: int | None, generation: int, *, target: str, sink: str) -> None:
    """Raise FencedError if the generation found in the target is newer than this run's."""
    if actual is not None and actual > generation:
        raise fencing_error(actual, generation, target=target, sink=sink)


def fencing_error(actual: int | None, generation: int, *, target: str, sink: str) -> FencedError:
    """Return the error of a run whose compare-and-set failed.

    `actual` is the target's generation, None without one.
    """
    if actual is None:
        problem = f"{target} no longer has this sink's record"
    elif actual > generation:
        problem = f"generation {actual} has taken {target} over"
    else:
        problem = f"another process changed this sink's record in {target}"
    return FencedError(f"{problem}; this process is generation {generation}", hint=_HINT, node=sink)

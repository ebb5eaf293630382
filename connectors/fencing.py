"""The one fencing error: a compare-and-set failed, because another run took over the target."""

from __future__ import annotations

from headrace.pipeline.errors import FencedError

_HINT = "Another run of this pipeline holds the lease; this run stops."


def check_generation(found: int | None, generation: int, *, target: str, sink: str) -> None:
    """Raise FencedError if the generation found in the target is newer than this run's."""
    if found is not None and found > generation:
        raise fencing_error(found, generation, target=target, sink=sink)


def fencing_error(found: int | None, generation: int, *, target: str, sink: str) -> FencedError:
    """Return the error of a run whose compare-and-set failed.

    `found` is the target's generation, None without one.
    """
    if found is None:
        problem = f"{target} no longer has this sink's record"
    elif found > generation:
        problem = f"generation {found} has taken {target} over"
    else:
        problem = f"another process changed this sink's record in {target}"
    return FencedError(f"{problem}; this process is generation {generation}", hint=_HINT, node=sink)

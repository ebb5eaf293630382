"""Dagster: the pipeline component, assets, asset checks, sensors and schedules.

This is the only package that imports dagster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.orchestration.component import PipelineComponent

__all__ = ["PipelineComponent"]


def __getattr__(name: str) -> Any:
    """Return the component. It is imported on first use; other modules are imported by their own names."""
    if name in __all__:
        from headrace.orchestration.component import PipelineComponent

        return PipelineComponent
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__

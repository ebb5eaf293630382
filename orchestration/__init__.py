"""Dagster: the pipeline component, assets, asset checks, sensors and schedules. The only room that imports dagster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.orchestration.component import PipelineComponent

__all__ = ["PipelineComponent"]


def __getattr__(name: str) -> Any:
    """The component, imported when `dg` or a project asks for it: the rest of the room is imported by its modules' names."""
    if name in __all__:
        from headrace.orchestration.component import PipelineComponent

        return PipelineComponent
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__

"""The `memory` sink of a pipeline file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from headrace.pipeline.model.sinks import SinkConfig


class MemorySinkConfig(SinkConfig):
    """A table in the memory of the process, for tests."""

    target_keys: ClassVar[tuple[str, ...]] = ("table",)
    metric_labels: ClassVar[tuple[str, ...]] = ("table",)

    type: Literal["memory"] = "memory"
    table: str | None = Field(default=None, description="Name of the table. Defaults to the sink's name.")
    exclude_gs_op: bool = Field(
        default=False,
        description="Without a key: leaves out `_gs_op`, the column with the operation of each row.",
    )

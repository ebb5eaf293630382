"""The `delta` sink of a pipeline file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from headrace.pipeline.model.sinks import KeyedSinkConfig


class DeltaSinkConfig(KeyedSinkConfig):
    """A Delta table at a path: MERGE by key, or append without one."""

    target_keys: ClassVar[tuple[str, ...]] = ("path",)
    metric_labels: ClassVar[tuple[str, ...]] = ("path",)

    type: Literal["delta"] = "delta"
    path: str = Field(
        description="A folder or a URI that Spark can write; the table is made if it is missing."
    )

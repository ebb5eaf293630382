"""The `sqlite` sink of a pipeline file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from headrace.pipeline.model.sinks import KeyedSinkConfig


class SqliteSinkConfig(KeyedSinkConfig):
    """A table of a SQLite file: upsert by key, or append without one."""

    target_keys: ClassVar[tuple[str, ...]] = ("path", "table")

    type: Literal["sqlite"] = "sqlite"
    path: str = Field(description="The file; it is created if it is missing.")
    table: str = Field(description="The table; it is created if it is missing.")

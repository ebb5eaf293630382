"""Keys of sources whose rows are stored once."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Columns


class StagedSourceConfig(SourceConfig):
    """What sources share whose rows are stored once."""

    declares_columns: ClassVar[bool] = True

    schema_: dict[str, str] = Field(
        alias="schema", min_length=1, description="Column names and types. Other columns are left out."
    )
    columns: Columns = Field(default=(), description="Columns to read. Defaults to all.")
    filter: str | None = Field(default=None, description="A predicate in Spark SQL.")

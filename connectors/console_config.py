"""The `print` and `blackhole` sinks of a pipeline file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from headrace.pipeline.model.sinks import SinkConfig


class PrintSinkConfig(SinkConfig):
    """Rows on standard error, for looking at."""

    type: Literal["print"] = "print"
    sample_every: PositiveInt = Field(default=1, description="Shows every Nth row; 1: all of them.")


class BlackholeSinkConfig(SinkConfig):
    """Rows are computed and thrown away."""

    type: Literal["blackhole"] = "blackhole"

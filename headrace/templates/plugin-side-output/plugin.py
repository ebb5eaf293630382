"""Counts the rows of each source, epoch by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from headrace import EpochPlan, Options, Plugin, SideOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class CountOptions(Options):
    """The keys in the settings."""

    folder: str = Field(description="The folder of the counts: a folder per source, a file per epoch.")


class Count(SideOutput):
    """One instance per source. An epoch may be seen twice, so its file has its number and is replaced."""

    def epoch(self, plan: EpochPlan, rows: DataFrame) -> None:
        """Count an epoch before any sink is written. After an error the epoch is not written."""
        folder = Path(self.options.folder) / self.context.name
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{plan.number}"
        beside.write_text(str(rows.count()))
        beside.replace(folder / str(plan.number))


plugin = Plugin("$id", "side_output", Count, CountOptions)

"""How many rows each source brought, epoch by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from headrace import EpochPlan, Options, Plugin, SideOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class CountOptions(Options):
    """What settings may say."""

    folder: str = Field(description="Where the counts go, a folder per source and a file per epoch.")


class Count(SideOutput):
    """One instance per source. The same epoch may come again, so its file is named after it and replaced."""

    def epoch(self, plan: EpochPlan, rows: DataFrame) -> None:
        """Before any sink is written. An error keeps the epoch from being written."""
        folder = Path(self.options.folder) / self.context.name
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{plan.number}"
        beside.write_text(str(rows.count()))
        beside.replace(folder / str(plan.number))


plugin = Plugin("$id", "side_output", Count, CountOptions)

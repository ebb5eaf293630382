"""The contract of transforms that are no SQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import FileLocation
from headrace.pipeline.protocol.epochs import EpochPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TransformContext:
    """What a transform is created from: the node `name` in the file, and its input payload as Arrow.

    `key` is the own or inherited key of the node. `pipeline` returns the UUID of the pipeline while epochs
    are written, else "".
    """

    name: str
    node: Any
    settings: Settings
    schema: pa.Schema
    spark: SparkSession
    key: tuple[str, ...] = ()
    pipeline: Callable[[], str] = str
    text_at: FileLocation | None = None
    """The location of the first line of the program of the node, if the file contains it line by line."""


class RowTransform(ABC):
    """One node of a compiled pipeline with one input. It is created once per planner and opens nothing.

    Its rows have the system columns `_gs_op` and `_gs_pos`. Several rows from one are numbered in
    `_gs_pos.sub` (`system_columns.FAN_OUT`), so that their order is the same in every run.
    """

    def __init__(self, context: TransformContext) -> None:
        """Store the context. Raises UserError if the node cannot process these columns."""
        self._context = context

    @abstractmethod
    def rows(self, rows: DataFrame, plan: EpochPlan | None) -> DataFrame:
        """Return the node's rows as a lazy frame.

        Without a plan, only its columns are needed, and it has no rows.
        """

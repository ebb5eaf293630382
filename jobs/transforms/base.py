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
    """What a transform is made of: the node `name` as the file has it, and the payload columns that it reads, as Arrow.

    `key` is the node's own or inherited key. `pipeline` gives the pipeline's UUID while epochs are written, else an empty text.
    """

    name: str
    node: Any
    settings: Settings
    schema: pa.Schema
    spark: SparkSession
    key: tuple[str, ...] = ()
    pipeline: Callable[[], str] = str
    text_at: FileLocation | None = None
    """Where the first line of the node's program stands in the file, if it stands there line by line."""


class RowTransform(ABC):
    """One node of a compiled pipeline that reads one other node. Made once per planner; opens nothing.

    It sees and gives the hidden columns `_gs_op` and `_gs_pos` beside the payload. Several rows made of one are numbered in
    `_gs_pos.sub` (`connectors.base.FAN_OUT`), so that "last one wins" means the same in every run.
    """

    def __init__(self, context: TransformContext) -> None:
        """Store the context. Raises UserError if the node cannot process these columns."""
        self._context = context

    @abstractmethod
    def rows(self, rows: DataFrame, plan: EpochPlan | None) -> DataFrame:
        """Return the node's rows as a lazy frame.

        Without a plan, only its columns are needed, and it has no rows.
        """

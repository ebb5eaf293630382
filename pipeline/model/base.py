"""The common parts of the nodes of a pipeline file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.pipeline.model.strict import Columns, Strict
from headrace.pipeline.model.telemetry import Telemetry

PARALLELISM = "Taken for Streamling's files; Spark divides the work by its own settings (`spark.master`)."
FLUSH = "Taken for Streamling's files; `epoch` says how large epochs are and how often they come."

VERSION_COLUMN = (
    "With a key: the row with the highest value of this column wins, and of equal values the later row. A"
    " whole number, a decimal, a date"
    " or a timestamp. By default the last row by source, partition and offset wins."
)


class NodeConfig(Strict):
    """What all nodes share."""

    primary_key: Columns = Field(
        default=(),
        description="Key columns. Defaults to the key that all inputs share, and to none for a source."
        " Sinks upsert and delete by"
        " their key, and append without one.",
    )
    telemetry: Telemetry | None = Field(
        default=None, description="Labels and event time of the node's metrics."
    )


class RejectingConfig(NodeConfig):
    """A transform that can reject rows."""

    on_error: Literal["fail", "dead_letter"] = Field(
        default="fail",
        description="What happens with a row that it cannot compute: it fails the epoch, or it goes to"
        " the sinks with `from: <transform>.errors`.",
    )
    max_error_rate: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="With `on_error: dead_letter`: the largest fraction of rejected rows in an epoch of at"
        " least 100 rows. More fail the epoch before anything is written.",
    )

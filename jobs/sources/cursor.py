"""The handoff by a cursor: which rows of history and of the stream a source returns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.connectors.filters import quote_identifier
from headrace.connectors.lazy_session import ensure_started
from headrace.connectors.row_errors import row_error
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.sql.system_columns import POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def history_by_cursor(column: str, cursor: str) -> str:
    """Return SQL for the rows that history keeps under a cursor. Rows without a time belong to history."""
    name = quote_identifier(column)
    return f"{name} IS NULL OR {name} <= timestamp'{cursor}'"


def after_cursor(
    frame: DataFrame, column: str, cursor: str, overlap: Json, *, node: str, exact: bool
) -> DataFrame:
    """Drop rows of the overlap that history has.

    These are rows at or before the cursor, and before the end that the stream had at the snapshot. A row of
    the overlap without a time may or may not be in history. If that matters (`exact`), it fails the epoch.
    """
    from pyspark.sql import functions as F  # noqa: N812

    frame = ensure_started(frame)
    ends = F.from_json(F.lit(json.dumps(positions.offsets(overlap["end"]))), "map<string,bigint>")
    inside = F.col(f"{POS}.off") < F.coalesce(
        F.element_at(ends, F.col(f"{POS}.part").cast("string")), F.lit(0)
    )
    moment = F.col(quote_identifier(column))
    drops = F.coalesce(moment <= F.lit(cursor).cast("timestamp"), F.lit(False))
    if exact and overlap["nulls"]:
        what = (
            f"cursor column `{column}` is NULL, and history has rows with NULL too: the row may be one of"
            " them"
        )
        hint = "Fill the column, give the sink a primary_key, or set delivery: at_least_once at the sink."
        where = {"partition": F.col(f"{POS}.part"), "offset": F.col(f"{POS}.off")}
        refused = row_error(node, what, hint, **where).cast("boolean")
        drops = F.when(moment.isNull(), refused).otherwise(drops)
    return frame.where(F.when(inside, ~drops).otherwise(F.lit(True)))

"""The ledger: the lane's record of epochs, and the only truth about where it stands."""

from headrace.pipeline.ledger.base import EpochRow, LaneState, Lease, SinkRow
from headrace.pipeline.ledger.holder import describe_holder, describe_process
from headrace.pipeline.ledger.ledger import Ledger
from headrace.pipeline.ledger.sqlite import open_sqlite

__all__ = ["EpochRow", "LaneState", "Lease", "Ledger", "SinkRow", "describe_holder", "describe_process", "open_sqlite"]

"""The ledger: the lane's record of epochs, and the only truth about where it stands."""

from headrace.pipeline.ledger.base import EpochRow, LaneState, Lease, Ledger, SinkRow

__all__ = ["EpochRow", "LaneState", "Lease", "Ledger", "SinkRow"]

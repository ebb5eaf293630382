"""The ledger: the durable record of a pipeline's epochs and position."""

from headrace.pipeline.protocol.ledger.model import (
    EpochRow,
    Lease,
    LeaseStatus,
    PipelineState,
    RefreshRequest,
    RefreshState,
    SinkRow,
    StopAction,
    StopRequest,
)
from headrace.pipeline.protocol.ledger.owner import describe_launcher, describe_owner, describe_process
from headrace.pipeline.protocol.ledger.sqlite import open_sqlite
from headrace.pipeline.protocol.ledger.writer import Ledger

__all__ = [
    "EpochRow",
    "Lease",
    "LeaseStatus",
    "Ledger",
    "PipelineState",
    "RefreshRequest",
    "RefreshState",
    "SinkRow",
    "StopAction",
    "StopRequest",
    "describe_launcher",
    "describe_owner",
    "describe_process",
    "open_sqlite",
]

"""The coordinator of a lane: opens it, agrees with its sinks, plans, commits, and mends."""

from headrace.pipeline.protocol.coordinator.coordinator import Lane
from headrace.pipeline.protocol.coordinator.sinks import EpochSink, OpenSinks, Pending

__all__ = ["EpochSink", "Lane", "OpenSinks", "Pending"]

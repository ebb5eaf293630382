"""The coordinator of a lane: opens it, agrees with its sinks, plans, commits, and mends."""

from headrace.pipeline.lane.lane import Lane
from headrace.pipeline.lane.opening import EpochSink, OpenSinks, Pending

__all__ = ["EpochSink", "Lane", "OpenSinks", "Pending"]

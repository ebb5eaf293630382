"""The coordinator of a lane: opens it, agrees with its sinks, plans, commits, and mends."""

from headrace.pipeline.protocol.coordinator.coordinator import EpochCoordinator
from headrace.pipeline.protocol.coordinator.sinks import CoordinatedSink, OpenSinks, Pending

__all__ = ["CoordinatedSink", "EpochCoordinator", "OpenSinks", "Pending"]

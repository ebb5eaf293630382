"""The coordinator of a pipeline: starts it, reconciles its sinks, plans and commits epochs, repairs."""

from headrace.pipeline.protocol.coordinator.coordinator import EpochCoordinator
from headrace.pipeline.protocol.coordinator.sinks import CoordinatedSink, OpenSinks, Pending

__all__ = ["CoordinatedSink", "EpochCoordinator", "OpenSinks", "Pending"]

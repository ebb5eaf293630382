"""Samples a few rows of each node after an epoch is committed, from the frames of that epoch.

Frames that are passed in return the same rows at any time. Those that would call external services are left
out (`frame_observer.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.jobs.monitoring.json_values import json_value
from headrace.jobs.monitoring.sample_buffer import SampleBuffer
from headrace.jobs.transforms.retractions import without_marked
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.sql.system_columns import POS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_GROUP = "headrace-samples"


class Sampler:
    """Samples the rows of one run.

    The run's thread calls `wanted` and `stop`, the monitor's thread calls `take`.

    A node is sampled at most every `pause` seconds.
    """

    def __init__(self, samples: SampleBuffer, model: PipelineModel, pause: float) -> None:
        self._samples = samples
        self._pause = pause
        self._readers = {
            name: [name, *(sink for sink, node in model.sinks.items() if node.from_ == name)]
            for name in (*model.sources, *model.transforms)
        }
        self._next: dict[str, float] = {}
        self._stopping = threading.Event()
        self._spark: SparkSession | None = None

    def pending_nodes(self) -> frozenset[str]:
        """Return the sources and transforms whose next rows are to be sampled."""
        now = time.monotonic()
        return frozenset(
            name
            for name, readers in self._readers.items()
            if now >= self._next.get(name, 0.0) and any(self._samples.free(reader) for reader in readers)
        )

    def take(self, frames: Mapping[str, DataFrame]) -> None:
        """Sample a few rows of each frame.

        Failures are not warnings, because the next epoch has other rows.
        """
        for name, frame in frames.items():
            if self._stopping.is_set():
                return
            if name not in self.pending_nodes():
                continue
            self._next[name] = time.monotonic() + self._pause
            most = max(self._samples.free(reader) for reader in self._readers[name])
            try:
                rows = self._rows(frame, most)
            except Exception as error:  # noqa: BLE001  Spark may be stopping, or a split may be gone
                log.debug("event=sample_failed node=%s error=%s", name, type(error).__name__)
                continue
            for reader in self._readers[name]:
                self._samples.put(reader, rows)

    def _rows(self, frame: DataFrame, most: int) -> list[Json]:
        self._spark = frame.sparkSession
        context = self._spark.sparkContext
        context.setJobGroup(_GROUP, "rows to look at", interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", _GROUP)
        passed = without_marked(frame) if POS in frame.columns else frame
        result = passed.drop(POS).limit(most).toArrow().to_pylist()
        return [{key: json_value(value) for key, value in row.items()} for row in result]

    def stop(self) -> None:
        """Cancel a sample that is in progress."""
        self._stopping.set()
        if self._spark is not None:
            try:
                self._spark.sparkContext.cancelJobGroup(_GROUP)
            except Exception as error:  # noqa: BLE001  its JVM may be gone
                log.debug("event=samples_not_stopped error=%s", type(error).__name__)

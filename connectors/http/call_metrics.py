"""Metrics of the calls of tasks, on their way to the driver. Only tasks that succeed are counted."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from headrace.pipeline.protocol.log_context import current_log_context

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

Latencies = dict[tuple[str, str], list[float]]
_UNASKED = 10_000
"""The maximum number of requests to keep for the monitor, in addition to those of the current epoch."""


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """Requests of one node: latencies in milliseconds by (outcome, status class), and the number of retries.

    Outcomes: success, retriable_error, non_retriable_error. Status classes: 2xx to 5xx, timeout,
    network_error, body_read_error.
    """

    latencies: Mapping[tuple[str, str], Sequence[float]]
    retries: int


class CallCounter:
    """Counts inside of one task; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latencies: Latencies = defaultdict(list)
        self._retries = 0

    def add(self, outcome: str, status: str, milliseconds: float, *, retry: bool) -> None:
        """One request that came to an end."""
        with self._lock:
            self._latencies[outcome, status].append(milliseconds)
            self._retries += retry

    def calls(self) -> CallMetrics:
        """Return the calls that were counted."""
        with self._lock:
            return CallMetrics(dict(self._latencies), self._retries)


class _Sum(AccumulatorParam[CallMetrics]):
    def zero(self, value: CallMetrics) -> CallMetrics:
        del value
        return CallMetrics({}, 0)

    def addInPlace(self, value1: CallMetrics, value2: CallMetrics) -> CallMetrics:  # noqa: N802  pyspark's name
        keys = dict.fromkeys([*value1.latencies, *value2.latencies])
        both = {key: [*value1.latencies.get(key, ()), *value2.latencies.get(key, ())] for key in keys}
        return CallMetrics(both, value1.retries + value2.retries)


_counted: dict[tuple[str, str], tuple[object, Accumulator[CallMetrics]]] = {}
"""The Spark context and the accumulator by pipeline and node. A process can run several pipelines."""


def call_accumulator(spark: SparkSession, node: str) -> Accumulator[CallMetrics]:
    """Return the accumulator to which tasks add the calls of a node in one attempt at an epoch.

    It is reset when it grows too large, because without a monitor nothing drains it.
    """
    context, key = spark.sparkContext, (_current_pipeline(), node)
    if key not in _counted or _counted[key][0] is not context:
        _counted[key] = context, context.accumulator(CallMetrics({}, 0), _Sum())
    result = _counted[key][1]
    if sum(map(len, result.value.latencies.values())) > _UNASKED:
        result.value = CallMetrics({}, 0)
    return result


def drain_call_metrics() -> dict[str, CallMetrics]:
    """Return the calls by node of this thread's pipeline since the last call of this function.

    Runs on the driver, between two epochs.
    """
    result: dict[str, CallMetrics] = {}
    own = _current_pipeline()
    for (pipeline, node), (_, accumulator) in list(_counted.items()):
        if pipeline == own and accumulator.value.latencies:
            result[node] = accumulator.value
            accumulator.value = CallMetrics({}, 0)
    return result


def _current_pipeline() -> str:
    return current_log_context().get("pipeline", "")

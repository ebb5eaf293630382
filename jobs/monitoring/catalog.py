"""All metrics of a run: names without the prefix, meanings and labels.

docs/reference/metrics.md lists the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DURATIONS = (
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    1_800_000,
    3_600_000,
)
"""Bounds of histograms, in milliseconds: Streamling's."""
ANSWERS = (10, 25, 50, *(bound for bound in DURATIONS if bound <= 300_000))
"""Those of services, which answer sooner."""

INSTANCE = "service_instance_id"


class MetricType(StrEnum):
    """The type of a metric, in the terms of both exporters."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    `node`: it has the labels of a node; `labels` are additional ones. `bounds` are those of a histogram.
    """

    name: str
    kind: MetricType
    help: str
    node: bool = False
    labels: tuple[str, ...] = ()
    bounds: tuple[int, ...] = DURATIONS


_C, _G, _H = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM

METRICS: tuple[Metric, ...] = (
    Metric(
        "output_rows_total",
        _C,
        "Rows that a node gave. Sinks: rows written, exact, as they acknowledged them.",
        node=True,
    ),
    Metric("input_rows_total", _C, "Rows that a transform or a sink was given.", node=True),
    Metric("rejected_rows_total", _C, "Rows that a node with dead letters rejected.", node=True),
    Metric("checkpoint_markers_sent_total", _C, "Epochs that were planned."),
    Metric("checkpoint_acks_received_total", _C, "Epochs that a sink acknowledged.", node=True),
    Metric("checkpoint_epochs_succeeded_total", _C, "Epochs that were committed."),
    Metric("checkpoint_epochs_failed_total", _C, "Attempts at an epoch that failed."),
    Metric("checkpoint_finalizers_sent_total", _C, "Closed epochs that sources were notified of."),
    Metric("checkpoint_epochs_in_flight", _G, "1 while an epoch is planned and not committed, else 0."),
    Metric(
        "checkpoint_epoch_duration_milliseconds", _H, "From the start of an epoch's writing to its commit."
    ),
    Metric(
        "checkpoint_finalization_wait_milliseconds", _H, "What the ledger took of an epoch: plan and commit."
    ),
    Metric("checkpoint_sink_flush_milliseconds", _H, "How long a sink took to write an epoch.", node=True),
    Metric(
        "epoch_step_milliseconds", _H, "Epochs by step: read, plan, stage, write, ledger.", labels=("step",)
    ),
    Metric(
        "kafka_consumer_messages_lag",
        _G,
        "Offsets of a partition that are not committed yet.",
        node=True,
        labels=("partition",),
    ),
    Metric(
        "event_time_watermark_milliseconds",
        _G,
        "The latest event time that a node has seen, since 1970.",
        node=True,
    ),
    Metric(
        "event_time_lag_milliseconds",
        _H,
        "At an epoch's commit: how far its latest event time lies back.",
        node=True,
    ),
    Metric(
        "http_requests_total", _C, "Requests of a handler.", node=True, labels=("outcome", "status_class")
    ),
    Metric("http_retries_total", _C, "Requests of a handler that were tried again.", node=True),
    Metric(
        "http_request_latency_milliseconds",
        _H,
        "How long requests of a handler took.",
        node=True,
        labels=("outcome", "status_class"),
        bounds=ANSWERS,
    ),
    Metric("epoch", _G, "The last committed epoch."),
    Metric("generation", _G, "How many runs have owned the pipeline, this one included."),
    Metric("phase", _G, "1 for the phase that the pipeline is in, 0 for the others.", labels=("phase",)),
    Metric("source_lag_rows", _G, "Offsets that streams have and the pipeline has not committed."),
    Metric("last_commit_timestamp_seconds", _G, "When the last epoch was committed, since 1970."),
    Metric("last_error_timestamp_seconds", _G, "When an epoch failed last, since 1970; not there before."),
    Metric("epoch_failing", _G, "1 while an epoch fails or the run has given up, else 0."),
)
BY_NAME = {metric.name: metric for metric in METRICS}

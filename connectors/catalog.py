"""The catalog of built-in connectors: one entry per `type` of a pipeline file.

The entry and the connector's package are the two places of a connector. Importing this module imports no
connector. The order is that of lists in messages and in the docs.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.pipeline.model.capabilities import Delivery, SinkCapabilities, SourceCapabilities, Visibility
from headrace.pipeline.model.connectors import Connector, SinkEntry, SourceEntry

_PACKAGE = "headrace.connectors"

_EXACTLY_ONCE = {
    "delivery": Delivery.EXACTLY_ONCE,
    "upsert": True,
    "delete": True,
    "creates_target": True,
    "fences": True,
}
_TRANSACTIONAL = {
    **_EXACTLY_ONCE,
    "visibility": Visibility.EPOCH,
    "counts_changes": True,
    "reads_keys": True,
    "versions": True,
}
_STATELESS = SinkCapabilities(
    delivery=Delivery.AT_LEAST_ONCE,
    upsert=True,
    delete=True,
    visibility=Visibility.ROW,
    creates_target=True,
    without_spark=True,
)

CONNECTORS: tuple[Connector, ...] = (
    Connector(
        "postgres",
        extra="postgres",
        source=SourceEntry(
            config=f"{_PACKAGE}.postgres_source.config:PostgresSourceConfig",
            implementation=f"{_PACKAGE}.postgres_source.source:PostgresTableSource",
            capabilities=SourceCapabilities(
                bounded=True, stable_snapshot=True, direct=True, splits_have_keys=True, without_spark=True
            ),
        ),
        sink=SinkEntry(
            config=f"{_PACKAGE}.postgres.config:PostgresSinkConfig",
            implementation=f"{_PACKAGE}.postgres.sink:PostgresSink",
            capabilities=SinkCapabilities(
                **_TRANSACTIONAL,
                can_truncate=True,
                direct=Visibility.SPLIT,
                orders_splits=True,
                without_spark=True,
            ),
        ),
    ),
    Connector(
        "postgres_aggregate",
        extra="postgres",
        sink=SinkEntry(
            config=f"{_PACKAGE}.postgres_aggregate.config:PostgresAggregateSinkConfig",
            implementation=f"{_PACKAGE}.postgres_aggregate.sink:PostgresAggregateSink",
            capabilities=SinkCapabilities(**_TRANSACTIONAL, can_truncate=True, without_spark=True),
        ),
    ),
    Connector(
        "delta",
        extra="delta",
        source=SourceEntry(
            config=f"{_PACKAGE}.delta.config:DeltaSourceConfig",
            implementation=f"{_PACKAGE}.delta.source:DeltaTable",
            capabilities=SourceCapabilities(
                bounded=True, stable_snapshot=True, direct=True, without_spark=True
            ),
        ),
        sink=SinkEntry(
            config=f"{_PACKAGE}.delta.config:DeltaSinkConfig",
            implementation=f"{_PACKAGE}.delta.sink:DeltaTableSink",
            capabilities=SinkCapabilities(
                **_TRANSACTIONAL,
                can_truncate=True,
                direct=Visibility.EPOCH,
                orders_splits=True,
                maintains_files=True,
                without_spark=True,
            ),
        ),
    ),
    Connector(
        "clickhouse",
        extra="clickhouse",
        source=SourceEntry(
            config=f"{_PACKAGE}.clickhouse.config:ClickHouseSourceConfig",
            implementation=f"{_PACKAGE}.clickhouse.source:ClickHouseTable",
            capabilities=SourceCapabilities(
                bounded=True,
                stable_snapshot=True,
                direct=True,
                computes_sql=True,
                without_spark=True,
            ),
        ),
        sink=SinkEntry(
            config=f"{_PACKAGE}.clickhouse.config:ClickHouseSinkConfig",
            implementation=f"{_PACKAGE}.clickhouse.sink:ClickHouseSink",
            capabilities=SinkCapabilities(
                **_EXACTLY_ONCE,
                visibility=Visibility.PARTITION,
                direct=Visibility.PARTITION,
                can_truncate=True,
                versions=True,
                without_spark=True,
            ),
        ),
    ),
    Connector(
        "iceberg",
        source=SourceEntry(
            config=f"{_PACKAGE}.iceberg.config:IcebergSourceConfig",
            implementation=f"{_PACKAGE}.iceberg.source:IcebergTable",
            capabilities=SourceCapabilities(bounded=True, stable_snapshot=True),
        ),
        sink=SinkEntry(
            config=f"{_PACKAGE}.iceberg.config:IcebergSinkConfig",
            implementation=f"{_PACKAGE}.iceberg.sink:IcebergTableSink",
            capabilities=SinkCapabilities(**_TRANSACTIONAL, maintains_files=True),
        ),
    ),
    Connector(
        "file",
        source=SourceEntry(
            config=f"{_PACKAGE}.files.config:FileSourceConfig",
            implementation=f"{_PACKAGE}.files.source:Files",
            capabilities=SourceCapabilities(
                bounded=True, stable_snapshot=True, direct=True, without_spark=True
            ),
        ),
        stream=SourceEntry(
            config=f"{_PACKAGE}.files.config:FileSourceConfig",
            implementation=f"{_PACKAGE}.files.stream:FileStream",
            capabilities=SourceCapabilities(
                bounded=False, job_mode=False, phase=False, is_ordered=True, without_spark=True
            ),
        ),
        sink=SinkEntry(
            config=f"{_PACKAGE}.files.config:FileSinkConfig",
            implementation=f"{_PACKAGE}.files.sink:FileFolderSink",
            capabilities=SinkCapabilities(
                **_EXACTLY_ONCE,
                visibility=Visibility.EPOCH,
                appends_changes=True,
                counts_changes=True,
                can_truncate=True,
                without_spark=True,
            ),
        ),
    ),
    Connector(
        "http",
        extra="webhook",
        source=SourceEntry(
            config=f"{_PACKAGE}.http_source.config:HttpSourceConfig",
            implementation=f"{_PACKAGE}.http_source.source:HttpPages",
            capabilities=SourceCapabilities(
                bounded=True, stable_snapshot=True, direct=True, without_spark=True, phase=False
            ),
        ),
    ),
    Connector(
        "kafka",
        extra="kafka",
        source=SourceEntry(
            config=f"{_PACKAGE}.kafka.config:KafkaSourceConfig",
            implementation=f"{_PACKAGE}.kafka.source:KafkaStream",
            capabilities=SourceCapabilities(
                bounded=False, filters_in_driver=True, job_mode=False, without_spark=True
            ),
        ),
        sink=SinkEntry(
            config=f"{_PACKAGE}.kafka.config:KafkaSinkConfig",
            implementation=f"{_PACKAGE}.kafka.sink:KafkaSink",
            capabilities=SinkCapabilities(
                **_EXACTLY_ONCE, visibility=Visibility.EPOCH, appends_changes=True, without_spark=True
            ),
        ),
    ),
    Connector(
        "python",
        source=SourceEntry(
            config=f"{_PACKAGE}.python.config:PythonSourceConfig",
            implementation=f"{_PACKAGE}.python.source:PythonRowSource",
            capabilities=SourceCapabilities(
                bounded=True, stable_snapshot=True, direct=True, without_spark=True
            ),
        ),
    ),
    Connector(
        "rate",
        source=SourceEntry(
            config=f"{_PACKAGE}.rate.config:RateSourceConfig",
            implementation=f"{_PACKAGE}.rate.source:RateStream",
            capabilities=SourceCapabilities(
                bounded=False, job_mode=False, phase=False, is_ordered=True, without_spark=True
            ),
        ),
    ),
    Connector(
        "redis",
        extra="redis",
        sink=SinkEntry(
            config=f"{_PACKAGE}.redis.config:RedisSinkConfig",
            implementation=f"{_PACKAGE}.redis.sink:RedisSink",
            capabilities=SinkCapabilities(
                **_EXACTLY_ONCE, counts_changes=True, can_truncate=True, without_spark=True
            ),
        ),
    ),
    Connector(
        "webhook",
        extra="webhook",
        sink=SinkEntry(
            config=f"{_PACKAGE}.webhook.config:WebhookSinkConfig",
            implementation=f"{_PACKAGE}.webhook.sink:WebhookSink",
            capabilities=SinkCapabilities(
                delivery=Delivery.AT_LEAST_ONCE,
                upsert=True,
                delete=True,
                appends_changes=True,
                idempotency_keys=True,
                without_spark=True,
            ),
        ),
    ),
    Connector(
        "print",
        sink=SinkEntry(
            config=f"{_PACKAGE}.console_config:PrintSinkConfig",
            implementation=f"{_PACKAGE}.console:PrintSink",
            capabilities=_STATELESS,
        ),
    ),
    Connector(
        "blackhole",
        sink=SinkEntry(
            config=f"{_PACKAGE}.console_config:BlackholeSinkConfig",
            implementation=f"{_PACKAGE}.console:BlackholeSink",
            capabilities=_STATELESS,
        ),
    ),
    Connector(
        "memory",
        sink=SinkEntry(
            config=f"{_PACKAGE}.memory.config:MemorySinkConfig",
            implementation=f"{_PACKAGE}.memory.sink:MemorySink",
            capabilities=replace(_STATELESS, visibility=Visibility.EPOCH, fences=True),
        ),
    ),
)

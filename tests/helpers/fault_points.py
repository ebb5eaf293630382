"""The points at which `fault_driver` injects a fault."""

from __future__ import annotations

from importlib import import_module

POINTS: dict[str, tuple[str, str, str]] = {
    "pinned": ("jobs.sources.pipeline_source:PipelineSource", "create_initial_position", "after"),
    "snapshot": ("connectors.clickhouse.source:ClickHouseTable", "create_snapshot", "after"),
    "planned": ("pipeline.protocol.ledger:Ledger", "plan", "after"),
    "reading": ("jobs.run.epoch_writer:EpochWriter", "write", "before"),
    "sinks-written": ("pipeline.protocol.ledger:Ledger", "commit", "before"),
    "committed": ("pipeline.protocol.ledger:Ledger", "commit", "after"),
    "handoff": ("jobs.sources.stream:StreamPlanner", "begin", "after"),
    "staging": ("jobs.staging.store:EpochResultStore", "_complete", "before"),
    "staged": ("jobs.staging.store:EpochResultStore", "make", "after"),
    "memory-filling": ("jobs.dynamic_tables.memory:MemoryTable", "fill", "before"),
    "memory-filled": ("jobs.dynamic_tables.memory:MemoryTable", "fill", "after"),
    "messages-decoded": ("connectors.kafka.driver_reader:DriverReader", "_decode_ahead", "after"),
    "topic-encoding": ("connectors.kafka.encoder:JsonMessageEncoder", "_encode_table", "before"),
    "topic-encoded": ("connectors.kafka.encoder:JsonMessageEncoder", "_encode_table", "after"),
    "schemas-registering": ("connectors.kafka.avro.encoder:AvroFormat", "register", "before"),
    "schemas-registered": ("connectors.kafka.avro.encoder:AvroFormat", "register", "after"),
    "avro-encoding": ("connectors.kafka.avro.encoder:AvroFormat", "create_encoder", "before"),
    "avro-encoded": ("connectors.kafka.producer:TransactionalProducer", "send", "before"),
    "topic-sending": ("connectors.kafka.producer:TransactionalProducer", "send", "after"),
    "topic-sent": ("connectors.kafka.producer:TransactionalProducer", "_commit", "before"),
    "topic-committed": ("connectors.kafka.producer:TransactionalProducer", "_commit", "after"),
    "stage-opened": ("connectors.clickhouse.stage:GenerationStage", "open", "after"),
    "stage-filled": ("connectors.clickhouse.sink:ClickHouseSink", "_stage_rows", "after"),
    "stage-announced": ("connectors.clickhouse.stage:GenerationStage", "attach", "before"),
    "stage-attached": ("connectors.clickhouse.stage:GenerationStage", "attach", "after"),
    "stage-recorded": ("connectors.clickhouse.stage:GenerationStage", "clear", "before"),
    "stage-cleared": ("connectors.clickhouse.stage:GenerationStage", "clear", "after"),
    "delta-committing": ("connectors.delta.local_log:LocalTableLog", "_put", "before"),
    "delta-committed": ("connectors.delta.local_log:LocalTableLog", "_put", "after"),
    "delta-file-written": ("connectors.delta.direct:FileTask", "_write", "after"),
    "state-written": ("connectors.clickhouse.commit_table:CommitTable", "write_state", "after"),
    "request-sending": ("connectors.http.client:HttpCaller", "send", "before"),
    "request-sent": ("connectors.http.client:HttpCaller", "send", "after"),
    "postgres-committed": ("connectors.postgres.sink:PostgresSink", "commit", "after"),
    "folder-fenced": ("connectors.files.sink_folder:SinkFolder", "raise_generation", "after"),
    "folder-writing": ("connectors.files.sink:FileFolderSink", "_write_files", "before"),
    "folder-written": ("connectors.files.sink:FileFolderSink", "_write_files", "after"),
    "folder-moved": ("connectors.files.sink_folder:SinkFolder", "_rename_commit", "before"),
    "folder-renamed": ("connectors.files.sink_folder:SinkFolder", "_rename_commit", "after"),
    "folder-published": ("connectors.files.sink_folder:SinkFolder", "publish", "after"),
    "folder-state": ("connectors.files.sink_folder:SinkFolder", "write_state", "after"),
    "entries-writing": ("connectors.redis.state:RedisState", "write", "before"),
    "entries-written": ("connectors.redis.state:RedisState", "write", "after"),
    "split-loaded": ("connectors.postgres.direct:SplitTask", "_load_split", "after"),
    "outside-filled": ("jobs.dynamic_tables.postgres:PostgresTableBackend", "fill", "after"),
    "refresh-begun": ("pipeline.protocol.ledger:Ledger", "begin_refresh", "after"),
    "refresh-ending": ("pipeline.protocol.ledger:Ledger", "end_refresh", "before"),
}
"""Module and class, method, and whether it happens before or after the method."""
DURING: dict[str, tuple[str, str]] = {
    "topic-committing": ("connectors.kafka.producer:TransactionalProducer", "_commit"),
    "split-loading": ("connectors.postgres.direct:SplitTask", "_load_split"),
    "stage-attaching": ("connectors.clickhouse.stage:GenerationStage", "attach"),
    "entries-under-way": ("connectors.redis.state:RedisState", "write"),
    "folder-writing-files": ("connectors.files.sink:FileFolderSink", "_write_files"),
    "folder-publishing": ("connectors.files.sink_folder:SinkFolder", "publish"),
    "postgres-committing": ("connectors.postgres.sink:PostgresSink", "commit"),
    "request-under-way": ("connectors.http.client:HttpCaller", "send"),
}
"""Module and class, and method: it happens while the method runs."""
POSTGRES, DELTA = "connectors.postgres.sink:PostgresSink", "connectors.delta.sink:DeltaTableSink"
"""The sinks of the points `postgres-only` and `delta-only`."""


def find_class(name: str) -> type:
    """Return the class of a point. A driver imports only what its run and its point need."""
    module, _, owner = name.partition(":")
    return getattr(import_module(f"headrace.{module}"), owner)

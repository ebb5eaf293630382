"""Creates data for every registered source.

The outside place, what a lane keeps of it, and the pieces that it is read in.

Bounded and unbounded sources have different methods and the same promises. `fixed` is what a ledger would
keep (a snapshot's handle; two positions), a piece is what one epoch reads of it (a split; a range of
positions). Both are JSON.
"""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.connectors import registry, splitting
from headrace.connectors.clickhouse.config import ClickHouseSourceConfig
from headrace.connectors.delta.config import DeltaSourceConfig
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.config import IcebergSourceConfig
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.source_base import BoundedSource, Snapshot
from headrace.connectors.stream_base import ReadLimits, UnboundedSource
from headrace.pipeline.config.sections import ClickHouseConnection, IcebergSettings, KafkaConnection
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, UserError
from headrace.pipeline.protocol.epochs import Json
from headrace.services import Services

NODE, ORDINAL = "src", 3
PIECE = 10  # rows, about
Rows = Sequence[tuple[int, str | None]]


def until(result: Callable[[], bool]) -> None:
    """Polls what an outside system only shows after a moment."""
    deadline = time.monotonic() + 300
    while not result():
        assert time.monotonic() < deadline, f"not true within 300 s: {result}"
        time.sleep(0.05)


def refused(ask: Callable[[], object], *named: str) -> UserError:
    """The mistake that `ask` is refused for.

    A person's error that names the node and `named`, without a word of a stack.
    """
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever Spark wraps it in
        ask()
    error = caught.value if isinstance(caught.value, HeadraceError) else explain_failure(caught.value)
    assert isinstance(error, UserError), repr(caught.value)
    assert error.node == NODE
    message = str(error)
    assert [one for one in named if one not in message] == [], message
    assert [
        one for one in ("Traceback", "stacktrace", "\tat ", "Py4J", "org.apache", "java.") if one in message
    ] == [], message
    return error


class SourceWorld(ABC):
    """One kind of source with a table or a topic of its own.

    Columns `id` (int64, the key) and `v` (string).
    """

    kind: ClassVar[str]
    bounded: ClassVar[bool]
    columns: ClassVar[tuple[str, ...]] = ("id", "v")
    has_scope: ClassVar[bool] = True
    """Whether settings name the server or the folder that `describe` has as its scope."""
    foresees: ClassVar[bool] = True
    """Whether a look knows the pieces of a snapshot that was not created."""

    def __init__(self, spark: SparkSession, services: Services) -> None:
        self.spark = spark
        self.services = services
        self.name = ""
        self.opened: list[Any] = []

    def open(self, name: str = "", settings: Settings | None = None, **node: Any) -> Any:
        """A source of its own, as another process would open it."""
        model = self.node(name or self.name, **node)
        make: Any = registry.bounded_source if self.bounded else registry.unbounded_source
        result = make(NODE, model, settings or self.settings(), ORDINAL)
        self.opened.append(result)
        return result

    def close(self) -> None:
        """Closes what the test opened."""
        for one in self.opened:
            one.close()

    def ids(self, source: Any, fixed: Json, pieces: Sequence[Json]) -> list[int]:
        """The ids of some pieces, sorted."""
        return sorted(row.id for row in self.read(source, fixed, pieces).collect())

    @abstractmethod
    def node(self, name: str, **more: Any) -> Any:
        """The node that reads the table or topic `name`."""

    @abstractmethod
    def settings(self, **wrong: Any) -> Settings:
        """Settings that lead to the server; `wrong` replaces parts of them."""

    @abstractmethod
    def add(self, rows: Rows) -> None:
        """Writes rows, later than all before."""

    @abstractmethod
    def schema(self, source: Any) -> Any:
        """The payload's schema."""

    @abstractmethod
    def fixed(self, source: Any) -> Json:
        """The rows there are now, as a ledger keeps it."""

    @abstractmethod
    def pieces(self, source: Any, fixed: Json) -> list[Json]:
        """Consecutive pieces that together are `fixed`, of about `PIECE` rows."""

    @abstractmethod
    def read(self, source: Any, fixed: Json, pieces: Sequence[Json]) -> DataFrame:
        """The rows of some pieces."""

    @abstractmethod
    def lose(self, fixed: Json) -> None:
        """The outside system drops the rows that `fixed` stands for."""

    @abstractmethod
    def never_was(self, fixed: Json) -> Json:
        """Something like `fixed` that the outside system never had."""

    @abstractmethod
    def open_resources(self) -> set[int]:
        """What this process keeps open for its sources.

        The local ports of connections, a number for each cached set of files.
        """

    def _open_connections(self, port: int) -> set[int]:
        """Local ports. A count would change when a connection of an earlier test ends."""
        return {
            one.laddr.port
            for one in psutil.Process().net_connections("tcp")
            if one.raddr and one.raddr.port == port
        }


class BoundedWorld(SourceWorld):
    """A pinned snapshot, read split by split."""

    bounded = True

    def schema(self, source: BoundedSource) -> Any:
        return source.schema(self.spark)

    def fixed(self, source: BoundedSource) -> Json:
        return source.create_snapshot(self.spark, f"token{secrets.token_hex(4)}").handle

    def pieces(self, source: BoundedSource, fixed: Json) -> list[Json]:
        return list(source.splits(self.spark, Snapshot(fixed, fixed["pinned"]), None, None))

    def read(self, source: BoundedSource, fixed: Json, pieces: Sequence[Json]) -> DataFrame:
        return source.read(self.spark, Snapshot(fixed, fixed["pinned"]), pieces)


_UNMERGED = (
    "SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
)


class ClickHouseWorld(BoundedWorld):
    """A MergeTree table by `id`; every `add` is a part that stays one."""

    kind = "clickhouse"

    def __init__(self, spark: SparkSession, services: Services, database: str) -> None:
        super().__init__(spark, services)
        self.name = f"{database}.rows"
        self.do(
            f"CREATE TABLE {self.name} (id Int64, v Nullable(String)) ENGINE = MergeTree ORDER BY id"
            f" {_UNMERGED}"
        )

    def do(self, statement: str) -> None:
        """Runs a statement as somebody else would."""
        import clickhouse_connect

        with clickhouse_connect.get_client(**self.services.clickhouse.client_arguments()) as client:
            client.command(statement)

    def node(self, name: str, **more: Any) -> Any:
        return ClickHouseSourceConfig.model_validate(
            {"type": "clickhouse", "table_name": name, "split_rows": PIECE} | more
        )

    def settings(self, **wrong: Any) -> Settings:
        place = self.services.clickhouse
        return Settings(
            clickhouse_source=ClickHouseConnection.model_validate(
                {"url": place.url, "user": place.username, "password": place.password} | wrong
            )
        )

    def add(self, rows: Rows) -> None:
        import clickhouse_connect

        with clickhouse_connect.get_client(**self.services.clickhouse.client_arguments()) as client:
            client.insert(self.name, [list(row) for row in rows], column_names=["id", "v"])

    def lose(self, fixed: Json) -> None:
        self.do(f"DROP TABLE {fixed['database']}.{fixed['table']} SYNC")

    def never_was(self, fixed: Json) -> Json:
        return fixed | {"table": "_headrace_never"}

    def open_resources(self) -> set[int]:
        return self._open_connections(int(self.services.clickhouse.url.rsplit(":", 1)[1].strip("/")))


class IcebergWorld(BoundedWorld):
    """A table of a hadoop warehouse; every `add` is a commit with files of at most `PIECE` rows."""

    kind = "iceberg"

    def __init__(
        self, spark: SparkSession, services: Services, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(spark.newSession(), services)
        patch.setattr(splitting, "SPLIT_ROWS", PIECE)
        self.folder = folder
        self.name = f"n.t{secrets.token_hex(4)}"
        self.writer = spark.newSession()
        catalog = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": str(folder),
            ".cache-enabled": "false",
        }
        for suffix, value in catalog.items():
            self.writer.conf.set(f"spark.sql.catalog.w{suffix}", value)
        self.writer.sql(f"CREATE TABLE w.{self.name} (id bigint, v string) USING iceberg")

    def node(self, name: str, **more: Any) -> Any:
        return IcebergSourceConfig.model_validate({"type": "iceberg", "table_name": name} | more)

    def settings(self, **wrong: Any) -> Settings:
        return Settings(iceberg=IcebergSettings.model_validate({"warehouse": str(self.folder)} | wrong))

    def add(self, rows: Rows) -> None:
        frame = self.writer.createDataFrame(list(rows), "id long, v string").coalesce(1)
        frame.writeTo(f"w.{self.name}").option("write.target-file-size-bytes", "1").append()

    def lose(self, fixed: Json) -> None:
        self.add([(-1, "later")])
        table = WarehouseTable(str(self.folder), self.name, NODE)
        table.load(self.spark).expireSnapshots().expireSnapshotId(fixed["snapshot_id"]).commit()

    def never_was(self, fixed: Json) -> Json:
        return fixed | {"snapshot_id": 12345}

    def open_resources(self) -> set[int]:
        jvm: Any = self.spark._jvm
        return set(range(jvm.org.apache.iceberg.spark.SparkTableCache.get().size()))


class DeltaWorld(BoundedWorld):
    """A table in a folder; every `add` is a commit with one file."""

    kind = "delta"
    has_scope = False

    def __init__(
        self, spark: SparkSession, services: Services, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(spark.newSession(), services)
        patch.setattr(splitting, "SPLIT_ROWS", PIECE)
        self.folder = folder / f"t {secrets.token_hex(4)}%20"
        self.name = str(self.folder)
        self.do(f"CREATE TABLE delta.`{self.name}` (id bigint, v string) USING delta")

    def do(self, statement: str) -> None:
        """Run a statement as another program does."""
        self.spark.sql(statement)

    def node(self, name: str, **more: Any) -> Any:
        return DeltaSourceConfig.model_validate({"type": "delta", "path": name} | more)

    def settings(self, **wrong: Any) -> Settings:
        return Settings.model_validate(wrong)

    def add(self, rows: Rows) -> None:
        frame = self.spark.createDataFrame(list(rows), "id long, v string").coalesce(1)
        frame.write.format("delta").mode("append").save(self.name)

    def lose(self, fixed: Json) -> None:
        """Remove the version from the log, as its clean-up does after a checkpoint."""
        self.add([(-1, "later")])
        session: Any = self.spark
        log = session._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, self.name)
        log.checkpoint()
        for path in sorted((self.folder / "_delta_log").glob("*.json"))[: fixed["version"] + 1]:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def never_was(self, fixed: Json) -> Json:
        return fixed | {"version": 12345}

    def open_resources(self) -> set[int]:
        return set(range(sum(len(one._table._files) for one in self.opened)))


class FileWorld(BoundedWorld):
    """A folder of parquet files; every `add` is a file with row groups of at most `PIECE` rows."""

    kind = "file"
    has_scope = False

    def __init__(
        self, spark: SparkSession, services: Services, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(spark.newSession(), services)
        patch.setattr(splitting, "SPLIT_ROWS", PIECE)
        self.folder = folder / f"t{secrets.token_hex(4)}"
        self.folder.mkdir()
        self.name = str(self.folder)
        self.written = 0
        self.add([])

    def node(self, name: str, **more: Any) -> Any:
        return FileSourceConfig.model_validate(
            {"type": "file", "path": name, "format": "parquet", "mode": "bounded"} | more
        )

    def settings(self, **wrong: Any) -> Settings:
        return Settings.model_validate(wrong)

    def add(self, rows: Rows) -> None:
        self.put(
            pa.table(
                {
                    "id": pa.array([row[0] for row in rows], "int64"),
                    "v": pa.array([row[1] for row in rows], "string"),
                }
            )
        )

    def put(self, table: pa.Table) -> None:
        """Writes one more file."""
        pq.write_table(table, self.folder / f"part-{self.written}.parquet", row_group_size=PIECE)
        self.written += 1

    def lose(self, fixed: Json) -> None:
        for path in Path(fixed["root"]).glob("part-1.parquet"):
            path.unlink()

    def never_was(self, fixed: Json) -> Json:
        return fixed | {"root": "/nowhere"}

    def open_resources(self) -> set[int]:
        return set(range(sum(len(one.listed) for one in self.opened)))


class KafkaWorld(SourceWorld):
    """A topic of two partitions; a key stays in one of them."""

    kind = "kafka"
    bounded = False
    partitions = 2

    def __init__(self, spark: SparkSession, services: Services, topic: Callable[..., str]) -> None:
        from confluent_kafka import Producer

        super().__init__(spark, services)
        self.name = topic(self.partitions)
        self.producer = Producer({"bootstrap.servers": services.kafka.brokers, "log_level": 0})

    def node(self, name: str, **more: Any) -> Any:
        return KafkaSourceConfig.model_validate(
            {"type": "kafka", "topic": name, "schema": {"id": "int64", "v": "string"}} | more
        )

    def settings(self, **wrong: Any) -> Settings:
        return Settings(
            kafka_source=KafkaConnection.model_validate({"brokers": self.services.kafka.brokers} | wrong)
        )

    def add(self, rows: Rows, **more: Any) -> None:
        for number, value in rows:
            self.producer.produce(
                self.name, json.dumps({"id": number, "v": value}), partition=number % self.partitions, **more
            )
        assert self.producer.flush(30) == 0

    def schema(self, source: UnboundedSource) -> Any:
        return source.schema()

    def fixed(self, source: UnboundedSource) -> Json:
        return {"start": source.earliest_offsets(), "end": source.end_offsets()}

    def pieces(self, source: UnboundedSource, fixed: Json) -> list[Json]:
        at, ends, result = fixed["start"], fixed["end"]["offsets"], []
        while at["offsets"] != ends:
            reached = source.next_end_offsets(at, ReadLimits(rows=PIECE))
            offsets = {part: min(offset, ends[part]) for part, offset in reached["offsets"].items()}
            result.append({"start": at, "end": reached | {"offsets": offsets}})
            at = result[-1]["end"]
        return result

    def read(self, source: UnboundedSource, fixed: Json, pieces: Sequence[Json]) -> DataFrame:
        listed = pieces or [{"start": fixed["end"], "end": fixed["end"]}]
        return reduce(
            DataFrame.unionByName, [source.read(self.spark, piece["start"], piece["end"]) for piece in listed]
        )

    def lose(self, fixed: Json) -> None:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.services.kafka.brokers, "log_level": 0})
        gone = [
            TopicPartition(self.name, int(part), offset) for part, offset in fixed["end"]["offsets"].items()
        ]
        for done in admin.delete_records(gone).values():
            done.result(30)

    def never_was(self, fixed: Json) -> Json:
        ends = {part: offset + 5 for part, offset in fixed["end"]["offsets"].items()}
        return fixed | {"end": fixed["end"] | {"offsets": ends}}

    def open_resources(self) -> set[int]:
        return self._open_connections(int(self.services.kafka.brokers.rsplit(":", 1)[1]))

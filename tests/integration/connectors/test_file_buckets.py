"""Files in a bucket, by a real server: listed, read, pinned by their tags, and refused with clear errors."""

from __future__ import annotations

import io
import pickle
import secrets
from collections.abc import Iterator
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.avro_files import write_avro
from helpers.object_store import SECRET, ObjectStore
from pyspark.sql import SparkSession

from headrace.connectors import buckets, registry
from headrace.connectors.files.bucket_storage import BucketStorage, bucket_storage
from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.known_files import offset_of
from headrace.connectors.row_errors import explain_failure
from headrace.connectors.stream_base import ReadLimits
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, PipelineStateError, TargetError, TransientError
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.sql.system_columns import POS

ALL = ReadLimits(rows=1_000_000)
COLUMNS = {"id": "int64"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    result = ObjectStore(tmp_path_factory.mktemp("objects") / "store")
    result.start()
    yield result
    result.stop()


class Folder:
    """A folder of one test in the bucket."""

    def __init__(self, server: ObjectStore) -> None:
        self.name = f"t{secrets.token_hex(4)}"
        self.path = f"s3://headrace/{self.name}"
        self.settings = Settings.model_validate({"file_source": {"s3": server.settings}})
        self.storage = bucket_storage(self.path, self.settings.file_source.s3)
        self._store = self.storage.bucket.open()

    def put(self, name: str, content: bytes) -> None:
        obstore.put(self._store, f"{self.name}/{name}", content)

    def put_parquet(self, name: str, first: int, end: int) -> None:
        file = io.BytesIO()
        pq.write_table(pa.table({"id": pa.array(range(first, end), pa.int64())}), file, row_group_size=10)
        self.put(name, file.getvalue())

    def remove(self, name: str) -> None:
        obstore.delete(self._store, f"{self.name}/{name}")

    def source(self, kind: str = "parquet", rest: str = "", *, stream: bool = False, **node: Any) -> Any:
        options = {"path": self.path + rest, "format": kind} | node
        options |= {"poll_interval": "0s"} if stream else {"mode": "bounded"}
        open_source = registry.unbounded_source if stream else registry.bounded_source
        return open_source("src", FileSourceConfig.model_validate(options), self.settings, 0)

    def names(self, rest: str = "") -> list[str]:
        result = self.storage.list_files(self.path + rest, "src")
        return [file.path.removeprefix(f"{self.path}/") for file in result]


@pytest.fixture
def folder(server: ObjectStore) -> Folder:
    return Folder(server)


def history(source: Any, spark: SparkSession, fixed: Any = None) -> list[int]:
    snapshot = fixed or source.create_snapshot(spark, "token")
    rows = source.read(spark, snapshot, source.splits(spark, snapshot, None, None)).collect()
    return [row.id for row in sorted(rows, key=lambda row: row[POS])]


def stream_rows(source: Any, spark: SparkSession, start: Json, end: Json) -> list[int]:
    return [row.id for row in sorted(source.read(spark, start, end).collect(), key=lambda row: row[POS])]


def refused(ask: Any) -> HeadraceError:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever Spark wraps it in
        ask()
    error = explain_failure(caught.value) or caught.value
    assert isinstance(error, HeadraceError), error
    assert SECRET not in f"{error}{error.hint}"
    return error


def test_a_path_is_an_object_a_folder_or_a_pattern(folder: Folder) -> None:
    names = [
        "a.csv",
        "a.csv.bak",
        "b/part-10.csv",
        "b/part-9.csv",
        "b/c/x.csv",
        "_SUCCESS",
        ".x/y.csv",
        "b/_t/z.csv",
    ]
    for name in names:
        folder.put(name, b"id\n1\n")
    shown = ["a.csv", "a.csv.bak", "b/c/x.csv", "b/part-9.csv", "b/part-10.csv"]
    assert folder.names() == folder.names("/") == shown
    assert folder.names("/a.csv") == ["a.csv"]
    assert folder.names("/b") == ["b/c/x.csv", "b/part-9.csv", "b/part-10.csv"]
    assert folder.names("/*.csv") == ["a.csv"]
    assert folder.names("/*") == shown
    assert folder.names("/b/part-?.csv") == ["b/part-9.csv"]
    assert folder.names("/**/*.csv") == ["a.csv", "b/c/x.csv", "b/part-9.csv", "b/part-10.csv"]
    assert folder.names("/b/part-[!1]*") == ["b/part-9.csv"]
    assert folder.names("/nothing") == folder.names("/b/part") == []


def test_history_of_every_format(folder: Folder, spark: SparkSession, tmp_path: Any) -> None:
    folder.put_parquet("p/a.parquet", 0, 35)
    folder.put_parquet("p/b.parquet", 35, 40)
    assert history(folder.source("parquet", "/p"), spark) == list(range(40))
    folder.put("c/day=2025-01-31/a.csv", b"id\n" + b"".join(b"%d\n" % number for number in range(9_000)))
    assert history(folder.source("csv", "/c", schema=COLUMNS), spark) == list(range(9_000))
    folder.put("j/a.json", b'{"id": 1}\n{"id": 2}')
    assert history(folder.source("json", "/j", schema=COLUMNS), spark) == [1, 2]
    record = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    write_avro(tmp_path / "a.avro", record, [[{"id": 1}], [{"id": 2}, {"id": 3}]], "deflate")
    folder.put("v/a.avro", (tmp_path / "a.avro").read_bytes())
    assert history(folder.source("avro", "/v"), spark) == [1, 2, 3]


def test_an_object_that_changed_is_never_read(folder: Folder, spark: SparkSession) -> None:
    """The same size, at once: only the tag differs."""
    folder.put("a.csv", b"id\n1\n2\n")
    source = folder.source("csv", schema=COLUMNS)
    fixed = source.create_snapshot(spark, "token")
    splits = source.splits(spark, fixed, None, None)
    folder.put("a.csv", b"id\n1\n3\n")
    again = folder.source("csv", schema=COLUMNS)
    error = refused(lambda: again.read(spark, fixed, splits))
    assert isinstance(error, PipelineStateError)
    assert "a.csv` changed after it was pinned: it was written to" in error.message
    folder.remove("a.csv")
    assert "it is missing" in refused(lambda: again.read(spark, fixed, splits)).message


def test_an_object_that_changes_while_it_is_read(folder: Folder) -> None:
    folder.put_parquet("a.parquet", 0, 1_000)
    (file,) = folder.storage.list_files(folder.path, "src")
    with folder.storage.open(file) as opened:
        opened.stream.seek(file.size - 8)
        assert opened.stream.read()[-4:] == b"PAR1"
        folder.put_parquet("a.parquet", 1, 1_001)
        assert opened.change()
        opened.stream.seek(0)
        with pytest.raises(OSError, match="written to"):
            opened.stream.read(1 << 23)


def test_a_stream_reads_new_objects_once(folder: Folder, spark: SparkSession) -> None:
    folder.put_parquet("a.parquet", 0, 25)
    source = folder.source(stream=True)
    start = source.initial_offsets()
    first = source.next_end_offsets(start, ALL)
    assert offset_of(first) == 25  # an object is complete, however young
    folder.put_parquet("sub/b.parquet", 25, 30)
    second = folder.source(stream=True).next_end_offsets(first, ALL)
    assert stream_rows(source, spark, first, second) == list(range(25, 30))
    assert stream_rows(folder.source(stream=True), spark, start, second) == list(range(30))
    table = source.read_table(spark, first, second)
    assert table["id"].to_pylist() == list(range(25, 30))
    folder.put_parquet("a.parquet", 1, 26)
    error = refused(lambda: folder.source(stream=True).next_end_offsets(second, ALL))
    assert isinstance(error, PipelineStateError)
    assert f"`{folder.path}/a.parquet` changed after it was read" in error.message


def test_refusals_name_the_bucket_and_no_secret(
    folder: Folder, server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def storage(**values: str) -> BucketStorage:
        settings = Settings.model_validate({"file_source": {"s3": server.settings | values}})
        assert SECRET not in repr(settings)
        return bucket_storage(folder.path, settings.file_source.s3)

    wrong = storage(secret_access_key="another word")
    assert "word" not in repr(wrong)
    error = refused(lambda: wrong.list_files(folder.path, "src"))
    assert isinstance(error, TargetError)
    assert error.message.startswith("s3://headrace refuses access")
    assert error.node == "src"
    patient = buckets.open_bucket.__wrapped__
    monkeypatch.setattr(buckets, "open_bucket", lambda bucket: patient(bucket, {"max_retries": 0}))
    error = refused(lambda: storage(endpoint="http://127.0.0.1:9").list_files(folder.path, "src"))
    assert isinstance(error, TransientError)
    absent = bucket_storage("s3://absent-bucket/x", folder.settings.file_source.s3)
    error = refused(lambda: absent.list_files("s3://absent-bucket/x", "src"))
    assert "s3://absent-bucket" in error.message
    with pytest.raises(TargetError, match="no files matching"):
        folder.source().schema(None)


def test_tasks_carry_the_storage(folder: Folder) -> None:
    assert pickle.loads(pickle.dumps(folder.storage)) == folder.storage


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3a://bucket/a", "s3://bucket"),
        ("gs://bucket/a", "gs://bucket"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net"),
    ],
)
def test_buckets_of_other_providers_open(path: str, url: str) -> None:
    result = bucket_storage(path, Settings().file_source.s3)
    assert result.bucket.url == url
    assert result.bucket.open()

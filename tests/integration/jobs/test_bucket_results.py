"""Stored results in a bucket of a real object store: complete or not there, and the first manifest counts."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import obstore
import pytest
from helpers.object_store import SECRET, ObjectStore
from obstore.store import S3Store
from pyspark.sql import SparkSession

from headrace.connectors import buckets
from headrace.connectors.buckets import Bucket
from headrace.jobs.staging.bucket_files import BucketFiles
from headrace.jobs.staging.store import EpochResultStore, ResultStore, open_files
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError, SettingsError, TransientError, UserError
from headrace.pipeline.protocol.epochs import EpochPlan, Phase

UUID = "0a6c1d2e-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    result = ObjectStore(tmp_path_factory.mktemp("objects"))
    result.start()
    yield result
    result.stop()


@pytest.fixture
def settings(server: ObjectStore, tmp_path: Any) -> Settings:
    staging = {"path": f"s3://headrace/{tmp_path.name}/rows", "s3": server.settings, "keep_epochs": 2}
    return Settings.model_validate({"home": tmp_path, "staging": staging})


def stages(settings: Settings, generation: int = 1, number: int = 7) -> EpochResultStore:
    plan = EpochPlan(number, Phase.LIVE, {"s": 1}, {"s": 2}, "hash", datetime(2026, 1, 1, tzinfo=UTC))
    return ResultStore(settings, UUID, "main", generation).for_epoch(plan, "hash")


def names(server: ObjectStore, settings: Settings) -> list[str]:
    prefix = settings.staging.bucket.removeprefix("s3://headrace/")
    store = S3Store("headrace", prefix=prefix, config=server.settings, client_options={"allow_http": True})  # type: ignore[arg-type]
    return sorted(one["path"] for page in obstore.list(store) for one in page)


@pytest.fixture
def random_rows(spark: SparkSession) -> Any:
    """Rows that are others each time they are computed, of many types."""
    return spark.range(0, 20, 1, 3).selectExpr(
        "id",
        "reflect('java.util.UUID', 'randomUUID') AS `a name, with (odd) chars.`",
        "TIMESTAMP'0001-01-01 00:00:00.123456' AS old",
        "CAST(id AS DECIMAL(38, 2)) AS amount",
        "map('a', id) AS m",
        "array(struct(DATE'1500-01-01' AS d, CAST(NULL AS BINARY) AS b)) AS nested",
        "INTERVAL '1 02:03:04.5' DAY TO SECOND AS span",
    )


def rows_of(frame: Any) -> list[Any]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row["id"])


def test_rows_are_the_same_in_every_process(
    server: ObjectStore, settings: Settings, random_rows: Any
) -> None:
    made = stages(settings).make("node", random_rows)
    first = stages(settings).read("node", random_rows)
    second = stages(settings, generation=2).read("node", random_rows)
    assert rows_of(first.frame) == rows_of(second.frame) != rows_of(random_rows)
    assert (made.rows, first.rows) == (20, 20)
    assert [field.dataType for field in first.frame.schema] == [
        field.dataType for field in random_rows.schema
    ]
    assert len(names(server, settings)) == len(made.files) + 1 == 4
    none = stages(settings, number=8)
    assert none.make("node", random_rows.where("id < 0")).rows == 0
    assert none.read("node", random_rows).frame.count() == 0


def test_of_two_writers_the_first_manifest_counts(
    server: ObjectStore, settings: Settings, random_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, early = stages(settings, generation=1), stages(settings, generation=2)
    create = BucketFiles.create
    overtaken: list[Any] = []

    def overtake(*arguments: Any) -> bool:
        if not overtaken:
            overtaken.append(None)
            overtaken.append(early.make("node", random_rows))
        return create(*arguments)

    monkeypatch.setattr(BucketFiles, "create", overtake)
    assert late.make("node", random_rows) == overtaken[1]
    assert overtaken[1].generation == 2
    left = {name.split("/")[4] for name in names(server, settings)}
    assert left == {"manifest.json", overtaken[1].attempt}


def test_a_manifest_whose_answer_was_lost_counts(settings: Settings) -> None:
    """The client sends the request again, and the server has the object already."""
    files = open_files(settings)
    path = files.root / "manifest.json"
    assert files.create(path, "mine")
    assert files.create(path, "mine")
    assert not files.create(path, "another")
    assert files.read_text(path) == "mine"


def test_a_missing_or_damaged_object_is_reported(
    server: ObjectStore, settings: Settings, random_rows: Any
) -> None:
    stages(settings).make("node", random_rows)
    (part, *_) = [name for name in names(server, settings) if name.endswith(".parquet")]
    store = Bucket(settings.staging.bucket, **server.settings).open()
    obstore.put(store, part, b"PAR1")
    with pytest.raises(PipelineStateError, match="4 bytes"):
        stages(settings).load_manifest("node")
    obstore.delete(store, part)
    with pytest.raises(PipelineStateError, match="no bytes"):
        stages(settings).load_manifest("node")


def test_old_epochs_are_removed(server: ObjectStore, settings: Settings, random_rows: Any) -> None:
    for number in range(1, 5):
        stages(settings, number=number).make("node", random_rows.limit(1))
    results = ResultStore(settings, UUID, "main", 1)
    results.sweep(4)
    assert len({name.split("/")[2] for name in names(server, settings)}) == 4  # it has used no results yet
    results.is_used = True
    results.sweep(4)
    assert {int(name.split("/")[2].split("-")[0]) for name in names(server, settings)} == {3, 4}


def test_failures_name_the_bucket_and_no_secret(
    server: ObjectStore, settings: Settings, random_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(**values: str) -> Settings:
        staging = {"path": settings.staging.bucket, "s3": server.settings | values}
        return Settings.model_validate({"home": settings.home, "staging": staging})

    refused = change(secret_access_key="another word")
    with pytest.raises(UserError, match=r"cannot be stored in s3://headrace/.*privileges") as caught:
        stages(refused).make("node", random_rows)
    assert "word" not in f"{caught.value}{Bucket('s3://a/b', **server.settings)!r}"
    assert SECRET not in repr(refused)
    patient = buckets.open_bucket.__wrapped__
    monkeypatch.setattr(buckets, "open_bucket", lambda bucket: patient(bucket, {"max_retries": 0}))
    with pytest.raises(TransientError, match=r"s3://headrace/.* failed"):
        stages(change(endpoint="http://127.0.0.1:9")).load_manifest("node")


def test_tasks_carry_the_bucket(settings: Settings) -> None:
    task = open_files(settings).write_task("node", open_files(settings).root / "a")
    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize("path", ["gs://bucket/folder", "s3://B", "s3:///folder", "s3a://bucket/folder"])
def test_other_addresses_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="s3://bucket/folder"):
        Settings.model_validate({"staging": {"path": path}})


def test_the_package_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(SettingsError, match="obstore") as caught:
        Bucket("s3://bucket-without-package/folder").open()
    assert "headrace[object-store]" in caught.value.hint

"""A class-data archive: the JVM maps what a training run has loaded, and starts in about half the time.

Java ignores an archive that does not fit (another Java, other jars), so a stale one costs time and nothing else.
Java's own page: "Class Data Sharing" in the java command's reference, under application class data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.jobs.cache import locked, user_cache
from headrace.jobs.jars import jar_folder
from headrace.jobs.java import Java, find_java
from headrace.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TIMEOUT = 240.0
_DUMP_TIMEOUT = 120.0


def archive_options(java: Java) -> str:
    """The JVM options that use the archive of this installation; empty if none was made."""
    path = _path(java)
    # Java warns about archives on standard output, which belongs to the command line.
    return f"-XX:SharedArchiveFile={path} -Xlog:disable -Xlog:all=warning:stderr" if path.is_file() else ""


def ensure_archive(java: Java | None = None) -> Path | None:
    """Makes the archive if it is not there; takes some twenty seconds. None, and a log line with the reason, where that fails."""
    path = _path(java or find_java())
    with locked(path.parent / "lock"):
        if not path.is_file():
            _remove_orphans(path.parent)
            _train(path)
    return path if path.is_file() else None


def has_archive() -> bool:
    """Whether `ensure_archive` has nothing to do."""
    return _path(find_java()).is_file()


def _path(java: Java) -> Path:
    """One per Java, installed pyspark and jar set: Java compares the whole class path."""
    parts = [str(java.path), java.version, str(_pyspark()), jar_folder().name, "1"]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return user_cache() / "archives" / f"{digest}.jsa"


def _pyspark() -> Path:
    spec = find_spec("pyspark")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path()


def _remove_orphans(folder: Path) -> None:
    """Archives of environments that are gone; each takes over 100 MB."""
    for note in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not Path(json.loads(note.read_text())["pyspark"]).is_dir():
                note.with_suffix(".jsa").unlink(missing_ok=True)
                note.unlink()


def _train(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="training-", dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        command = [sys.executable, "-m", "headrace.jobs.archive", str(fresh)]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True, stdin=subprocess.DEVNULL)
            path.with_suffix(".json").write_text(json.dumps({"pyspark": str(_pyspark())}))
            fresh.rename(path)
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", "") or "").strip()[-400:]
            log.warning("no class-data archive, Spark will start more slowly: error=%s said=%s", error, said)


def main() -> None:
    """The training run: what most pipelines make Spark load, then an orderly end, at which Java writes the archive."""
    from headrace.jobs.session import start_session, stop_session

    target = Path(sys.argv[1])
    home = target.parent
    options = f"-XX:ArchiveClassesAtExit={target}"
    settings = Settings.model_validate({"home": home, "spark": {"master": "local[2]", "driver_memory": "1g", "jvm_options": options}})
    spark = start_session(settings, ["delta"])
    _rows(spark)
    _delta(spark, home / "table")
    _kafka(spark)
    stop_session(spark, patience=_DUMP_TIMEOUT)


def _rows(spark: SparkSession) -> None:
    """Arrow in, SQL, Arrow out, and Python workers."""
    import pyarrow as pa

    table = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"], "doc": ['{"a": 1}', '{"a": 2}']})
    frame = spark.createDataFrame(table)
    frame.createOrReplaceTempView("trained")
    picked = spark.sql(
        "SELECT id, upper(name) AS name, from_json(doc, 'a INT').a AS a, current_timestamp() AS at FROM trained WHERE id > 0"
        " UNION ALL SELECT id, name, NULL, NULL FROM trained"
    )
    picked.repartition(2, "id").mapInArrow(lambda batches: batches, picked.schema).toArrow()
    picked.groupBy("id").count().orderBy("id").toArrow()


def _delta(spark: SparkSession, path: Path) -> None:
    """A keyed table: made, merged into, read."""
    from delta.tables import DeltaTable

    builder: Any = DeltaTable.createIfNotExists(spark).location(str(path)).property("delta.enableDeletionVectors", "true")
    builder.addColumn("id", "bigint").addColumn("name", "string").execute()
    table: Any = DeltaTable.forPath(spark, str(path))
    for rows in (3, 5):
        source = spark.range(rows).selectExpr("id", "'x' AS name").alias("s")
        merge = table.alias("t").merge(source, "t.id = s.id").whenMatchedUpdateAll().whenNotMatchedInsertAll()
        merge.execute()
    spark.range(3).selectExpr("id", "'x' AS name").write.format("delta").mode("append").save(str(path))
    spark.read.format("delta").load(str(path)).toArrow()


def _kafka(spark: SparkSession) -> None:
    """The client's classes; there is no broker to talk to."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "none", "fetchOffset.numRetries": "0"}
    short = {"kafka.default.api.timeout.ms": "500", "kafka.request.timeout.ms": "400"}
    with contextlib.suppress(Exception):
        spark.read.format("kafka").options(**options, **short).load().toArrow()
    jvm: Any = spark._jvm  # noqa: SLF001
    names = jvm.java.util.Properties()
    for key, value in {"bootstrap.servers": "127.0.0.1:9", "group.id": "none"}.items():
        names.setProperty(key, value)
    for side in ("key", "value"):
        names.setProperty(f"{side}.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer")
    with contextlib.suppress(Exception):
        jvm.org.apache.kafka.clients.consumer.KafkaConsumer(names).close()


if __name__ == "__main__":
    main()

"""The versions of a Delta table, from a local log, or through Delta's own classes in the JVM."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.connectors.delta.data_files import DataFile
from headrace.connectors.delta.jvm_log import open_delta_log, parse_action, update_delta_log
from headrace.connectors.delta.local_snapshot import LocalSnapshot, absolute_path
from headrace.connectors.delta.local_versions import LocalVersions
from headrace.connectors.java_classes import java_class
from headrace.connectors.lakehouse_source import TableFile, VersionedTable
from headrace.connectors.lazy_session import ensure_session
from headrace.connectors.local_relation import wrap_java_frame
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError, TargetError, TransientError
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

VERSION, TABLE_ID = "version", "table_id"


class DeltaVersions(VersionedTable):
    """The versions of the table at a path. A table that is created again there has another identifier."""

    file_column = "_metadata.file_path"
    place_column = "_metadata.row_index"

    def __init__(self, path: str, node: str, settings: Settings) -> None:
        self.name = absolute_path(path)
        self._node = node
        self._local = LocalVersions(self.name, settings)
        self._files: dict[int, dict[str, Json]] = {}

    def choose_version(self, spark: SparkSession, wanted: int | None) -> Json | None:
        """See `VersionedTable.choose_version`."""
        if (result := self._local.find(wanted)) is not None:
            return {VERSION: result.version.number, TABLE_ID: result.version.identity}
        log = self._log(spark)
        newest = self._update(log)
        version = newest if wanted is None else self._load(log, wanted)
        return {VERSION: int(version.version()), TABLE_ID: str(version.metadata().id())}

    def read_columns(self, spark: SparkSession, version: Json | None) -> StructType:
        """See `VersionedTable.read_columns`."""
        result = self._local.find() if version is None else self.find_local(version)
        return result.read_columns() if result is not None else super().read_columns(spark, version)

    @property
    def is_local(self) -> bool:
        """Whether Headrace may read the log itself."""
        return self._local.folder is not None

    def find_local(self, version: Json) -> LocalSnapshot | None:
        """Return a version of a handle, or None if Headrace does not read it itself."""
        result = self._local.find(version[VERSION])
        return result if result is not None and result.version.identity == version[TABLE_ID] else None

    def locate_files(self, snapshot: LocalSnapshot) -> dict[str, DataFile]:
        """Return the data files of a local version by location, in the order of `files`."""
        ordered = sorted(snapshot.read_files(), key=lambda file: _place_in_order(file.add))
        return {self._local.locate(file): file for file in ordered}

    def frame(self, spark: SparkSession, version: Json | None) -> DataFrame:
        """See `VersionedTable.frame`."""
        spark = ensure_session(spark)
        log, session = self._log(spark), cast("Any", spark)
        snapshot = self._update(log) if version is None else self._find(log, version)
        options = java_class(session._jvm, "scala.Option")  # noqa: SLF001
        everywhere = getattr(log, "createRelation$default$1")()
        # As for time travel: other relations of Delta move on to newer versions.
        relation = log.createRelation(everywhere, options.apply(snapshot), options.apply(None), True)
        rows = session._jsparkSession.baseRelationToDataFrame(relation)  # noqa: SLF001
        return wrap_java_frame(spark, rows)

    def files(self, spark: SparkSession, version: Json) -> Mapping[str, TableFile]:
        """See `VersionedTable.files`.

        The order is that of the files' modification times: a Delta log has no other order that survives its
        clean-up.
        """
        return {
            location: TableFile(DataFile(Path(), add).live_rows, int(add["size"]))
            for location, add in self._adds(spark, version).items()
        }

    def read_files(self, spark: SparkSession, version: Json, locations: Iterable[str]) -> DataFrame:
        """See `VersionedTable.read_files`. Only these files are opened."""
        from pyspark.sql import functions as F  # noqa: N812

        log = self._log(spark)
        snapshot = self._find(log, version)
        adds = self._adds(spark, version)
        paths = [adds[location]["path"] for location in locations]
        chosen = snapshot.allFiles().where(cast("Any", F.col("path").isin(paths))._jc).collect()  # noqa: SLF001
        session = cast("Any", spark)
        sequence = java_class(session._jvm, "scala.collection.immutable.ArraySeq").unsafeWrapArray(chosen)  # noqa: SLF001
        batch = getattr(log, "createDataFrame$default$4")()
        rows = log.createDataFrame(_with_row_index(session._jvm, log, snapshot), sequence, False, batch)  # noqa: SLF001
        return wrap_java_frame(spark, rows)

    def close(self) -> None:
        """See `VersionedTable.close`."""
        self._files.clear()

    def _adds(self, spark: SparkSession, version: Json) -> dict[str, Json]:
        """Return the `add` actions of a version by location. They are read once."""
        number = version[VERSION]
        if number not in self._files and (result := self.find_local(version)) is not None:
            self._files[number] = {name: file.add for name, file in self.locate_files(result).items()}
        if number not in self._files:
            log = self._log(spark)
            listed = self._find(log, version).allFiles().toJSON().collectAsList()
            adds = sorted(map(json.loads, listed), key=_place_in_order)
            root = str(log.dataPath().toUri().toString()).rstrip("/")
            self._files[number] = {self._locate(spark, root, add["path"]): add for add in adds}
        return self._files[number]

    def _locate(self, spark: SparkSession, root: str, path: str) -> str:
        """Return the location of a file as Spark spells it. Files of a shallow clone have absolute paths."""
        if ":" not in path.split("/", 1)[0] and not path.startswith("/"):
            return f"{root}/{path}"
        jvm: Any = spark._jvm  # noqa: SLF001
        uri = java_class(jvm, "java.net.URI")(path)
        return str(java_class(jvm, "org.apache.hadoop.fs.Path")(uri).toUri().toString())

    def _log(self, spark: SparkSession) -> Any:
        return open_delta_log(ensure_session(spark), self.name)

    def _update(self, log: Any) -> Any:
        """Return the newest version. Raise TargetError if there is no table."""
        from py4j.protocol import Py4JJavaError

        try:
            newest = update_delta_log(log)
        except Py4JJavaError as error:
            msg = f"the Delta table `{self.name}` cannot be read: {_first_line(error)}"
            raise TransientError(msg, node=self._node) from error
        if int(newest.version()) < 0:
            msg = f"there is no Delta table at `{self.name}`"
            close = self._find_close_names(log)
            hint = f"Did you mean {' or '.join(close)}?" if close else _WITHOUT_TABLE
            raise TargetError(msg, hint=hint, node=self._node)
        return newest

    def _find_close_names(self, log: Any) -> list[str]:
        """Return folders next to the path that have a similar name."""
        from py4j.protocol import Py4JJavaError

        folder = log.dataPath()
        try:
            system = folder.getFileSystem(log.newDeltaHadoopConf())
            result = [str(status.getPath().getName()) for status in system.listStatus(folder.getParent())]
        except Py4JJavaError:  # there is no such folder either
            return []
        base = self.name.rstrip("/").rpartition("/")[0]
        close = difflib.get_close_matches(str(folder.getName()), result, n=3)
        return [f"{base}/{name}" if base else name for name in close]

    def _find(self, log: Any, version: Json) -> Any:
        """Return a version of a handle.

        Raise PipelineStateError if the table no longer has it, or was created again.
        """
        self._update(log)
        result = self._load(log, version[VERSION])
        if str(result.metadata().id()) == version[TABLE_ID]:
            return result
        msg = (
            f"the Delta table at `{self.name}` was created again since version {version[VERSION]} was chosen"
        )
        raise PipelineStateError(msg, hint=_START_OVER, node=self._node)

    def _load(self, log: Any, number: int) -> Any:
        from py4j.protocol import Py4JJavaError

        defaults = [getattr(log, f"getSnapshotAt$default${position}")() for position in (2, 3, 4)]
        try:
            return log.getSnapshotAt(number, *defaults)
        except Py4JJavaError as error:
            msg = f"the Delta table `{self.name}` no longer has version {number}: {_first_line(error)}"
            raise PipelineStateError(msg, hint=_START_OVER, node=self._node) from error


def _place_in_order(add: Json) -> tuple[int, str]:
    """Return the place of a data file among those of its version."""
    return add["modificationTime"], add["path"]


def _with_row_index(jvm: Any, log: Any, snapshot: Any) -> Any:
    """Return a description of the version for a reader that knows the place of a row in its file.

    Delta's reader has it only for tables with deletion vectors, so the protocol gets their feature.
    """
    option = java_class(jvm, "scala.Option")
    feature = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": feature, "writerFeatures": feature
    }  # fmt: skip
    parsed = parse_action(jvm, {"protocol": protocol})
    others = java_class(jvm, "org.apache.spark.api.python.PythonUtils").toSeq([parsed])
    merged = option.apply(snapshot.protocol().merge(others))
    described = java_class(jvm, "org.apache.spark.sql.delta.DummySnapshot")
    return described(log.logPath(), log, snapshot.metadata(), option.apply(None), merged)


_WITHOUT_TABLE = "Set `path` to the folder that contains `_delta_log`."
_START_OVER = (
    "Its rows cannot be read again exactly. Start the history over, and let the table keep its log and its"
    " files for longer (`delta.logRetentionDuration`, `delta.deletedFileRetentionDuration`)."
)


def _first_line(error: Any) -> str:
    """Return what the JVM's exception says, without its class and its trace."""
    return str(error.java_exception.getMessage()).splitlines()[0]

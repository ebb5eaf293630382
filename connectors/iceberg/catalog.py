"""A hadoop warehouse, through Spark's and Iceberg's interfaces: tables, snapshots, and some data files."""

from __future__ import annotations

import difflib
import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors.filters import quote_identifier
from headrace.connectors.java_classes import java_class
from headrace.pipeline.config.settings import describe_setting_lookup
from headrace.pipeline.errors import (
    PipelineStateError,
    SchemaError,
    SettingsError,
    TargetError,
    TransientError,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEPT = 16  # chosen file sets that are kept: a frame is read long before 16 more are made


class WarehouseTable:
    """One table of a warehouse. Opens nothing until asked; each question takes the session that asks."""

    def __init__(self, warehouse: str | None, name: str, node: str) -> None:
        self.warehouse = warehouse
        self.name = name
        self.node = node
        self._tasks: dict[int, dict[str, Any]] = {}
        self._chosen: OrderedDict[str, Any] = OrderedDict()

    def _place(self) -> str:
        if not self.warehouse:
            msg = "no warehouse is set for Iceberg tables"
            hint = (
                "Set `warehouse` at the node, or in the settings. iceberg.warehouse:"
                f" {describe_setting_lookup('iceberg.warehouse')}"
            )
            raise SettingsError(msg, hint=hint, node=self.node)
        return self.warehouse if "://" in self.warehouse else str(Path(self.warehouse).resolve())

    def path(self, spark: SparkSession) -> str:
        """Return the table's name for Spark SQL, in a catalog that this call registers in the session."""
        place = self._place()
        catalog = f"headrace_iceberg_{hashlib.sha256(place.encode()).hexdigest()[:8]}"
        conf = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": place,
            ".cache-enabled": "false",
        }
        for suffix, value in conf.items():
            spark.conf.set(f"spark.sql.catalog.{catalog}{suffix}", value)
        return ".".join([catalog, *(quote_identifier(part) for part in self.name.split("."))])

    def load(self, spark: SparkSession) -> Any:
        """Return Iceberg's own object of the current table.

        Raise TargetError, with the closest names, if there is no such table.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        catalog, wanted = self._find(spark)
        try:
            if catalog.tableExists(wanted):
                return catalog.loadTable(wanted)
            namespace = wanted.namespace()
            known = (
                [one.toString() for one in catalog.listTables(namespace)]
                if catalog.namespaceExists(namespace)
                else []
            )
        except (Py4JJavaError, PySparkException) as error:
            msg = f"the Iceberg warehouse {self.warehouse} cannot be read: {str(error).splitlines()[0]}"
            raise TransientError(msg, node=self.node) from error
        close = difflib.get_close_matches(self.name, known, n=3)
        hint = f"Did you mean {' or '.join(close)}?" if close else "Set `table_name` to `namespace.table`."
        msg = f"table `{self.name}` does not exist in the Iceberg warehouse {self.warehouse}"
        raise TargetError(msg, hint=hint, node=self.node)

    def exists(self, spark: SparkSession) -> bool:
        """Return whether the table exists."""
        catalog, wanted = self._find(spark)
        return bool(catalog.tableExists(wanted))

    def _find(self, spark: SparkSession) -> tuple[Any, Any]:
        """Return Iceberg's catalog, and the table's identifier in it."""
        catalog = java_class(_jvm(spark), "org.apache.iceberg.hadoop.HadoopCatalog")
        identifier = java_class(_jvm(spark), "org.apache.iceberg.catalog.TableIdentifier")
        return catalog(_hadoop(spark), self._place()), identifier.parse(self.name)

    def metadata_folder(self, spark: SparkSession) -> tuple[Any, Any]:
        """Return the folder of the table's metadata files: Hadoop's file system and path."""
        place = "/".join([self._place(), *self.name.split("."), "metadata"])
        folder = java_class(_jvm(spark), "org.apache.hadoop.fs.Path")(place)
        return folder.getFileSystem(_hadoop(spark)), folder

    def load_snapshot(self, spark: SparkSession, snapshot_id: int) -> tuple[Any, Any]:
        """Return table and snapshot as Iceberg's own objects.

        Raise PipelineStateError if the table no longer has the snapshot.
        """
        table = self.load(spark)
        snapshot = table.snapshot(snapshot_id)
        if snapshot is None:
            msg = (
                f"table `{self.name}` no longer has snapshot {snapshot_id}: it was expired, or the table"
                " was recreated"
            )
            hint = (
                "Its rows cannot be had again exactly. Start the history over, and let maintenance keep"
                " snapshots for longer."
            )
            raise PipelineStateError(msg, hint=hint, node=self.node)
        return table, snapshot

    def frame(self, spark: SparkSession, snapshot_id: int | None) -> DataFrame:
        """Return the whole table at a snapshot, or as it is now.

        Raise SchemaError for a type that Spark does not support.
        """
        from pyspark.errors import UnsupportedOperationException

        table = self.load(spark) if snapshot_id is None else self.load_snapshot(spark, snapshot_id)[0]
        try:
            if snapshot_id is None:
                return spark.table(self.path(spark))
            return spark.read.option("versionAsOf", str(snapshot_id)).table(self.path(spark))
        except UnsupportedOperationException as error:
            columns = ", ".join(
                f"{column.name()} ({column.type().toString()})" for column in table.schema().columns()
            )
            msg = (
                f"table `{self.name}` cannot be read:"
                f" {(error.getMessage() or str(error)).splitlines()[0]}; its columns are {columns}"
            )
            hint = (
                "Spark opens no table with such a column, whatever `columns` lists: keep it in the table"
                " as text or as a number."
            )
            raise SchemaError(msg, hint=hint, node=self.node) from error

    def files(self, spark: SparkSession, snapshot_id: int) -> dict[str, Any]:
        """Return Iceberg's scan task of every data file by location, in the order in which rows were added.

        A task contains the deletes of its file. The scan is planned once per process, because it reads all
        manifests.
        """
        if snapshot_id not in self._tasks:
            table, _ = self.load_snapshot(spark, snapshot_id)
            planned = table.newScan().useSnapshot(snapshot_id).planFiles()
            try:
                lists = "org.apache.iceberg.relocated.com.google.common.collect.Lists"
                listed = java_class(_jvm(spark), lists).newArrayList(planned)
            finally:
                planned.close()
            tasks = [
                ((task.file().dataSequenceNumber() or 0, task.file().location()), task) for task in listed
            ]
            self._tasks[snapshot_id] = {
                key[1]: task for key, task in sorted(tasks, key=lambda entry: entry[0])
            }
        return self._tasks[snapshot_id]

    def read_files(self, spark: SparkSession, snapshot_id: int, locations: Iterable[str]) -> DataFrame:
        """Return the rows of some files of a snapshot with deletes applied, opening only these files.

        This uses the read path of Iceberg's own file rewriting; a predicate on `_file` would open every file.
        If the columns changed since the snapshot, that path shows the new columns, so the whole snapshot is
        returned instead. Callers filter by `_file` in any case.
        """
        table, snapshot = self.load_snapshot(spark, snapshot_id)
        if snapshot.schemaId() != table.schema().schemaId():
            return self.frame(spark, snapshot_id)
        tasks = self.files(spark, snapshot_id)
        jvm = _jvm(spark)
        chosen = java_class(jvm, "java.util.ArrayList")()
        for location in locations:
            chosen.add(tasks[location])
        group = f"headrace_{uuid.uuid4().hex}"
        java_class(jvm, "org.apache.iceberg.spark.ScanTaskSetManager").get().stageTasks(table, group, chosen)
        java_class(jvm, "org.apache.iceberg.spark.SparkTableCache").get().add(group, table)
        self._chosen[group] = (jvm, table)
        while len(self._chosen) > _KEPT:
            self._drop(next(iter(self._chosen)))
        return spark.read.format("iceberg").load(group)

    def _drop(self, group: str) -> None:
        jvm, table = self._chosen.pop(group)
        java_class(jvm, "org.apache.iceberg.spark.ScanTaskSetManager").get().removeTasks(table, group)
        java_class(jvm, "org.apache.iceberg.spark.SparkTableCache").get().remove(group)

    def close(self) -> None:
        """Release planned scans and chosen file sets."""
        for group in list(self._chosen):
            self._drop(group)
        self._tasks.clear()


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm  # noqa: SLF001  Iceberg's planning has a Java interface only


def _hadoop(spark: SparkSession) -> Any:
    session: Any = spark._jsparkSession  # noqa: SLF001  the same
    return session.sessionState().newHadoopConf()

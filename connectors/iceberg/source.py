"""An Iceberg table as a bounded source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.addresses import split_location
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.iceberg.config import IcebergSourceConfig
from headrace.connectors.lakehouse_source import LakehouseSource, TableFile, VersionedTable
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SNAPSHOT = "snapshot_id"


class IcebergVersions(VersionedTable):
    """The snapshots of a table of a warehouse."""

    file_column = "_file"
    place_column = "_pos"

    def __init__(self, table: WarehouseTable) -> None:
        self.name = table.name
        self._table = table

    def choose_version(self, spark: SparkSession, wanted: int | None) -> Json | None:
        """See `VersionedTable.choose_version`."""
        if wanted is not None:
            return {_SNAPSHOT: wanted}
        newest = self._table.load(spark).currentSnapshot()
        return None if newest is None else {_SNAPSHOT: newest.snapshotId()}

    def frame(self, spark: SparkSession, version: Json | None) -> DataFrame:
        """See `VersionedTable.frame`."""
        return self._table.frame(spark, None if version is None else version[_SNAPSHOT])

    def files(self, spark: SparkSession, version: Json) -> Mapping[str, TableFile]:
        """See `VersionedTable.files`."""
        result = {}
        for location, task in self._table.files(spark, version[_SNAPSHOT]).items():
            rows = None if task.deletes().size() else int(task.file().recordCount())
            result[location] = TableFile(rows, int(task.file().fileSizeInBytes()))
        return result

    def read_files(self, spark: SparkSession, version: Json, locations: Iterable[str]) -> DataFrame:
        """See `VersionedTable.read_files`."""
        return self._table.read_files(spark, version[_SNAPSHOT], locations)

    def close(self) -> None:
        """See `VersionedTable.close`."""
        self._table.close()


class IcebergTable(LakehouseSource):
    """Reads one snapshot of a table of a Hadoop catalog."""

    capabilities: ClassVar[SourceCapabilities] = source_entries()["iceberg"].capabilities
    version_keys = (_SNAPSHOT,)

    def __init__(
        self, node: IcebergSourceConfig, settings: Settings, ordinal: int = 0, name: str = ""
    ) -> None:
        """Create the source without reading the table.

        `name` is the node's name in errors. It defaults to the table's name.
        """
        self._warehouse = node.warehouse or settings.iceberg.warehouse
        self.name = name or node.table_name
        super().__init__(node, self.open_table(node.table_name), ordinal, self.name)

    def open_table(self, name: str) -> IcebergVersions:
        """See `LakehouseSource.open_table`."""
        return IcebergVersions(WarehouseTable(self._warehouse, name, self.name))

    def describe(self) -> Json:
        """Return the type, asset key, table name and warehouse from the file and the settings alone."""
        name = self._table.name
        return {
            "kind": "iceberg",
            "asset_key": ["iceberg", *name.split(".")],
            "scope": split_location(self._warehouse or ""),
            "table_name": name,
            "location": self._warehouse,
        }

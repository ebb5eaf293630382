"""A Delta table as a bounded source."""

from __future__ import annotations

from typing import ClassVar

from headrace.connectors.delta.config import DeltaSourceConfig, describe_table
from headrace.connectors.delta.versions import TABLE_ID, VERSION, DeltaVersions
from headrace.connectors.lakehouse_source import LakehouseSource
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import source_entries
from headrace.pipeline.protocol.epochs import Json


class DeltaTable(LakehouseSource):
    """Reads one version of the table at a path."""

    capabilities: ClassVar[SourceCapabilities] = source_entries()["delta"].capabilities
    version_keys = (VERSION, TABLE_ID)

    def __init__(self, node: DeltaSourceConfig, settings: Settings, ordinal: int = 0, name: str = "") -> None:
        """Create the source without reading the table.

        `name` is the node's name in errors. It defaults to the path.
        """
        del settings
        self.name = name or node.path
        super().__init__(node, self.open_table(node.path), ordinal, self.name)

    def open_table(self, name: str) -> DeltaVersions:
        """See `LakehouseSource.open_table`. The name is a path."""
        return DeltaVersions(name, self.name)

    def describe(self) -> Json:
        """Return the type, asset key and location."""
        return describe_table(self._table.name)

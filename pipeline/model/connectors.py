"""The built-in connectors, as their catalog lists them.

The catalog is `headrace.connectors.catalog`: one entry per `type` of a pipeline file. This room reads it by
its name, as it reads plugins by their entry points: `pipeline` imports no connector. Config modules import no
driver, because every command reads them. Entry points of the package itself would need a new installation for
every new connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Union

from pydantic import BaseModel, Field

from headrace.pipeline.model.capabilities import SinkCapabilities, SourceCapabilities

CATALOG = "headrace.connectors.catalog"


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """The source of a connector. `config` and `implementation` are references: `module:Class`."""

    config: str
    implementation: str
    capabilities: SourceCapabilities

    def config_class(self) -> Any:
        """Import and return the class of the source's nodes."""
        return load_reference(self.config)


@dataclass(frozen=True, slots=True)
class SinkEntry:
    """The sink of a connector. `config` and `implementation` are references: `module:Class`."""

    config: str
    implementation: str
    capabilities: SinkCapabilities

    def config_class(self) -> Any:
        """Import and return the class of the sink's nodes."""
        return load_reference(self.config)


@dataclass(frozen=True, slots=True)
class Connector:
    """Everything that the rest of Headrace knows of one `type` of sources and sinks."""

    type: str
    source: SourceEntry | None = None
    stream: SourceEntry | None = None
    """The source of nodes without an end, if `source` is bounded."""
    sink: SinkEntry | None = None
    extra: str = ""
    """The extra of the package `headrace` that installs the drivers; "" if the connector needs none."""


def load_reference(reference: str) -> Any:
    """Import the module of `module:Class` and return the class."""
    module, name = reference.split(":")
    return getattr(import_module(module), name)


def create_union(models: tuple[type[BaseModel], ...], key: str) -> Any:
    """Return the union of these models, discriminated by the key. One model is its own type."""
    return Annotated[Union[(*models,)], Field(discriminator=key)] if len(models) > 1 else next(iter(models))


@cache
def connectors() -> Mapping[str, Connector]:
    """Return the built-in connectors by type, in the order of the catalog."""
    return {entry.type: entry for entry in import_module(CATALOG).CONNECTORS}


def source_entries() -> Mapping[str, SourceEntry]:
    """Return the built-in sources by type."""
    return {kind: entry.source for kind, entry in connectors().items() if entry.source is not None}


def stream_entries() -> Mapping[str, SourceEntry]:
    """Return the sources without an end of the types that also have a bounded one."""
    return {kind: entry.stream for kind, entry in connectors().items() if entry.stream is not None}


def sink_entries() -> Mapping[str, SinkEntry]:
    """Return the built-in sinks by type."""
    return {kind: entry.sink for kind, entry in connectors().items() if entry.sink is not None}

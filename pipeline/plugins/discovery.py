"""Installed plugins: entry points of packages. They are listed without an import and loaded one by one."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from headrace.pipeline.errors import PluginError
from headrace.pipeline.plugins.api import GROUP, Plugin, PluginType, sql_name
from headrace.pipeline.plugins.settings import plugin_settings

LIST = "`headrace plugin list` shows what is installed."


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """An installed plugin. Loading it can still fail. `entry` is `module:object`."""

    id: str
    package: str
    version: str
    entry: str

    @property
    def origin(self) -> str:
        """Package, version and entry point, for messages."""
        return f"{self.package} {self.version}, {self.entry}"


_here: dict[str, tuple[InstalledPlugin, Plugin]] = {}
"""Plugins of this process that no package installs. Tests of a plugin register it here."""


@contextmanager
def temporary_plugin(plugin: Plugin) -> Iterator[InstalledPlugin]:
    """Register a plugin as installed inside the `with` block."""
    module = getattr(plugin.make, "__module__", "?")
    _here[plugin.id] = result, _ = (
        InstalledPlugin(plugin.id, module.replace("_", "-"), "(not installed)", module),
        plugin,
    )
    try:
        yield result
    finally:
        del _here[plugin.id]


@lru_cache(maxsize=8)
def _scan(path: tuple[str, ...]) -> tuple[InstalledPlugin, ...]:
    del path  # the key of the cache: installed packages depend on sys.path
    listed = [
        InstalledPlugin(
            point.name,
            point.dist.name if point.dist else "?",
            point.dist.version if point.dist else "?",
            point.value,
        )
        for point in metadata.entry_points(group=GROUP)
    ]
    return tuple(sorted(listed, key=lambda result: (result.id, result.package)))


def list_installed() -> tuple[InstalledPlugin, ...]:
    """Return every plugin of this environment, sorted by id, without importing any."""
    scanned = _scan(tuple(sys.path))
    if not _here:
        return scanned
    return tuple(
        sorted(
            [
                *(result for result, _ in _here.values()),
                *(result for result in scanned if result.id not in _here),
            ],
            key=_by_id,
        )
    )


def _by_id(installed_plugin: InstalledPlugin) -> str:
    return installed_plugin.id


def is_allowed(plugin_id: str) -> bool:
    """Return whether the setting `plugin.allow` permits a plugin."""
    allow = plugin_settings().allow
    return allow is None or plugin_id in allow


def find(plugin_id: str) -> InstalledPlugin | None:
    """Return the installed plugin of an id, allowed or not. Raise PluginError if two packages have one."""
    result = [one for one in list_installed() if one.id == plugin_id]
    if len(result) > 1:
        origins = "; ".join(one.origin for one in result)
        msg = f"the plugin `{plugin_id}` is there {len(result)} times: {origins}"
        raise PluginError(msg, hint="Uninstall all but one of these packages.")
    return result[0] if result else None


def functions(names: frozenset[str]) -> list[InstalledPlugin]:
    """Return the plugins that these lower-case names of SQL functions may mean."""
    return [one for one in list_installed() if sql_name(one.id) in names]


def function_names() -> list[str]:
    """Return the SQL name that each plugin would have as a function, for suggestions."""
    return [sql_name(one.id) for one in list_installed()]


def load(installed_plugin: InstalledPlugin) -> Plugin:
    """Return the declaration of a plugin.

    Raise PluginError if it is not allowed, cannot be imported, or declares no plugin or one with another id.
    """
    if not is_allowed(installed_plugin.id):
        msg = (
            f"the plugin `{installed_plugin.id}` ({installed_plugin.origin}) is installed, and the"
            " setting `plugin.allow` does not name it"
        )
        raise PluginError(
            msg,
            hint="Add it there if you trust it: a plugin is code that runs with all the rights of the run.",
        )
    if installed_plugin.id in _here:
        return _here[installed_plugin.id][1]
    return _load_entry_point(installed_plugin)


@lru_cache(maxsize=256)
def _load_entry_point(installed_plugin: InstalledPlugin) -> Plugin:
    point = metadata.EntryPoint(installed_plugin.id, installed_plugin.entry, GROUP)
    try:
        plugin = point.load()
    except Exception as error:
        at = _place_in(error)
        msg = (
            f"the plugin `{installed_plugin.id}` ({installed_plugin.origin}) cannot be loaded:"
            f" {type(error).__name__}: {error}{at}"
        )
        raise PluginError(
            msg, hint=f"Repair or uninstall the package {installed_plugin.package}. {LIST}"
        ) from error
    if not isinstance(plugin, Plugin):
        msg = (
            f"the plugin `{installed_plugin.id}` ({installed_plugin.origin}) is {type(plugin).__name__},"
            " and no headrace.Plugin"
        )
        raise PluginError(msg, hint="Its entry point must lead to a headrace.Plugin(...).")
    if plugin.id != installed_plugin.id:
        msg = f"the plugin `{installed_plugin.id}` ({installed_plugin.origin}) calls itself `{plugin.id}`"
        raise PluginError(msg, hint="The name of the entry point and the id of the plugin must be the same.")
    return plugin


def load_plugin_of_type(
    plugin_id: str, kind: PluginType, setting: str = ""
) -> tuple[InstalledPlugin, Plugin]:
    """Load the plugin that a node or a setting names. Raise PluginError if none of this type is installed."""
    named_by = f"the setting `plugin.{setting}` names `{plugin_id}`: " if setting else ""
    result = find(plugin_id)
    if result is None:
        ids = ", ".join(one.id for one in list_installed()) or "none"
        msg = f"{named_by}no such plugin is installed" if setting else f"no plugin `{plugin_id}` is installed"
        raise PluginError(msg, hint=f"Installed: {ids}. Install the package that has it.")
    plugin = load(result)
    if plugin.kind != kind:
        msg = f"{named_by}the plugin `{plugin_id}` ({result.origin}) is a {plugin.kind}, not a {kind}"
        raise PluginError(msg, hint=LIST)
    return result, plugin


def _place_in(error: BaseException) -> str:
    """Return ` (file, line 12)` of the innermost frame of a traceback.

    Return an empty text for a missing module: its innermost frame is in Python's import code.
    """
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    if not frames or isinstance(error, SyntaxError):
        return ""
    path = Path(frames[-1].filename)
    return (
        ""
        if path == Path(metadata.__file__) or Path(__file__).name == path.name
        else f" ({path}, line {frames[-1].lineno})"
    )

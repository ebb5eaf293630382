"""The context that Headrace passes to a plugin, and the error if a plugin fails."""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from headrace.pipeline.errors import FileLocation, PluginError
from headrace.pipeline.plugins.discovery import InstalledPlugin

log = logging.getLogger(__name__)


class Metrics(Protocol):
    """Metrics of a plugin. They have the labels of the node."""

    def counter(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set the current value of a gauge."""

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """Record one value of a distribution, such as a duration in milliseconds."""


class NoMetrics:
    """Discards all metrics."""

    def counter(self, name: str, value: float = 1, **labels: str) -> None:
        """See `Metrics`."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """See `Metrics`."""

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """See `Metrics`."""


_metrics: list[Callable[[str, str, Mapping[str, str]], Metrics]] = []


def provide_metrics(make: Callable[[str, str, Mapping[str, str]], Metrics]) -> Callable[[], None]:
    """Send the metrics of plugins to `make(node, plugin id, labels)`. Return a function that ends this."""
    _metrics[:] = [make]

    def withdraw() -> None:
        if _metrics == [make]:
            _metrics.clear()

    return withdraw


class PluginState:
    """Values by key that a plugin in one node of one pipeline keeps between runs, in the home folder.

    Use it for caches. A value is replaced atomically, but not in the transaction of an epoch. It can be newer
    or older than the last commit, and a repeated epoch reads the current value. Another machine, or another
    name of the pipeline, starts with no values. Positions belong to the epoch's plan.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Any:
        """Return the JSON value of a key, or None."""
        try:
            return json.loads(self._path(key).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def put(self, key: str, value: Any) -> None:
        """Replace the value of a key atomically."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{_safe(key)}.json"


def _safe(name: str) -> str:
    """Return a file name for a text. Different texts give different names."""
    return "".join(char if char.isalnum() or char in "-_" else f"%{ord(char):x}" for char in name) or "%"


@dataclass(frozen=True)
class PluginContext:
    """Argument of a plugin's factory: the name of its node, or its id if it has none, and its options.

    `state` is stored under `home` and `pipeline`. `ordinal` is a source's rank in `_gs_pos`. The context can
    be pickled. In Spark's workers there is no state, and metrics are discarded.
    """

    name: str
    options: Any
    found: InstalledPlugin
    pipeline: str = ""
    home: Path = Path(".headrace")
    ordinal: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of the plugin."""
        return _metrics[0](self.name, self.found.id, self.labels) if _metrics else NoMetrics()

    @cached_property
    def state(self) -> PluginState:
        """The values that are kept between runs."""
        return PluginState(
            self.home / "plugins" / _safe(self.pipeline or "-") / _safe(self.name) / _safe(self.found.id)
        )

    @cached_property
    def log(self) -> logging.Logger:
        """The logger of the plugin, a child of the logger `headrace.plugins`."""
        return logging.getLogger(f"headrace.plugins.{self.found.id}")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("metrics", "state", "log")}


def plugin_error(
    error: BaseException,
    installed_plugin: InstalledPlugin,
    *,
    doing: str,
    node: str = "",
    place: FileLocation | None = None,
) -> PluginError:
    """Log a plugin's exception. Return an error with the plugin, its package, the line and the operation."""
    log.warning(
        "event=plugin_failed plugin=%s node=%s action=%s", installed_plugin.id, node, doing, exc_info=error
    )
    text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
    msg = f"the plugin `{installed_plugin.id}` failed in {doing}: {text}"
    return PluginError(
        msg,
        hint=f"It is of {installed_plugin.origin}{_line_of(error)}. The log has the details.",
        node=node,
        place=place,
    )


def _line_of(error: BaseException) -> str:
    """Return the innermost line that is not in Headrace or PySpark, or an empty text."""
    here = str(Path(__file__).resolve().parents[2])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not str(Path(frame.filename).resolve()).startswith(here) and "pyspark" not in frame.filename
    ]
    return f"; it failed in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""

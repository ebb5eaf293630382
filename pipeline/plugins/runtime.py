"""What Headrace hands to a plugin, and what it says when one fails."""

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
    """Figures that a plugin gives; they carry the node's labels."""

    def counter(self, name: str, value: float = 1, **labels: str) -> None:
        """Adds to a sum that only grows."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """What something is now."""

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """One of many values, such as a duration in milliseconds."""


class NoMetrics:
    """Takes figures and keeps none."""

    def counter(self, name: str, value: float = 1, **labels: str) -> None:
        """See `Metrics`."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """See `Metrics`."""

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """See `Metrics`."""


_metrics: list[Callable[[str, str, Mapping[str, str]], Metrics]] = []


def provide_metrics(make: Callable[[str, str, Mapping[str, str]], Metrics]) -> Callable[[], None]:
    """Says where figures of plugins go from now on: `make(node, plugin id, labels)`. Call what is returned, and they go nowhere again."""
    _metrics[:] = [make]

    def withdraw() -> None:
        if _metrics == [make]:
            _metrics.clear()

    return withdraw


class PluginState:
    """A few values that a plugin keeps between runs, by key, in the home folder, of this plugin in this node of this pipeline alone.

    It is for caches: what a plugin could work out again. A value is replaced as a whole or not at all, but apart from epochs: it
    may be newer or older than what the lane committed, an epoch that is written again meets what is there by then, and it is gone
    on another machine, and under another name of the pipeline. Positions belong to the epoch's plan.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Any:
        """The JSON value of a key, None if there is none."""
        try:
            return json.loads(self._path(key).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def put(self, key: str, value: Any) -> None:
        """Replaces the value of a key."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def delete(self, key: str) -> None:
        """Forgets a key."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{_safe(key)}.json"


def _safe(name: str) -> str:
    """A file name of any text; different texts give different names."""
    return "".join(char if char.isalnum() or char in "-_" else f"%{ord(char):x}" for char in name) or "%"


@dataclass(frozen=True)
class PluginContext:
    """What a plugin is made of: the name of its node, or its id where it has none, and its options.

    `pipeline` and `home` are what `state` lies under, `ordinal` is a source's rank in `_gs_pos`. It can be pickled; in Spark's workers
    there is no state, and metrics go nowhere.
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
        """Where figures go."""
        return _metrics[0](self.name, self.found.id, self.labels) if _metrics else NoMetrics()

    @cached_property
    def state(self) -> PluginState:
        """What is kept between runs."""
        return PluginState(self.home / "plugins" / _safe(self.pipeline or "-") / _safe(self.name) / _safe(self.found.id))

    @cached_property
    def log(self) -> logging.Logger:
        """A log of the plugin's own, among those of Headrace."""
        return logging.getLogger(f"headrace.plugins.{self.found.id}")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("metrics", "state", "log")}


def plugin_error(
    error: BaseException, found: InstalledPlugin, *, doing: str, node: str = "", place: FileLocation | None = None
) -> PluginError:
    """What a plugin's own failure is for people: which plugin of which package, at which line of it, while doing what."""
    log.warning("plugin=%s node=%s doing=%s", found.id, node, doing, exc_info=error)
    said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
    msg = f"the plugin `{found.id}` failed in {doing}: {said}"
    return PluginError(msg, hint=f"It is of {found.origin}{_line_of(error)}. The log has the details.", node=node, place=place)


def _line_of(error: BaseException) -> str:
    """The innermost line that is neither Headrace's nor a library's."""
    here = str(Path(__file__).resolve().parents[2])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not str(Path(frame.filename).resolve()).startswith(here) and "pyspark" not in frame.filename
    ]
    return f"; it failed in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""

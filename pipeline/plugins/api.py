"""The declaration of a plugin: the object that its entry point refers to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

GROUP = "headrace.plugins"
"""The entry point group. An entry point has the id of its plugin as name: listing needs no import."""

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)?")
_TYPED = frozenset({"type", "telemetry", "from", "from_", "options", "delivery"})
_FLUSHING = frozenset({"batch_size", "batch_flush_interval"})
"""Keys of a plugin's node that Headrace reads. An option of such a name can never be set."""


class PluginType(StrEnum):
    """Type of a plugin."""

    SOURCE = "source"
    TRANSFORM = "transform"
    SINK = "sink"
    PREPROCESSOR = "preprocessor"
    FUNCTION = "function"
    SIDE_OUTPUT = "side_output"


class Options(BaseModel):
    """Base of a plugin's options. Unknown keys are errors. Errors do not show values."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class Plugin:
    """Declaration of a plugin.

    Args:
        id: `operator` or `namespace.operator`; the `type` of its nodes. In SQL, `_` replaces `.` and `-`.
        kind: source, transform, sink, preprocessor, function or side_output.
        make: the class, or a factory that takes the context. For a function, itself: arrays to one array.
        options: a pydantic model of the keys that its nodes have in addition to the common ones.
        labels: labels of its metrics. They override `telemetry.labels` of the file.
        returns: for a function, the return type as written in a pipeline file: `string`, `decimal(20, 4)`.
        arguments: for a function, the types of its arrays. Values are cast to them.
        deterministic: for a transform or a function, whether a repeated epoch gives the same rows.

    Raises:
        ValueError, TypeError: if the declaration is invalid.
    """

    id: str
    kind: PluginType | str
    make: Callable[..., Any]
    options: type[BaseModel] = Options
    labels: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""
    arguments: tuple[str, ...] = ()
    deterministic: bool = True

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            msg = (
                f"`{self.id}` cannot be a plugin's id: it is `operator` or `namespace.operator`, of"
                " letters, digits, `_` and `-`"
            )
            raise ValueError(msg)
        if self.kind not in list(PluginType):
            msg = f"`{self.id}`: kind must be one of {', '.join(PluginType)}, and is {self.kind!r}"
            raise ValueError(msg)
        if not callable(self.make):
            msg = f"`{self.id}`: make must be a class or a function, and is {type(self.make).__name__}"
            raise TypeError(msg)
        if not (isinstance(self.options, type) and issubclass(self.options, BaseModel)):
            msg = f"`{self.id}`: options must be a pydantic model, such as a subclass of headrace.Options"
            raise TypeError(msg)
        names = {info.alias or name for name, info in self.options.model_fields.items()}
        if taken := sorted(
            names & (_TYPED | (_FLUSHING if self.kind in (PluginType.TRANSFORM, PluginType.SINK) else set()))
        ):
            msg = (
                f"`{self.id}`: the option `{taken[0]}` could never be given, since every node has a key"
                " of that name"
            )
            raise ValueError(msg)
        self._check_kind()

    def _check_kind(self) -> None:
        if self.kind == PluginType.FUNCTION and not self.returns:
            msg = f"`{self.id}`: a function says what it `returns`, such as returns='string'"
            raise ValueError(msg)
        wanted = {PluginType.SOURCE: "bounded", PluginType.SINK: "delivery"}.get(PluginType(self.kind))
        if wanted and not hasattr(getattr(self.make, "capabilities", None), wanted):
            msg = (
                f"`{self.id}`: the class of a {self.kind} has `capabilities`,"
                f" {'Source' if wanted == 'bounded' else 'Sink'}Capabilities(...)"
            )
            raise ValueError(msg)


def sql_name(plugin_id: str) -> str:
    """Return the SQL name of a function plugin."""
    return re.sub(r"[.-]", "_", plugin_id).lower()


def variable_name(plugin_id: str) -> str:
    """Return the part of environment variable names that identifies a plugin."""
    return re.sub(r"[^A-Za-z0-9]+", "_", plugin_id).strip("_").upper()

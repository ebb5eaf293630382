"""What a plugin says of itself: the one object that its entry point leads to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

GROUP = "headrace.plugins"
"""The entry point group. A plugin's entry point has its id for a name, so that nothing is imported to know what there is."""

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)?")
_TYPED = frozenset({"type", "telemetry", "from", "from_", "options", "delivery"})
_FLUSHING = frozenset({"batch_size", "batch_flush_interval"})
"""Keys of a plugin's node that Headrace reads; an option of such a name could never be given."""


class PluginType(StrEnum):
    """What a plugin is."""

    SOURCE = "source"
    TRANSFORM = "transform"
    SINK = "sink"
    PREPROCESSOR = "preprocessor"
    FUNCTION = "function"
    SIDE_OUTPUT = "side_output"


class Options(BaseModel):
    """The base of a plugin's options: unknown keys are mistakes, and values are not shown in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin.

    Args:
        id: `operator` or `namespace.operator`; the `type` of its nodes. A function's name in SQL is its id with `_` for `.` and `-`.
        kind: source, transform, sink, preprocessor, function or side_output.
        make: the class, or what else makes the object of its context; of a function, the function itself: Arrow arrays to one array.
        options: a pydantic model of what its nodes may say beside the keys that every node has.
        labels: of its metrics. They win over `telemetry.labels` of the file.
        returns: of a function, its type in the words of a pipeline file: `string`, `decimal(20, 4)`.
        arguments: of a function, the types that its arrays have; values are cast to them.
        deterministic: whether the same rows come out when an epoch is done again; of transforms and functions.

    Raises:
        ValueError, TypeError: a declaration that cannot be.
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
            msg = f"`{self.id}` cannot be a plugin's id: it is `operator` or `namespace.operator`, of letters, digits, `_` and `-`"
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
        if taken := sorted(names & (_TYPED | (_FLUSHING if self.kind in (PluginType.TRANSFORM, PluginType.SINK) else set()))):
            msg = f"`{self.id}`: the option `{taken[0]}` could never be given, since every node has a key of that name"
            raise ValueError(msg)
        self._check_kind()

    def _check_kind(self) -> None:
        if self.kind == PluginType.FUNCTION and not self.returns:
            msg = f"`{self.id}`: a function says what it `returns`, such as returns='string'"
            raise ValueError(msg)
        wanted = {PluginType.SOURCE: "bounded", PluginType.SINK: "delivery"}.get(PluginType(self.kind))
        if wanted and not hasattr(getattr(self.make, "capabilities", None), wanted):
            msg = f"`{self.id}`: the class of a {self.kind} has `capabilities`, {'Source' if wanted == 'bounded' else 'Sink'}Capabilities(...)"
            raise ValueError(msg)


def sql_name(plugin_id: str) -> str:
    """What a function plugin is called in SQL."""
    return re.sub(r"[.-]", "_", plugin_id).lower()


def variable_name(plugin_id: str) -> str:
    """How a plugin is called in names of environment variables."""
    return re.sub(r"[^A-Za-z0-9]+", "_", plugin_id).strip("_").upper()

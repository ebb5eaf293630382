"""The sources of settings: the environment, config.yaml, the local services. Each layer keeps the locations.

No function here shows a value, because every source may contain a secret.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, SecretStr

from headrace.pipeline.compat.streamling_settings import IGNORED, MOVED, RENAMED
from headrace.pipeline.config.secrets import mask_secret
from headrace.pipeline.errors import PipelineFileError, SettingsError
from headrace.pipeline.yaml.reader import YamlDocument, read_tree

CONFIG_NAMES = ("config.yaml", "config.yml", "config.json")
OURS, THEIRS = "HEADRACE__", "STREAMLING__"
"""The prefixes of environment variables, the stronger one first."""

_NO_BREAK = "\u00a0"

Loc = tuple[str, ...]
"""The path of a setting: `("postgres_sink", "port")`."""


@dataclass(frozen=True, slots=True)
class PartOf:
    """Marks a mapping that may have some keys of a section, and no others."""

    model: type[BaseModel]


@dataclass(slots=True)
class Layer:
    """One source of settings. `written` has the location of each of its settings."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    written: dict[Loc, str] = field(default_factory=dict)
    ignored: dict[Loc, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    listed: bool = True

    def has(self, loc: Loc) -> bool:
        """Return whether the layer sets a setting, or has a non-mapping value above it."""
        result: Any = self.values
        for part in loc:
            if not isinstance(result, dict):
                return True
            if part not in result:
                return False
            result = result[part]
        return True

    def where(self, loc: Loc) -> str:
        """Return the location of a setting: the variable, or file, line and column."""
        above = (self.written[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in self.written)
        inside = (place for other, place in self.written.items() if other[: len(loc)] == loc)
        return next(above, None) or next(inside, self.name)

    def searched_location(self, loc: Loc) -> str:
        """Return the place that was searched without a result.

        Keys with dots have no variables of their own. Only the mapping that contains them has one.
        """
        if self.name in (OURS, THEIRS):
            named = itertools.takewhile(lambda part: part.isidentifier(), loc)
            return f"{self.name}{'__'.join(named).upper()} (not set)"
        return f"{self.name} (not there)"


def type_at(loc: Sequence[str], kind: Any) -> Any:
    """Return the type of the setting at a location. None if there is no such setting."""
    for part in loc:
        kind = _bare(kind)
        if _is_section(kind):
            if part not in kind.model_fields:
                return None
            field = kind.model_fields[part]
            kind = next((mark.model for mark in field.metadata if isinstance(mark, PartOf)), field.annotation)
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        else:
            return None
    return _bare(kind)


def is_secret(loc: Sequence[str], model: type[BaseModel]) -> bool:
    """Return whether a setting is never shown: secrets, and unknown settings."""
    kind = type_at(loc, model)
    return kind is None or kind is SecretStr


def _bare(kind: Any) -> Any:
    if get_origin(kind) is not Annotated:
        return kind
    return next((mark.model for mark in kind.__metadata__ if isinstance(mark, PartOf)), get_args(kind)[0])


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def read_layers(model: type[BaseModel]) -> list[Layer]:
    """Return every layer, the strongest first. Raise SettingsError for an unreadable file.

    Other mistakes are in `problems`.
    """
    home = Path(os.environ.get("HEADRACE_HOME") or os.environ.get("HEADRACE__HOME") or ".headrace")
    layers = [_environment(OURS, model), _environment(THEIRS, model), _config_file(), _services_file(home)]
    for layer in layers:
        _adapt(layer, model, layer.values, ())
    at_home = {"home": str(home), "state_backend": {"sqlite": {"path": str(home / "ledger.db")}}}
    return [*layers, Layer("HEADRACE_HOME", at_home, listed=False)]


def merge_layers(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return one tree of all layers. Mappings are merged. Of other values the strongest wins."""
    result: dict[str, Any] = {}
    for layer in layers:
        _put_below(result, layer.values)
    return result


def _put_below(tree: dict[str, Any], weaker: Mapping[str, Any]) -> None:
    for key, value in weaker.items():
        if key not in tree:
            tree[key] = {} if isinstance(value, dict) else value
        if isinstance(tree[key], dict) and isinstance(value, dict):
            _put_below(tree[key], value)


def describe_lookup(loc: Loc, layers: Sequence[Layer]) -> str:
    """Return every place in which a setting may be, in order, and which of them was used."""
    taken = next((layer for layer in layers if layer.has(loc)), None)
    text = []
    for layer in layers:
        if layer.has(loc):
            text.append(f"{layer.where(loc)} ({'taken' if layer is taken else 'not needed'})")
        elif layer.listed:
            text.append(layer.searched_location(loc))
    if taken is None:
        text.append("the default (taken)")
    return "looked at " + ", ".join(text)


def paragraph(text: str) -> str:
    """Return a sentence as a wrapped paragraph of at most 80 columns. Text in brackets stays on one line."""
    kept = re.sub(r" (?=\(|[^(]*\))", _NO_BREAK, text)
    return textwrap.fill(
        kept,
        78,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    ).replace(_NO_BREAK, " ")


def _environment(prefix: str, model: type[BaseModel]) -> Layer:
    """Return `PREFIX__A__B` as {a: {b: text}}. If the setting is a mapping, the text is JSON."""
    layer = Layer(prefix)
    named = [name for name in os.environ if name.upper().startswith(prefix)]
    for name in sorted(named, key=lambda name: (name.count("__"), name)):
        *above, last = loc = tuple(name[len(prefix) :].lower().split("__"))
        value: Any = os.environ[name]
        kind = type_at(loc, model)
        if _is_section(kind) or get_origin(kind) is dict:
            value = _json_map(value)
            if value is None:
                layer.problems.append(f"{name}: must be JSON, such as " + '{"key": "value"}')
                continue
        inner = layer.values
        for part in above:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[last] = value
        layer.written[loc] = name
    return layer


def _json_map(text: str) -> dict[str, Any] | None:
    try:
        result = json.loads(text)
    except ValueError:
        return None
    return result if isinstance(result, dict) else None


def _config_file() -> Layer:
    """Return the first of config.yaml, config.yml, config.json in the working directory.

    `${VAR}` is not filled in.
    """
    path = next((Path(name) for name in CONFIG_NAMES if Path(name).is_file()), None)
    if path is None:
        return Layer(CONFIG_NAMES[0])
    hint = (
        "It holds settings such as `postgres_sink: {host: db.internal}`; see"
        " docs/guides/clickhouse-kafka-postgres.md."
    )
    tree = _config_tree(path, hint)
    if tree.value is None:
        tree.value = {}
    if not isinstance(tree.value, dict):
        msg = (
            f"{path} must be a map of settings, and is"
            f" {'a list' if isinstance(tree.value, list) else 'a single value'}"
        )
        raise SettingsError(msg, hint=hint)
    return Layer(
        str(path), tree.value, {tuple(map(str, loc)): str(place) for loc, place in tree.places.items() if loc}
    )


def _config_tree(path: Path, hint: str) -> YamlDocument:
    try:
        tree = read_tree(path.read_text(encoding="utf-8"), str(path), fill=False)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        msg = f"{path} cannot be read: {reason}"
        raise SettingsError(msg, hint=hint) from None
    except PipelineFileError as error:
        raise SettingsError(str(error)) from None
    if tree.problems:
        raise SettingsError("\n".join(str(problem) for problem in tree.problems))
    return tree


def _services_file(home: Path) -> Layer:
    """Return the connections of the local servers, as `headrace services up` stores them."""
    path = home / "services.json"
    layer = Layer(str(path))
    if not path.is_file():
        return layer
    try:
        services = json.loads(path.read_text()).get("services", {})
        if postgres := services.get("postgres"):
            layer.values["postgres_sink"] = {
                key: postgres[key] for key in ("host", "port", "user", "password")
            } | {"db": postgres["dbname"]}
        if clickhouse := services.get("clickhouse"):
            url = f"http://{clickhouse['host']}:{clickhouse['port']}"
            for section in ("clickhouse_source", "clickhouse_sink"):
                layer.values[section] = {
                    "url": url,
                    "user": clickhouse["user"],
                    "password": clickhouse["password"],
                }
            if database := clickhouse.get("sink_database"):
                layer.values["clickhouse_sink"]["database"] = database
        if kafka := services.get("kafka"):
            for section in ("kafka_source", "kafka_sink"):
                layer.values[section] = {"brokers": f"{kafka['host']}:{kafka['port']}"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        msg = f"{path} is not what `headrace services up` wrote"
        raise SettingsError(msg, hint="Remove the file and run `headrace services up` again.") from None
    return layer


def _adapt(layer: Layer, model: type[BaseModel], values: dict[str, Any], above: Loc) -> None:
    """Convert a layer to the settings of Headrace, in place.

    References are marked. Streamling's keys are renamed, moved or removed, and so are its other variables.
    """
    kind = type_at(above, model)
    for key, name in RENAMED.items():
        if _is_section(kind) and name in kind.model_fields and key in values and name not in values:
            values[name] = values.pop(key)
            layer.written[*above, name] = layer.where((*above, key))
    for key in [key for key in values if ".".join((*above, key)) in MOVED]:
        section, name = MOVED[".".join((*above, key))]
        inside = values.setdefault(section, {})
        if isinstance(inside, dict) and name not in inside:
            inside[name] = values[key]
            layer.written[*above, section, name] = layer.where((*above, key))
        del values[key]
    for key in list(values):
        loc, value = (*above, key), values[key]
        result = type_at(loc, model)
        if result is None and (instead := IGNORED.get(".".join(loc))):
            layer.ignored[loc] = instead
            del values[key]
        elif result is None and layer.name == THEIRS:
            del values[key]
        elif result is SecretStr:
            values[key] = mask_secret(value)
        elif isinstance(value, dict):
            _adapt(layer, model, value, loc)
            if not value and layer.name == THEIRS:
                del values[key]


def find_ignored_settings(layers: Sequence[Layer]) -> Iterator[tuple[str, str, str]]:
    """Yield the settings of Streamling that are ignored: name, location, replacement."""
    for layer in layers:
        for loc, instead in layer.ignored.items():
            yield ".".join(loc), layer.where(loc), instead

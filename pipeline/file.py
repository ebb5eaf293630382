"""Reading a pipeline file: YAML with places, `${VAR}`, all mistakes in one go."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError

from headrace.pipeline import nodes
from headrace.pipeline.errors import PipelineFileError, Place, UserError
from headrace.pipeline.graph import check_graph
from headrace.pipeline.records import Json

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TAGS = {
    **{get_args(kind.model_fields["type"].annotation)[0]: kind for kind in nodes.Node.__subclasses__() if "type" in kind.model_fields},
    **{get_args(kind.model_fields["type"].annotation)[0] + ":sink": kind for kind in nodes.SinkNode.__subclasses__()},
}


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline file that was read and found good. `hash` changes with everything that changes what rows come out."""

    model: nodes.PipelineModel
    path: str
    places: Mapping[tuple[str | int, ...], Place]

    @property
    def name(self) -> str:
        """The pipeline's name, for people."""
        return self.model.name

    def place(self, *path: str | int) -> Place:
        """Where `path` stands in the file; the nearest thing above it if it is not written there."""
        for end in range(len(path), -1, -1):
            if found := self.places.get(path[:end]):
                return found
        return Place(self.path)

    def compiled(self) -> Json:
        """What the ledger stores beside an epoch: all that decides which rows come out, with variables filled in."""
        return self.model.model_dump(
            mode="json", by_alias=True, include={"version", "name", "sources", "transforms", "sinks", "partitions"}
        )

    @property
    def hash(self) -> str:
        """Of `compiled()`, 16 hex digits."""
        return hashlib.sha256(json.dumps(self.compiled(), sort_keys=True).encode()).hexdigest()[:16]


def from_compiled(body: Json, path: str = "<ledger>") -> PipelineFile:
    """The pipeline that the ledger stored, as if read from a file."""
    return PipelineFile(nodes.PipelineModel.model_validate(body), path, {})


def load_pipeline(path: str | Path) -> PipelineFile:
    """Reads and checks a pipeline file.

    Raises PipelineFileError with every mistake that was found, each with its line and column. Opens no connection.
    """
    shown = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        msg = f"`{shown}` cannot be read: {reason}"
        raise PipelineFileError([UserError(msg, hint="Give the path of a pipeline file, such as examples/flights.yaml.")]) from None
    return parse_pipeline(text, shown)


def parse_pipeline(text: str, shown: str = "<text>") -> PipelineFile:
    """The same for text; `shown` stands in messages where the path would."""
    try:
        tree = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(shown, mark.line + 1, mark.column + 1) if mark else Place(shown)
        raise PipelineFileError([UserError(f"not YAML: {error.problem or error.context}", place=place)]) from None
    if not isinstance(tree, CommentedMap):
        raise PipelineFileError([UserError("a pipeline file is a map with `name`, `sources` and `sinks`", place=Place(shown, 1, 1))])
    places: dict[tuple[str | int, ...], Place] = {}
    problems: list[UserError] = []
    plain = _plain(tree, (), shown, places, problems)
    for kind in ("sources", "transforms", "sinks"):
        if plain.get(kind) is None and kind in plain:
            plain[kind] = {}
    try:
        model = nodes.PipelineModel.model_validate(plain)
    except ValidationError as error:
        problems += [_problem(item, plain, shown, places) for item in error.errors()]
        raise PipelineFileError(_in_order(problems)) from None
    found = PipelineFile(model, shown, places)
    problems += check_graph(model, found.place)
    if problems:
        raise PipelineFileError(_in_order(problems))
    return found


def _plain(
    tree: Any, path: tuple[str | int, ...], shown: str, places: dict[tuple[str | int, ...], Place], problems: list[UserError]
) -> Any:
    """Plain dicts and lists with variables filled in; notes where each key stands."""
    if isinstance(tree, CommentedMap):
        for key in tree:
            line, column = tree.lc.key(key)
            places[(*path, key)] = Place(shown, line + 1, column + 1)
        return {key: _plain(value, (*path, key), shown, places, problems) for key, value in tree.items()}
    if isinstance(tree, CommentedSeq):
        for index in range(len(tree)):
            line, column = tree.lc.item(index)
            places[(*path, index)] = Place(shown, line + 1, column + 1)
        return [_plain(value, (*path, index), shown, places, problems) for index, value in enumerate(tree)]
    return _filled(str(tree), path, places, problems) if isinstance(tree, str) else tree


def _filled(text: str, path: tuple[str | int, ...], places: dict[tuple[str | int, ...], Place], problems: list[UserError]) -> str:
    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        found = os.environ.get(name, default)
        if found is None:
            msg = f"`${{{name}}}` is not set"
            hint = f"Set the environment variable {name}, or give a default: ${{{name}:-value}}."
            problems.append(UserError(msg, hint=hint, place=places.get(path)))
        return found or ""

    return _VARIABLE.sub(value, text)


def _problem(item: ErrorDetails, plain: Json, shown: str, places: Mapping[tuple[str | int, ...], Place]) -> UserError:
    """One pydantic error in the words of the file."""
    path = _file_path(item["loc"], plain)
    place = next((places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in places), Place(shown))
    node = str(path[1]) if len(path) > 1 and path[0] in ("sources", "transforms", "sinks") else ""
    key = str(path[-1]) if path else ""
    match item["type"]:
        case "extra_forbidden":
            allowed = _allowed_keys(path, plain)
            return UserError(
                f"unknown key `{key}`{_did_you_mean(key, allowed)}", node=node, place=place, hint=f"Allowed: {', '.join(allowed)}."
            )
        case "missing":
            return UserError(f"`{key}` is missing", node=node, place=place)
        case "union_tag_invalid" | "literal_error":
            expected = (
                str(item.get("ctx", {}).get("expected_tags") or item.get("ctx", {}).get("expected", ""))
                .replace("'", "")
                .replace(" or ", ", ")
            )
            what = "type" if item["type"] == "union_tag_invalid" else key
            value = item["input"].get("type") if isinstance(item["input"], Mapping) else item["input"]
            options = [part.strip() for part in expected.split(",")]
            place = places.get((*path, "type"), place)
            msg = f"{what} `{value}` is not known{_did_you_mean(str(value), options)}"
            return UserError(msg, node=node, place=place, hint=f"Allowed: {', '.join(options)}.")
        case "union_tag_not_found":
            return UserError("`type` is missing", node=node, place=place)
    said = item["msg"].removeprefix("Value error, ")
    shown_value = f" (found `{item['input']}`)" if isinstance(item["input"], str | int | float) else ""
    return UserError(f"`{'.'.join(str(part) for part in path[2 if node else 0 :]) or key}`: {said}{shown_value}", node=node, place=place)


def _file_path(loc: tuple[int | str, ...], plain: Json) -> tuple[int | str, ...]:
    """Pydantic's location without the union tags that the file does not have."""
    path: list[int | str] = []
    here: Any = plain
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if isinstance(here, dict) and (part in here or last):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            here = here[part] if part < len(here) else None
        elif not last:
            continue
        path.append(part)
    return tuple(path)


def _allowed_keys(path: tuple[int | str, ...], plain: Json) -> list[str]:
    kind: type[BaseModel] = nodes.PipelineModel
    if len(path) > 2 and path[0] in ("sources", "transforms", "sinks"):
        tag = plain[str(path[0])][path[1]].get("type")
        kind = _TAGS.get(f"{tag}:sink" if path[0] == "sinks" else tag, nodes.Node)
        path = path[2:]
    for part in path[:-1]:
        if isinstance(part, str) and part in kind.model_fields:
            inner = _model_in(kind.model_fields[part].annotation)
            kind = inner or kind
    return sorted(field.alias or name for name, field in kind.model_fields.items())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _did_you_mean(value: str, options: list[str]) -> str:
    close = difflib.get_close_matches(value, options, n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


def _in_order(problems: list[UserError]) -> list[UserError]:
    return sorted(problems, key=lambda problem: (problem.place.line or 0, problem.place.column or 0) if problem.place else (0, 0))

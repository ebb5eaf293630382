"""Reads YAML into plain values, with the location of each key, `${VAR}` filled in, and all mistakes.

It uses ruamel's composed nodes, because a constructed mapping no longer shows duplicate keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from headrace.pipeline.errors import FileLocation, PipelineFileError, UserError
from headrace.pipeline.yaml.interpolation import VARIABLE

Path = tuple[str | int, ...]

_CORE = "tag:yaml.org,2002:"
_SCRIPT = ("transforms", "node", "script")
WRAPPER = "definition"
"""A key around a whole file, which Streamling's tools accept."""
PARTS = ("sources", "transforms", "sinks")
"""The parts of the file with nodes."""
_DEEPEST = 40
_MOST = 100_000
_PROBLEMS = {
    "int": "is a number too large to read",
    "float": "is no number",
    "timestamp": "is no day or time of the calendar",
    "binary": "is no binary text",
}
_ADVICE = (
    ("'\\t'", "Indent with spaces; YAML takes no tabs there."),
    (
        "mapping values are not allowed",
        "Put a text with `: ` in it into quotes, or check the indentation of this line.",
    ),
    ("undefined alias", "Put a text that begins with `*` into quotes, or define the anchor above."),
    (
        "single document",
        "One file is one pipeline: remove the `---` and what follows, or put it into a file of its own.",
    ),
    ("cannot start any token", "Put a text that begins with this character into quotes."),
    ("unexpected end of stream", "A quote that is opened here is never closed."),
    ("escape character", "In double quotes a backslash is written twice; in single quotes once."),
    ("<stream end>", "A `[` or `{` that is opened above is never closed."),
    ("block end", "Check the indentation of this line, and of the one above."),
)


@dataclass(slots=True)
class YamlDocument:
    """The content of a file: plain values, the location of each key and item, strings as written, mistakes.

    `written` are strings with a variable in them. `variables` are the values of these. `texts` are the
    numbers and times as the file spells them. `spoiled` are the paths of values with a mistake: other
    mistakes in them follow from it.
    """

    shown: str
    value: Any = None
    places: dict[Path, FileLocation] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    texts: dict[Path, str] = field(default_factory=dict)
    problems: list[UserError] = field(default_factory=list)
    spoiled: set[Path] = field(default_factory=set)

    def place(self, path: Path) -> FileLocation:
        """Return the location of `path`, or of the nearest parent that the file contains."""
        return nearest_location(self.places, path) or FileLocation(self.shown, 1, 1)


def nearest_location(places: Mapping[Path, FileLocation], path: Path) -> FileLocation | None:
    """Return the location of `path`, or of its nearest parent."""
    return next((places[path[:end]] for end in range(len(path), -1, -1) if path[:end] in places), None)


def node_of(path: Path) -> str:
    """Return the node that a path is in, or "" outside of nodes."""
    inner = path[1:] if path[:1] == (WRAPPER,) else path
    return str(inner[1]) if len(inner) > 1 and inner[0] in PARTS else ""


def read_tree(text: str, shown: str, *, fill: bool = True) -> YamlDocument:
    """Read YAML. Raise PipelineFileError for invalid YAML. Smaller mistakes are in the tree's `problems`.

    `fill` means that `${VAR}` in a string is an environment variable.
    """
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
    except ReaderError as error:
        raise PipelineFileError([_unreadable(error, text, shown)]) from None
    except MarkedYAMLError as error:
        raise PipelineFileError([_not_yaml(error, shown)]) from None
    except (YAMLError, ValueError) as error:
        raise PipelineFileError(
            [UserError(f"not YAML: {str(error).splitlines()[0]}", place=FileLocation(shown, 1, 1))]
        ) from None
    except RecursionError:
        raise PipelineFileError([_too_deep(FileLocation(shown, 1, 1))]) from None
    tree = YamlDocument(shown)
    if root is not None:
        tree.value = _Walk(yaml, tree, fill=fill).value(root, ())
    return tree


def unwrap(tree: YamlDocument) -> None:
    """Replace the file by the content of `definition:`, which Streamling's files use."""
    inner = tree.value.get(WRAPPER)
    if not isinstance(inner, dict):
        return
    del tree.value[WRAPPER]
    for key in [key for key in inner if key in tree.value]:
        msg = f"`{key}` is given twice, here and under `{WRAPPER}`"
        tree.problems.append(UserError(msg, hint="Remove one of the two.", place=tree.place((key,))))
        del inner[key]
    tree.value |= inner
    for paths in (tree.places, tree.written, tree.texts):
        result: dict[Path, Any] = paths
        for path in [path for path in result if path[:1] == (WRAPPER,) and path[1:2] and path[1] in inner]:
            result[path[1:]] = result.pop(path)
    tree.spoiled = {path[1:] if path[:1] == (WRAPPER,) else path for path in tree.spoiled}


def shorten(value: object) -> str:
    """Return a value for a message, shortened to one line."""
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(value)
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unreadable(error: ReaderError, text: str, shown: str) -> UserError:
    before = text[: error.position].splitlines() or [""]
    place = FileLocation(shown, len(before), len(before[-1]) + 1)
    result = error.character if isinstance(error.character, int) else ord(error.character)
    return UserError(
        f"not YAML: the character U+{result:04X} is not allowed",
        hint="Is this a text file? Remove the character.",
        place=place,
    )


def _not_yaml(error: MarkedYAMLError, shown: str) -> UserError:
    quoted = "quoted scalar" in str(error.context) and "escape" not in str(error.problem)
    mark = (error.context_mark if quoted else None) or error.problem_mark or error.context_mark
    place = FileLocation(shown, mark.line + 1, mark.column + 1) if mark else FileLocation(shown, 1, 1)
    text = " ".join(part.strip() for part in (error.context, error.problem) if part)
    hint = next(
        (advice for sign, advice in _ADVICE if sign in text),
        "Check quotes, brackets and indentation of this line and the one above.",
    )
    if any(kind in str(error.context) for kind in ("flow mapping", "flow sequence")) and error.context_mark:
        hint = (
            f"The bracket that is opened in line {error.context_mark.line + 1} is not closed, or a comma"
            " is missing."
        )
    return UserError(
        f"not YAML: {shorten((error.problem or error.context or '').removeprefix('but '))}",
        hint=hint,
        place=place,
    )


def _too_deep(place: FileLocation) -> UserError:
    return UserError(
        "nested too deeply", hint=f"A pipeline file needs few levels; {_DEEPEST} are read.", place=place
    )


def _tag(node: Node) -> str:
    return shorten(str(node.tag).replace(_CORE, "!!"))


class _Walk:
    """One traversal of the nodes of a file."""

    def __init__(self, yaml: YAML, tree: YamlDocument, *, fill: bool) -> None:
        self._yaml, self._tree, self._fill, self._seen = yaml, tree, fill, 0

    def value(self, node: Node, path: Path) -> Any:
        """Return the plain values of a node. Record locations and problems."""
        self._seen += 1
        place = self._mark(node)
        self._tree.places.setdefault(path, place)
        if self._seen > _MOST:
            msg = "aliases (`*name`) make this file too large"
            raise PipelineFileError([UserError(msg, hint=f"It may have {_MOST:,} values.", place=place)])
        if len(path) > _DEEPEST:
            raise PipelineFileError([_too_deep(place)])
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if str(node.tag) != _CORE + ("map" if isinstance(node, MappingNode) else "seq"):
            self._problem(
                f"the tag `{_tag(node)}` is not known in a pipeline file", "Remove it.", place, path
            )
        if isinstance(node, MappingNode):
            return self._map(node, path)
        return (
            [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
            if isinstance(node, SequenceNode)
            else None
        )

    def _item(self, node: Node, path: Path) -> Any:
        self._tree.places[path] = self._mark(node)
        return self.value(node, path)

    def _map(self, node: MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        own: dict[str, int] = {}
        for key_node, value_node in node.value:
            if str(key_node.tag) == f"{_CORE}merge":
                for key, value in self._merge_mappings(value_node, path):
                    result.setdefault(key, value)
                continue
            key = self._key(key_node)
            if key is None:
                continue
            if key in own:
                msg = f"the key `{shorten(key)}` is given twice, first in line {own[key]}"
                self._problem(msg, "Remove one of the two, or give it another name.", self._mark(key_node))
                continue
            place = self._mark(key_node)
            own[key] = place.line or 0
            self._tree.places[*path, key] = place
            result[key] = self.value(value_node, (*path, key))
        return result

    def _merge_mappings(self, node: Node, path: Path) -> Iterator[tuple[str, Any]]:
        """Return the merged mapping of `<<: *name` and `<<: [*one, *two]`.

        The mapping's own keys take precedence.
        """
        for part in node.value if isinstance(node, SequenceNode) else [node]:
            if isinstance(part, MappingNode):
                if len(path) > _DEEPEST:
                    raise PipelineFileError([_too_deep(self._mark(part))])
                yield from self._map(part, (*path, "<<")).items()
            else:
                self._problem(
                    "`<<` merges maps only", "Write `<<: *name`, where `&name` is on a map.", self._mark(part)
                )

    def _key(self, node: Node) -> str | None:
        if isinstance(node, ScalarNode) and str(node.tag) in (f"{_CORE}str", f"{_CORE}value"):
            return str(node.value) if self._is_text(node) else None
        what = (
            f"`{shorten(node.value)}`" if isinstance(node, ScalarNode) and node.value else "what is no text"
        )
        self._problem(f"{what} cannot be a key", "Keys are texts; put it into quotes.", self._mark(node))
        return None

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        tag = str(node.tag)
        if tag in (f"{_CORE}str", f"{_CORE}value"):
            return self._fill_variables(str(node.value), path) if self._is_text(node) else ""
        kind = tag.removeprefix(_CORE)
        if kind not in ("int", "float", "bool", "null", "timestamp", "binary"):
            self._problem(
                f"the tag `{_tag(node)}` is not known in a pipeline file",
                "Remove it.",
                self._mark(node),
                path,
            )
            return str(node.value)
        try:
            result = self._yaml.constructor.construct_object(node)
        except (YAMLError, ValueError, OverflowError):
            problem = _PROBLEMS.get(kind, "cannot be read")
            hint = "Write another, or put it into quotes if it is meant as text."
            self._problem(f"`{shorten(node.value)}` {problem}", hint, self._mark(node), path)
            return str(node.value)
        if kind in ("int", "float", "timestamp"):
            self._tree.texts[path] = str(node.value)
        return result

    def _is_text(self, node: ScalarNode) -> bool:
        if any("\ud800" <= char <= "\udfff" for char in node.value):
            self._problem(
                "the text holds half a character (a lone surrogate)",
                "Write the whole character.",
                self._mark(node),
            )
            return False
        return True

    def _fill_variables(self, text: str, path: Path) -> str:
        def value(match: re.Match[str]) -> str:
            name, default = match[1], match[2]
            result = os.environ.get(name, default)
            if result is None:
                hint = f"Set the environment variable {name}, or give a default: ${{{name}:-value}}."
                self._problem(f"`${{{name}}}` is not set", hint, self._tree.place(path), path)
            self._tree.variables[name] = result or ""
            return result or ""

        # In a script `${name}` is JavaScript's own.
        program = len(path) >= len(_SCRIPT) and path[-3::2] == _SCRIPT[::2]
        filled = VARIABLE.sub(value, text) if self._fill and not program else text
        if filled != text:
            self._tree.written[path] = text
        return filled

    def _mark(self, node: Node) -> FileLocation:
        return FileLocation(self._tree.shown, node.start_mark.line + 1, node.start_mark.column + 1)

    def _problem(self, msg: str, hint: str, place: FileLocation, path: Path | None = None) -> None:
        if path is not None:
            self._tree.spoiled.add(path)
        self._tree.problems.append(UserError(msg, hint=hint, node=node_of(path or ()), place=place))

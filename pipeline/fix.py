"""`headrace validate --fix`: an older or another tool's spelling becomes today's. Comments, order and quotes stay."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.util import load_yaml_guess_indent

from headrace.pipeline.file import name_of, parse_pipeline
from headrace.pipeline.nodes import VERSION, WITHOUT_EFFECT, without_effect
from headrace.pipeline.tree import WRAPPER

_WIDEST = 10_000


def fixed(text: str, shown: str) -> tuple[str, list[str]]:
    """The text in today's spelling, and what was changed in words; the same text and nothing where it is so already.

    What the pipeline does stays the same. Raises PipelineFileError where the file has mistakes: those are for people to mend.
    """
    before = parse_pipeline(text, shown)
    _, indent, offset = load_yaml_guess_indent(text)
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDEST
    yaml.indent(mapping=2 if indent is None else indent - (offset or 0), sequence=indent or 2, offset=offset or 0)
    root = yaml.load(text)
    said = [*_unwrapped(root), *_removed(root), *_named(root, shown)]
    if not said:
        return text, []
    target = StringIO()
    yaml.dump(root, target)
    after = parse_pipeline(target.getvalue(), shown)
    if after.hash != before.hash:
        msg = "fixing changed what the pipeline does"
        raise AssertionError(msg)
    return target.getvalue(), said


def _unwrapped(root: CommentedMap) -> Iterator[str]:
    inner = root.get(WRAPPER)
    if not isinstance(inner, CommentedMap):
        return
    at = list(root).index(WRAPPER)
    del root[WRAPPER]
    for index, (key, value) in enumerate(inner.items()):
        root.insert(at + index, key, value)
        if key in inner.ca.items:
            root.ca.items[key] = inner.ca.items[key]
    yield f"took off `{WRAPPER}:` round the file"


def _removed(root: CommentedMap) -> Iterator[str]:
    for part in WITHOUT_EFFECT:
        for name, node in (root.get(part) or {}).items():
            silent = without_effect(part, node.get("type", ""))
            for key in [key for key in node if key in silent]:
                del node[key]
                yield f"node '{name}': removed `{key}`, which has no effect"


def _named(root: CommentedMap, shown: str) -> Iterator[str]:
    lacking: list[tuple[str, Any]] = [("version", VERSION), ("name", name_of(shown))]
    for at, (key, value) in enumerate(lacking):
        if key not in root:
            root.insert(min(at, len(root)), key, value)
            yield f"added `{key}: {value}`"

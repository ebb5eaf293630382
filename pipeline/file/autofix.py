"""`headrace validate --fix`: rewrites old or foreign spelling. Comments, order and quotes are kept."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.util import load_yaml_guess_indent
from sqlglot.expressions import Expr

from headrace.pipeline.errors import PipelineFileError, UserError
from headrace.pipeline.file.loader import name_of, parse_pipeline
from headrace.pipeline.model.nodes import VERSION, WITHOUT_EFFECT, without_effect
from headrace.pipeline.sql import statements
from headrace.pipeline.sql.dialects.translation import DIALECTS
from headrace.pipeline.yaml.reader import WRAPPER

_WIDEST = 10_000


def fix_file_text(text: str, shown: str) -> tuple[str, list[str]]:
    """Return the text in the current spelling, and a description of each change.

    A text that needs no change is returned as it is, without descriptions. SQL that Spark cannot read gets a
    `dialect:` if all dialects that can read it agree on its meaning. Otherwise the meaning of the pipeline
    stays the same. Raise PipelineFileError if the file has other mistakes, which the user must fix.
    """
    try:
        before, messages = parse_pipeline(text, shown), list[str]()
    except PipelineFileError:
        text, messages = _with_dialects(text)
        if not messages:
            raise
        before = parse_pipeline(text, shown)
    yaml, root = _load_text(text)
    respelled = [
        *_unwrap_pipeline(root),
        *_remove_keys_without_effect(root),
        *_add_version_and_name(root, shown),
    ]
    if not respelled:
        return text, messages
    text = _dump_text(yaml, root)
    if parse_pipeline(text, shown).hash != before.hash:
        msg = "fixing changed what the pipeline does"
        raise AssertionError(msg)
    return text, [*messages, *respelled]


def _load_text(text: str) -> tuple[YAML, CommentedMap]:
    """Return the parsed file, and a YAML writer that keeps its indentation, comments and quotes."""
    _, indent, offset = load_yaml_guess_indent(text)
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDEST
    yaml.indent(
        mapping=2 if indent is None else indent - (offset or 0), sequence=indent or 2, offset=offset or 0
    )
    return yaml, yaml.load(text)


def _dump_text(yaml: YAML, root: CommentedMap) -> str:
    target = StringIO()
    yaml.dump(root, target)
    return target.getvalue()


def _with_dialects(text: str) -> tuple[str, list[str]]:
    """Return the text with a `dialect:` at the nodes whose SQL needs one, and a description of each change.

    Return the same text and no description if no node needs one, or if the text is not a valid mapping.
    """
    try:
        yaml, root = _load_text(text)
    except YAMLError:
        return text, []
    inner = root.get(WRAPPER, root) if isinstance(root, CommentedMap) else None
    nodes = inner.get("transforms") if isinstance(inner, CommentedMap) else None
    messages = []
    for name, node in nodes.items() if isinstance(nodes, CommentedMap) else ():
        if not isinstance(node, CommentedMap) or not isinstance(node.get("sql"), str) or "dialect" in node:
            continue
        if result := _only_meaning(node["sql"]):
            node.insert(list(node).index("sql"), "dialect", result[0])
            others = f" ({' and '.join(result[1:])} would read the same)" if result[1:] else ""
            messages.append(
                f"node '{name}': added `dialect: {result[0]}`, since Spark cannot read its SQL{others}"
            )
    return (_dump_text(yaml, root), messages) if messages else (text, [])


def _only_meaning(text: str) -> list[str]:
    """Return the dialects that can read a statement that Spark cannot, if they all agree on its meaning."""
    result: dict[str, Expr] = {}
    for dialect in DIALECTS:
        try:
            result[dialect] = statements.parse(text, dialect=dialect)
        except UserError:
            continue
    return list(result) if "spark" not in result and len(set(result.values())) == 1 else []


def _unwrap_pipeline(root: CommentedMap) -> Iterator[str]:
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


def _remove_keys_without_effect(root: CommentedMap) -> Iterator[str]:
    for part in WITHOUT_EFFECT:
        for name, node in (root.get(part) or {}).items():
            silent = without_effect(part, node.get("type", ""))
            for key in [key for key in node if key in silent]:
                del node[key]
                yield f"node '{name}': removed `{key}`, which has no effect"


def _add_version_and_name(root: CommentedMap, shown: str) -> Iterator[str]:
    lacking: list[tuple[str, Any]] = [("version", VERSION), ("name", name_of(shown))]
    for at, (key, value) in enumerate(lacking):
        if key not in root:
            root.insert(min(at, len(root)), key, value)
            yield f"added `{key}: {value}`"

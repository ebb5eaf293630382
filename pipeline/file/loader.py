"""Loads a pipeline file: YAML with locations, `${VAR}`, and all mistakes in one error."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.pipeline.errors import (
    FileLocation,
    HeadraceError,
    PipelineFileError,
    PipelineStateError,
    PluginError,
    UserError,
)
from headrace.pipeline.file.typescript import javascript
from headrace.pipeline.model import nodes
from headrace.pipeline.model.plugins import SECRETS, TAG, PluginNodeConfig
from headrace.pipeline.plugins.options import secret_keys
from headrace.pipeline.plugins.preprocessors import PreprocessedText, preprocess
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.validation.dynamic_tables import check_tables
from headrace.pipeline.validation.guarantees import check_model
from headrace.pipeline.validation.messages import as_written, describe_file_errors
from headrace.pipeline.validation.structure import check_shape
from headrace.pipeline.validation.testcases import check_cases
from headrace.pipeline.validation.warnings import warnings_of
from headrace.pipeline.yaml.interpolation import keep_late
from headrace.pipeline.yaml.reader import PARTS, YamlDocument, nearest_location, read_tree, unwrap

_COMMAND = re.compile(r"(headrace (?:run|replay|accept-target|recover|rewind|reset|audit)) FILE\b")


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A valid pipeline file. `hash` changes with everything that changes the resulting rows."""

    model: nodes.PipelineModel
    path: str
    places: Mapping[tuple[str | int, ...], FileLocation]
    texts: Mapping[tuple[str | int, ...], str] = field(default_factory=dict)
    """Numbers and times as the file spells them, for the tests in it."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of the variables in the file's strings."""
    warnings: tuple[UserError, ...] = ()
    """Warnings with their locations."""

    @property
    def name(self) -> str:
        """The display name of the pipeline."""
        return self.model.name

    def place(self, *path: str | int) -> FileLocation:
        """Return the location of `path` in the file, or of its nearest parent that the file contains."""
        return nearest_location(self.places, path) or FileLocation(self.path)

    def place_of(self, name: str, *path: str | int) -> FileLocation:
        """Return the location of a node, or of `path` in it."""
        return self.place(next(part for part in PARTS if name in getattr(self.model, part)), name, *path)

    def lines_of(self, name: str, key: str) -> FileLocation | None:
        """Return the location of the first line of a node's multi-line string.

        None if it is not stored line by line.
        """
        node = self.model.nodes()[name]
        place, text = self.place_of(name, key), getattr(node, key, None)
        if not isinstance(text, str) or place.line is None:
            return None
        try:
            lines = Path(self.path).read_text(encoding="utf-8").splitlines()[place.line :]
        except (OSError, UnicodeDecodeError):
            return None
        wanted = text.rstrip("\n").split("\n")
        if [line.strip() for line in lines[: len(wanted)]] != [line.strip() for line in wanted]:
            return None
        first = next((index for index, line in enumerate(wanted) if line.strip()), 0)
        return FileLocation(place.file, place.line + 1, lines[first].index(wanted[first]) + 1)

    def locate(self, error: Exception) -> None:
        """Set the location of an error to its node, or to the key in the node that is wrong, if it has none.

        A PipelineStateError gets none, because the file is not at fault. Commands in hints name this file.
        """
        if (
            isinstance(error, UserError)
            and not isinstance(error, PipelineStateError)
            and error.place is None
            and error.node in self.model.nodes()
        ):
            error.place = self.place_of(error.node, *error.keys)
        if isinstance(error, HeadraceError):
            error.hint = _COMMAND.sub(lambda result: f"{result[1]} {self.path}", error.hint)

    def check_sink(self, name: str) -> None:
        """Raise UserError if the pipeline has no sink of this name."""
        if name not in self.model.sinks:
            msg = f"`{name}` is no sink of this pipeline"
            raise UserError(msg, hint=f"Sinks: {', '.join(self.model.sinks)}.", place=self.place("sinks"))

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Locate errors that the block raises."""
        try:
            yield
        except HeadraceError as error:
            self.locate(error)
            raise

    def hide_variables(self, text: str) -> str:
        """Return the text with `${NAME}` in place of each variable's value, which may be a secret."""
        for name, value in sorted(self.variables.items(), key=lambda item: len(item[1]), reverse=True):
            if value:
                # A shorter value must not replace a part of a word, such as `1` in `10`.
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _, name=name: f"${{{name}}}", text)
        return text

    def compiled(self) -> Json:
        """Return the compiled pipeline that the ledger stores.

        It is everything that decides the rows, with variables filled in. Strings that may contain secrets
        (`pipeline.yaml.interpolation`) are as the file has them.
        """
        silent: Any = {
            part: {
                name: set(nodes.without_effect(part, node.type) | nodes.WITHOUT_ROWS)
                for name, node in getattr(self.model, part).items()
            }
            for part in PARTS
        }
        return self.model.model_dump(
            mode="json",
            by_alias=True,
            include={"version", "name", "sources", "transforms", "sinks", "partitions"},
            exclude=silent,
        )

    @property
    def hash(self) -> str:
        """The hash of `compiled()`, 16 hex digits."""
        return hash_of(self.compiled())


def hash_of(body: Json) -> str:
    """Return the hash of a compiled pipeline as it is stored, independent of the release that wrote it."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def from_compiled(body: Json, path: str = "<ledger>", now: PipelineFile | None = None) -> PipelineFile:
    """Return the pipeline that the ledger stored, as a pipeline file.

    `now` is the current file. It supplies the secrets of plugins, which the ledger does not have. Raise
    PluginError if a plugin is missing or no longer accepts the options.
    """
    secrets: dict[str, dict[str, Any]] = {}
    for node in now.model.nodes().values() if now else ():
        if isinstance(node, PluginNodeConfig):
            secrets[node.type] = {
                key: node.options[key] for key in secret_keys(node.plugin.options) & node.options.keys()
            }
    try:
        return PipelineFile(nodes.PipelineModel.model_validate(body, context={SECRETS: secrets}), path, {})
    except ValidationError as error:
        wrong = next(iter(error.errors()))
        where = ".".join(str(part) for part in wrong["loc"][1:] if part != TAG)
        msg = (
            f"the pipeline of the open epoch, as the ledger stored it, cannot be read any more: {where}:"
            f" {wrong['msg']}"
        )
        hint = "Install the version of the plugin that the epoch was planned with, and run again."
        raise PluginError(msg, hint=hint) from None


def load_pipeline(path: str | Path) -> PipelineFile:
    """Read and check a pipeline file.

    Raise PipelineFileError with every mistake that was found, each with its line and column. Open no
    connection.
    """
    text = preprocess(
        read_text(path, "Give the path of a pipeline file, such as examples/flights.yaml."), str(path)
    )
    return parse_pipeline(text.text, str(path)) if not text.lines else _rewritten(text, str(path))


def _rewritten(text: PreprocessedText, shown: str) -> PipelineFile:
    """Return the pipeline of a text that preprocessors changed, with the locations of the original file."""
    try:
        pipeline = parse_pipeline(text.text, shown)
    except PipelineFileError as error:
        raise PipelineFileError([text.problem(problem) for problem in error.problems]) from None
    places = {path: text.place(place) for path, place in pipeline.places.items()}
    return replace(
        pipeline, places=places, warnings=tuple(text.problem(warning) for warning in pipeline.warnings)
    )


def read_text(path: str | Path, hint: str, place: FileLocation | None = None) -> str:
    """Return the content of a file. Raise PipelineFileError if it cannot be read.

    `place` is the location at which the path is written.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        strange = isinstance(error, UnicodeDecodeError)
        reason = f"it is not UTF-8 text (byte {error.start + 1})" if strange else error.strerror
        hint = "Save it as UTF-8 text." if strange else hint
        raise PipelineFileError(
            [UserError(f"`{path}` cannot be read: {reason}", hint=hint, place=place)]
        ) from None


def parse_pipeline(text: str, shown: str = "<text>") -> PipelineFile:
    """Parse and check the text of a pipeline file. Messages show `shown` in place of its path."""
    tree = read_tree(text, shown)
    if not isinstance(tree.value, dict):
        msg = "a pipeline file is a map with `name`, `sources` and `sinks`"
        hint = "docs/guides/clickhouse-kafka-postgres.md shows one from top to bottom."
        raise PipelineFileError([*tree.problems, UserError(msg, hint=hint, place=FileLocation(shown, 1, 1))])
    problems = tree.problems
    unwrap(tree)
    tree.value.setdefault("name", name_of(shown))
    for part in PARTS:
        if part in tree.value and tree.value[part] is None:
            tree.value[part] = {}
    problems += check_shape(tree)
    problems += check_cases(tree, tree.value)
    keep_late(tree.value, tree.written, nodes.types_of_requests())
    try:
        model = nodes.PipelineModel.model_validate(tree.value)
    except ValidationError as error:
        problems += describe_file_errors(error, tree)
        raise PipelineFileError(in_order(problems, tree)) from None
    pipeline_file = PipelineFile(model, shown, tree.places, texts=tree.texts, variables=tree.variables)
    if not problems:
        problems += check_tables(model, pipeline_file.place) or [
            *check_model(model, pipeline_file.place),
            *_types_in_scripts(pipeline_file),
        ]
    if problems:
        raise PipelineFileError(in_order(problems, tree))
    return replace(
        pipeline_file, warnings=tuple(in_order(list(warnings_of(model, pipeline_file.place)), tree))
    )


def _types_in_scripts(file: PipelineFile) -> Iterator[UserError]:
    """Yield the parts that cannot be removed from TypeScript.

    Without the parser's package nothing is checked here. A run then reports it.
    """
    for name, node in file.model.transforms.items():
        if node.type == "script" and node.language == "typescript" and find_spec("tree_sitter_typescript"):
            try:
                javascript(node.script, node=name, at=file.lines_of(name, "script"))
            except UserError as error:
                error.place = error.place or file.place_of(name, "script")
                yield error


def name_of(shown: str) -> str:
    """Return the name of a pipeline whose file has none, as in Streamling's files.

    It is the file's own name, with only the letters that a name may have.
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(shown).name.split(".")[0]).strip("_")
    return name if re.match(r"[A-Za-z_]", name) else f"pipeline_{name}".rstrip("_")


def in_order(problems: list[UserError], tree: YamlDocument) -> list[UserError]:
    """Return the mistakes in the order of the file, without the values of variables."""
    shown_problems = [as_written(problem, tree) for problem in problems]
    return sorted(
        shown_problems,
        key=lambda problem: (problem.place.line or 0, problem.place.column or 0) if problem.place else (0, 0),
    )

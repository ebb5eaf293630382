"""Loads the tests of pipeline files, and reports all mistakes in one error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from headrace.pipeline.errors import FileLocation, PipelineFileError, UserError
from headrace.pipeline.file.discovery import is_test_file
from headrace.pipeline.file.loader import PipelineFile, in_order, load_pipeline, read_text
from headrace.pipeline.model.strict import Strict
from headrace.pipeline.model.testcases import CaseConfig
from headrace.pipeline.sql.dynamic_tables import VALUE
from headrace.pipeline.testcases.rows import Rows, read_rows
from headrace.pipeline.validation.messages import describe_file_errors
from headrace.pipeline.validation.testcases import check_cases
from headrace.pipeline.yaml.reader import nearest_location, read_tree

SUFFIXES = (".yaml", ".yml")

_SECTION = re.compile(r"^ {0,4}tests\s*:", re.MULTILINE)
_SINKS = re.compile(r"^ {0,4}sinks\s*:", re.MULTILINE)


class CaseFileConfig(Strict):
    """A file of tests."""

    pipeline: str = Field(description="The pipeline file, relative to this one.")
    tests: dict[str, CaseConfig] = Field(description="Tests by name.")


@dataclass(frozen=True, slots=True)
class Case:
    """One test, with its pipeline and its file."""

    name: str
    node: CaseConfig
    file: PipelineFile
    path: Path
    places: Mapping[tuple[str | int, ...], FileLocation]
    texts: Mapping[tuple[str | int, ...], str]

    def place(self, *path: str | int) -> FileLocation:
        """Return the location of `path` within the test."""
        return nearest_location(self.places, ("tests", self.name, *path)) or FileLocation(str(self.path))

    def input_rows(self, node: str) -> Rows:
        """Return the rows of an input node, as written.

        Raise PipelineFileError if their file is unreadable.
        """
        return self._listed("given", node) or read_rows(
            self.node.given[node],
            self.path.parent,
            ("tests", self.name, "given", node),
            self.places,
            self.texts,
        )

    def expected_rows(self, node: str) -> Rows:
        """Return the rows of an expected node, as written. Raise PipelineFileError if they cannot be read."""
        return self._listed("expect", node) or read_rows(
            self.node.expect[node],
            self.path.parent,
            ("tests", self.name, "expect", node),
            self.places,
            self.texts,
        )

    def _listed(self, part: str, node: str) -> Rows | None:
        """Return the listed values of a dynamic table, as the file spells them (0x1F is a string here).

        None if the values are not listed.
        """
        path = ("tests", self.name, part, node)
        rows = (self.node.given if part == "given" else self.node.expect)[node].rows
        if (*path, 0) not in self.places or rows is None:
            return None
        values = [{VALUE: self.texts.get((*path, at), row[VALUE])} for at, row in enumerate(rows)]
        places: dict[tuple[str | int, ...], FileLocation] = {
            (at,): self.places[(*path, at)] for at in range(len(rows)) if (*path, at) in self.places
        }
        return Rows(values, self.place(part, node), places)


def has_tests(path: Path) -> bool:
    """Return whether a YAML file seems to have tests.

    The check is cheap, because folders have many YAML files.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return bool(_SECTION.search(text) and _SINKS.search(text))


def case_files(path: Path) -> list[Path]:
    """Return the files with tests for a path: a test file, a pipeline file and its test files, or a folder.

    Hidden folders and files without tests are skipped. A pipeline file without tests is returned only if it
    has no test files either.
    """
    if path.is_dir():
        return sorted(_below(path))
    if is_test_file(path):
        return [path]
    neighbors = sorted(
        other
        for other in path.parent.iterdir()
        if is_test_file(other) and other.name.startswith(f"{path.stem}.")
    )
    return [*([path] if has_tests(path) or not neighbors else []), *neighbors]


def _below(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(here, name)
            if is_test_file(path) or (path.suffix in SUFFIXES and has_tests(path)):
                yield path


def load_cases(path: Path) -> list[Case]:
    """Return the tests of one file in order: a file of tests, or a pipeline file with tests.

    Raise PipelineFileError with every mistake of the file, and of the pipeline file that it names.
    """
    if not is_test_file(path):
        file = load_pipeline(path)
        return [
            Case(name, node, file, path, file.places, file.texts) for name, node in file.model.tests.items()
        ]
    tree = read_tree(
        read_text(path, "Give the path of a file of tests, such as examples/flights.test.yaml."), str(path)
    )
    if not isinstance(tree.value, dict):
        hint = "docs/guides/test.md shows one."
        problem = UserError(
            "a file of tests is a map with `pipeline` and `tests`",
            hint=hint,
            place=FileLocation(str(path), 1, 1),
        )
        raise PipelineFileError([*tree.problems, problem])
    problems = tree.problems
    model = file = None
    try:
        model = CaseFileConfig.model_validate(tree.value)
    except ValidationError as error:
        problems += describe_file_errors(error, tree, CaseFileConfig)
    nodes: dict[str, Any] = {}
    elsewhere: list[UserError] = []
    named = tree.value.get("pipeline")
    if isinstance(named, str) and ("pipeline",) not in tree.spoiled:
        try:
            file = _load(path.parent / named, tree.place(("pipeline",)))
            nodes = file.model.model_dump(
                mode="python", by_alias=True, include={"sources", "transforms", "sinks"}
            )
        except PipelineFileError as error:
            elsewhere = list(error.problems)
    if file is not None:
        problems += check_cases(tree, nodes)
    if problems or elsewhere or model is None or file is None:
        raise PipelineFileError([*in_order(problems, tree), *elsewhere])
    return [Case(name, node, file, path, tree.places, tree.texts) for name, node in model.tests.items()]


def _load(path: Path, named: FileLocation) -> PipelineFile:
    read_text(path, "`pipeline` is relative to this file.", named)
    return load_pipeline(path)

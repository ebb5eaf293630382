"""Every error class has its own code and an entry on the errors page."""

from __future__ import annotations

import error_pages
import pytest
from helpers.checkout import ROOT

from headrace.pipeline.errors import (
    FileLocation,
    HeadraceError,
    PipelineFileError,
    SchemaError,
    UserError,
    error_code,
)


def test_each_class_has_a_code_and_an_action_of_its_own() -> None:
    classes = error_pages.error_classes()
    assert len({error.code for error in classes}) == len(classes)
    assert not [
        error.__name__ for error in classes if "code" not in vars(error) or "action" not in vars(error)
    ]


def test_each_code_has_an_entry() -> None:
    text = (ROOT / "docs/reference/errors.md").read_text()
    assert [error.code for error in error_pages.error_classes()] == [
        line[3:] for line in text.splitlines() if line.startswith("## ")
    ]


def test_errors_of_connectors_are_listed() -> None:
    """Classes outside pipeline/errors.py are found by walking the packages."""
    assert {"ConnectionLostError", "UniqueError"} < {error.__name__ for error in error_pages.error_classes()}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x"), UserError.code),
        (UserError("x", place=FileLocation("a.yaml", 3)), PipelineFileError.code),
        (SchemaError("x", place=FileLocation("a.yaml", 3)), SchemaError.code),
    ],
)
def test_a_plain_mistake_of_a_file_has_the_code_of_the_file(error: HeadraceError, code: str) -> None:
    assert error_code(error) == code

"""Generated pages are up to date."""

from __future__ import annotations

import build
import node_pages
import option_tables
import pytest
from pydantic import BaseModel

from headrace.pipeline.model.nodes import PipelineModel

NODES = {
    f"{part}/{kind}": model
    for part in node_pages.UNIONS
    for kind, model in node_pages.node_types(part).items()
}


def test_committed_pages_are_what_the_generator_writes() -> None:
    made = build.pages()
    stale = [
        str(path.relative_to(build.DOCS))
        for path, text in made.items()
        if not path.exists() or path.read_text() != text
    ]
    stale += [str(path.relative_to(build.DOCS)) for path in build.NODES.rglob("*.md") if path not in made]
    assert not stale, f"run `make docs` and commit: {', '.join(sorted(stale))}"


@pytest.mark.parametrize("name", ["pipeline", *NODES])
def test_every_type_has_prose_and_an_example(name: str) -> None:
    part = build.PARTS / name
    missing = [
        path.name for path in (part.with_suffix(".md"), part.with_suffix(".yaml")) if not path.exists()
    ]
    assert not missing, f"write tools/docs/parts/{name}: {', '.join(missing)}"


def test_no_part_is_left_of_a_type_that_is_gone() -> None:
    parts = {str(path.relative_to(build.PARTS).with_suffix("")) for path in (build.PARTS).rglob("*.md")}
    assert parts == {"pipeline", "types", "functions", "metrics", "errors", *NODES}


@pytest.mark.parametrize("model", [PipelineModel, *NODES.values()], ids=lambda model: model.__name__)
def test_every_key_of_a_file_says_what_it_does(model: type[BaseModel]) -> None:
    rows = [
        line
        for table in option_tables.tables(model, 3)
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) >= len(model.model_fields) - 1
    assert not [row for row in rows if row.endswith("|  |")]

"""The JSON Schema for editors is valid, accepts valid files, and rejects mistakes that a schema can find."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any, Literal

import pytest
from helpers.checkout import ROOT
from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

from headrace.pipeline.file.json_schema import DRAFT, file_schema
from headrace.pipeline.file.loader import parse_pipeline

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str, dt.date),  # YAML's plain dates are text to an editor
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
Kind = Literal["object", "array", "string", "integer", "number", "boolean", "null"]


class Schema(BaseModel):
    """The part of JSON Schema that is used.

    A keyword beyond it, or one that holds the wrong thing, is an error.
    """

    model_config = ConfigDict(extra="forbid")

    draft: str = Field(default=DRAFT, alias="$schema", pattern=f"^{re.escape(DRAFT)}$")
    definitions: dict[str, Schema] = Field(default={}, alias="$defs")
    ref: str | None = Field(default=None, alias="$ref", pattern=r"^#/\$defs/\w+$")
    title: str = ""
    description: str = ""
    default: Any = None
    examples: list[Any] = []
    type: Kind | list[Kind] = []
    const: Any = None
    enum: list[Any] = []
    pattern: re.Pattern[str] | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusiveMinimum: int | None = None  # noqa: N815  the standard's name
    items: Schema | None = None
    minItems: int = 0  # noqa: N815
    maxItems: int = 2**31  # noqa: N815
    properties: dict[str, Schema] = {}
    required: list[str] = []
    additionalProperties: bool | Schema = True  # noqa: N815
    minProperties: int = 0  # noqa: N815
    anyOf: list[Schema] = []  # noqa: N815
    oneOf: list[Schema] = []  # noqa: N815
    discriminator: dict[str, Any] = {}

    def takes(self, value: Any, root: Schema) -> bool:
        """Whether a value passes."""
        kinds = [self.type] if isinstance(self.type, str) else self.type
        return (
            (not self.ref or root.definitions[self.ref.rsplit("/", 1)[1]].takes(value, root))
            and (not self.anyOf or any(part.takes(value, root) for part in self.anyOf))
            and (not self.oneOf or sum(part.takes(value, root) for part in self.oneOf) == 1)
            and (
                not kinds
                or any(
                    isinstance(value, KINDS[kind]) and isinstance(value, bool) == (kind == "boolean")
                    for kind in kinds
                )
            )
            and self._takes_content(value, root)
        )

    def _takes_content(self, value: Any, root: Schema) -> bool:
        if isinstance(value, dict):
            return self._takes_object(value, root)
        if isinstance(value, list):
            return self.minItems <= len(value) <= self.maxItems and (
                self.items is None or all(self.items.takes(item, root) for item in value)
            )
        if self.exclusiveMinimum is not None and value <= self.exclusiveMinimum:
            return False
        if self.minimum is not None and value < self.minimum:
            return False
        if self.maximum is not None and value > self.maximum:
            return False
        right = self.const in (None, value) and (not self.enum or value in self.enum)
        return right and (self.pattern is None or self.pattern.search(str(value)) is not None)

    def _takes_object(self, value: dict[str, Any], root: Schema) -> bool:
        for key, inner in value.items():
            part = self.properties.get(key, self.additionalProperties)
            if part is False or (isinstance(part, Schema) and not part.takes(inner, root)):
                return False
        return len(value) >= self.minProperties and set(self.required) <= set(value)


SCHEMA = Schema.model_validate(json.loads(json.dumps(file_schema())))
GOOD = """
version: 1
name: tiny
sources:
  src:
    type: kafka
    primary_key: id
    topic: t
    schema: {id: int64, at: timestamp}
sinks:
  out:
    type: postgres
    from: src
    table: t
epoch:
  interval: 1s
"""


def takes(text: str) -> bool:
    return SCHEMA.takes(YAML(typ="safe").load(text), SCHEMA)


def examples() -> list[str]:
    """Every pipeline file that is shown to anybody, from the examples and from the pages."""
    pages = [
        block
        for page in PAGES
        for block in re.findall(
            r"^version: 1\n.*?(?=^(?:EOF|```)$)", page.read_text(), re.MULTILINE | re.DOTALL
        )
    ]
    return [
        path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml")) if ".test." not in path.name
    ] + pages


@pytest.mark.parametrize("text", [GOOD, *examples()])
def test_good_files_pass(text):
    parse_pipeline(text)
    assert takes(text)


def test_there_are_examples_in_the_pages():
    assert len(examples()) > len(list((ROOT / "examples").glob("*.yaml")))


@pytest.mark.parametrize(
    ("here", "wrong"),
    [
        ("table: t", "tabel: t"),
        ("    table: t\n", ""),
        ("type: postgres", "type: postgre"),
        ("    type: kafka\n", ""),
        ("name: tiny", "name: 1tiny"),
        ("name: tiny\n", ""),
        ("version: 1", "version: 2"),
        ("table: t", "table: [t]"),
        ("table: t", "table: t\n    on_conflict: updat"),
        ("table: t", "table: t\n    update_where: {a: '~'}"),
        ("table: t", "table: t\n    max_driver_rows: 0"),
        ("table: t", "table: t\n    max_driver_rows: many"),
        ("interval: 1s", "interval: soon"),
        ("interval: 1s", "intervall: 1s"),
        ("epoch:", "partitions: {column: at, start: 2013, end: 2014-01}\nepoch:"),
        ("epoch:", "job_mode: perhaps\nepoch:"),
        ("sinks:\n", "sinks: {}\nother:\n"),
        ("epoch:", "tests: {one: {now: soon}}\nepoch:"),
        ("epoch:", "tests: {one: {expect: {out: {rows: [], tolerance: -1}}}}\nepoch:"),
        ("epoch:", "tests: {one: {expect: {out: {row: []}}}}\nepoch:"),
    ],
)
def test_mistakes_that_a_schema_can_see_do_not_pass(here, wrong):
    assert here in GOOD
    assert not takes(GOOD.replace(here, wrong))


@pytest.mark.parametrize(
    ("here", "other"),
    [
        ("primary_key: id", "primary_key: [id, at]"),
        ("table: t", "table: t\n    max_driver_rows: ${ROWS:-5}"),
        ("table: t", "table: t\n    on_conflict: ${HOW:-nothing}"),
        ("name: tiny", "name: ${NAME:-tiny}"),
        ("sinks:", "transforms:\nsinks:"),
        ("epoch:", "job_mode: ${JOB:-false}\nepoch:"),
        ("interval: 1s", "interval: 1h 30m"),
        (
            "epoch:",
            (
                "tests: {one: {now: 2025-01-01, given: {src: {rows: [{id: 1}]}}, expect: {out: {rows: [],"
                " tolerance: 0.1}}}}\nepoch:"
            ),
        ),
    ],
)
def test_other_ways_to_write_it_pass_as_they_do_with_validate(here, other):
    text = GOOD.replace(here, other)
    parse_pipeline(text)
    assert takes(text)


def test_an_editor_has_something_to_show():
    """Descriptions, defaults as the file would say them, and `type` first among what is required."""
    schema = file_schema()
    postgres = schema["$defs"]["PostgresSinkConfig"]
    assert postgres["required"][0] == "type"
    assert postgres["properties"]["update_where"]["description"].startswith("`{column: op}`")
    assert schema["$defs"]["EpochOptions"]["properties"]["interval"]["default"] == "5s"
    assert schema["properties"]["stream"]["default"] == {
        "mode": "continuous",
        "max_run_time": "6h",
        "report_interval": "4m",
    }

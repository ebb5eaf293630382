"""Scripts and functions in a pipeline file, before they run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.jobs.explain.descriptions import program_of
from headrace.jobs.staging.determinism import nondeterministic_nodes
from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file.loader import from_compiled, parse_pipeline

FILE = """\
version: 1
sources:
  s: {type: kafka, topic: t, schema: {id: int64}, primary_key: id}
transforms:
  n:
    type: %s
    from: s
%s
sinks:
  o: {type: blackhole, from: n}
"""
SCRIPT = {"language": "js", "script": "'const process = (r) => r'"}
PYTHON = {"function": "'shop.rates:in_euro'"}


def file(kind: str, **keys: Any) -> str:
    """The pipeline with these keys of its transform."""
    base = SCRIPT if kind == "script" else PYTHON
    return FILE % (
        kind,
        "\n".join(f"    {key}: {value}" for key, value in (base | keys).items() if value is not None),
    )


@pytest.mark.parametrize(
    ("spelling", "meant"),
    [("js", "javascript"), ("JavaScript", "javascript"), ("ts", "typescript"), ("typescript", "typescript")],
)
def test_languages_have_short_names(spelling: str, meant: str) -> None:
    node: Any = parse_pipeline(file("script", language=spelling)).model.transforms["n"]
    assert node.language == meant
    assert node.inputs("n") == ("s",)


@pytest.mark.parametrize(
    ("spelling", "size"),
    [("64MiB", 64 << 20), ("64 mib", 64 << 20), ("100MB", 10**8), ("1GiB", 1 << 30), (16777216, 16 << 20)],
)
def test_memory_has_a_unit_or_none(spelling: Any, size: int) -> None:
    node: Any = parse_pipeline(file("script", memory_limit=spelling, timeout="500ms")).model.transforms["n"]
    assert node.memory_limit == size
    assert node.timeout == timedelta(milliseconds=500)


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("script", {"language": "python"}, "<text>:8:5: node 'n': `language` cannot be `python`"),
        ("script", {"language": None}, "`language` is missing"),
        ("script", {"memory_limit": "1kb"}, "`1kb` is not between 8MiB and 2GiB"),
        ("script", {"memory_limit": "many"}, "`many` is no size"),
        ("script", {"memory_limit": "true"}, "`true` is no size"),
        ("script", {"timeout": "0s"}, "<text>:10:5: node 'n': `timeout` is 0"),
        ("script", {"parallelism": 0}, "`parallelism` must be a whole number above 0"),
        ("script", {"batch_size": 0}, "`batch_size` must be a whole number above 0"),
        ("script", {"schema": "{}"}, "`schema` is empty"),
        ("script", {"schema": "{a: integer}"}, "column `a`: unsupported data type `integer`"),
        (
            "script",
            {"telemetry": "{labels: {language: x}}"},
            "the label `language` is set by Headrace itself",
        ),
        ("script", {"options": "{}"}, "unknown key `options`"),
        ("script", {"from": "nobody"}, "reads `nobody`, which is no source or transform"),
        (
            "python",
            {"function": "shop.rates"},
            "`function`: `shop.rates` names no function; write it as `package.module:name`",
        ),
        ("python", {"schema": "{a: texts}"}, "column `a`: unsupported data type `texts`"),
        ("python", {"script": "x"}, "unknown key `script`"),
    ],
)
def test_mistakes_are_told_where_they_stand(kind: str, keys: dict[str, Any], message: str) -> None:
    text = file(kind, **{key: value for key, value in keys.items() if key != "from"})
    with pytest.raises(PipelineFileError) as caught:
        parse_pipeline(text.replace("from: s", f"from: {keys.get('from', 's')}"))
    assert message in str(caught.value)


def test_rows_are_staged_where_nobody_promises_the_same_ones_again() -> None:
    for kind, keys, staged in (
        ("script", {}, False),
        ("script", {"deterministic": "false"}, True),
        ("python", {}, True),
        ("python", {"deterministic": "true"}, False),
    ):
        assert bool(nondeterministic_nodes(parse_pipeline(file(kind, **keys)).model)) is staged, (kind, keys)


@pytest.mark.parametrize("wrapped", [False, True])
def test_templates_of_a_script_are_javascripts_own(monkeypatch: pytest.MonkeyPatch, wrapped: bool) -> None:
    monkeypatch.setenv("id", "wrong")
    text = file(
        "script", script="'const process = ({id}) => ({id: `${id}${other:-x}`})'", timeout="${LIMIT:-7s}"
    )
    text = (
        "definition:\n" + "".join(f"  {line}\n" for line in text.splitlines() if "version" not in line)
        if wrapped
        else text
    )
    node: Any = parse_pipeline(text).model.transforms["n"]
    assert "`${id}${other:-x}`" in node.script
    assert node.timeout == timedelta(seconds=7)


def test_what_an_explanation_says_of_them() -> None:
    script, python = (parse_pipeline(file(kind)).model.transforms["n"] for kind in ("script", "python"))
    assert program_of(script) == (("runs", "javascript in a sandbox: 1m per call, 128 MiB"),)
    assert program_of(python) == (("runs", "`shop.rates:in_euro` in Spark's workers, as the settings allow"),)


def test_the_ledger_keeps_them_and_limits_that_change_no_row_too() -> None:
    first = parse_pipeline(file("script", memory_limit="64MiB", schema="{id: int64}"))
    again = from_compiled(first.compiled())
    assert again.model.transforms == first.model.transforms
    assert again.hash == first.hash
    assert (
        first.hash
        != parse_pipeline(file("script", schema="{id: int64}", script="'const process = (r) => null'")).hash
    )
    assert (
        first.hash
        == parse_pipeline(
            file("script", memory_limit="64MiB", schema="{id: int64}", batch_flush_interval="1s")
        ).hash
    )

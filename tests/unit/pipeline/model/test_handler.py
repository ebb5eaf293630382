"""A handler in a pipeline file.

What may be said, what is a mistake, and that no secret stays in what is stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.jobs.staging.determinism import nondeterministic_nodes, nondeterministic_upstream
from headrace.jobs.transforms.http.endpoint import find_endpoint_errors
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineFileError, SettingsError, UserError
from headrace.pipeline.file.loader import PipelineFile, from_compiled, parse_pipeline
from headrace.pipeline.model.http import redact_url
from headrace.pipeline.yaml.interpolation import interpolate

FILE = """
version: 1
name: asks
sources: {src: {type: kafka, topic: t, primary_key: id, schema: {id: int64, name: string}}}
transforms:
  ask: {type: handler, from: src, url: "https://host/rows", MORE}
  after: {type: sql, sql: "select * from ask"}
  beside: {type: sql, sql: "select id, name from src"}
sinks:
  one: {type: blackhole, from: after}
  two: {type: blackhole, from: beside}
"""


def parsed(more: str = "batch_size: 5") -> PipelineFile:
    return parse_pipeline(FILE.replace("MORE", more), "f.yaml")


def refusal(more: str) -> str:
    with pytest.raises(PipelineFileError) as caught:
        parsed(more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "schema_override: {a: Int63}",
            "column `a`: unsupported data type `Int63` in schema; did you mean `int64`?",
        ),
        ("schema_override: {_gs_op: Utf8}", "`_gs_op` cannot be overridden"),
        ("payload_version: 2", "`payload_version` cannot be `2`"),
        ("headers: {'bad name': x}", "`bad name` cannot be a header's name"),
        ('headers: {X-A: "a\\nb"}', "the header `X-A` has a control character in it"),
        ("headers: {Idempotency-Key: x}", "the header `Idempotency-Key` is set by Headrace itself"),
        ("timeout: 0s", "`timeout` must be longer than nothing"),
        ("retry: {timeout: soon}", "`retry.timeout`: `soon` is not a duration"),
        ("parallelism: 0", "`parallelism` must be a whole number above 0"),
        ("batch_size: 0", "`batch_size` must be a whole number above 0"),
        ("retries: 3", "unknown key `retries`"),
    ],
)
def test_a_mistake_is_told(more: str, message: str) -> None:
    assert f"node 'ask': {message}" in refusal(more)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/", "must begin with http:// or https://"),
        ("host/rows", "must begin with http:// or https://"),
        ("https:///rows", "names no host"),
        ("https://host:port/", "cannot be read as a URL"),
        ("https://host/a b", "has a blank in it"),
        ("https://canary-user:canary-word@:1", "names no host"),
    ],
)
def test_a_url_that_is_none_is_told_and_not_shown(url: str, message: str) -> None:
    with pytest.raises(PipelineFileError, match=f"`url` {message}") as caught:
        parse_pipeline(FILE.replace("https://host/rows", url).replace("MORE", "batch_size: 5"))
    assert "canary" not in str(caught.value)


def test_forever_is_among_what_the_retry_timeout_takes() -> None:
    assert refusal("retry: {timeout: always}").endswith("units: us, ms, s, m, min, h, d, w; or `forever`")


def test_names_of_arrow_are_taken() -> None:
    model: Any = parsed(
        'schema_override: {a: LargeUtf8, b: "Timestamp(Microsecond, Some(\\"UTC\\"))", c: "Decimal128(10,'
        ' 2)", d: null}'
    ).model
    assert model.transforms["ask"].schema_override == {
        "a": "utf8",
        "b": "timestamp",
        "c": "Decimal128(10, 2)",
        "d": None,
    }


def test_variables_stay_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASK_TOKEN", "canary")
    monkeypatch.setenv("ASK_SIZE", "7")
    text = FILE.replace("https://host/rows", "https://host/rows?key=${ASK_TOKEN}")
    file = parse_pipeline(
        text.replace("MORE", "headers: {X-Key: 'k ${ASK_TOKEN}'}, batch_size: '${ASK_SIZE}'")
    )
    node: Any = file.model.transforms["ask"]
    assert (node.headers["X-Key"], node.batch_size) == ("k ${ASK_TOKEN}", 7)
    assert "canary" not in str(file.compiled())
    assert interpolate(node.url) == "https://host/rows?key=canary"
    before = file.hash
    monkeypatch.setenv("ASK_TOKEN", "rotated")
    assert from_compiled(file.compiled()).hash == before
    monkeypatch.delenv("ASK_TOKEN")
    with pytest.raises(UserError, match=r"`[$]{ASK_TOKEN}` is not set"):
        interpolate(node.url, node="ask")
    with pytest.raises(PipelineFileError, match=r"`[$]{ASK_TOKEN}` is not set"):
        parse_pipeline(text.replace("MORE", "batch_size: 5"))


def test_secrets_that_stand_in_the_file_are_worth_a_word() -> None:
    file = parse_pipeline(
        FILE.replace("https://host", "https://u:word@host").replace("MORE", "headers: {Authorization: abc}")
    )
    assert [word.message for word in file.warnings] == [
        "`url` holds a password",
        "the header `Authorization` holds a secret",
    ]
    assert not parsed("headers: {Authorization: '${TOKEN:-x}'}").warnings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host:8443/a/b", "https://host:8443/a/b"),
        ("https://user:word@host/a?token=abc&x=1#frag", "https://***@host/a?***"),
        ("https://hooks.host/services/T0123456789012345678901234/x", "https://hooks.host/services/***/x"),
        ("https://${USER}:${WORD}@${HOST}/a/${ID}?k=${KEY}", "https://***@${HOST}/a/${ID}?***"),
        ("${URL:-https://user:word@host/}", "${URL}"),
        ("https://[bad/", "(a URL that cannot be read)"),
    ],
)
def test_a_url_is_shown_without_what_is_nobodys_business(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_what_has_an_effect_is_part_of_the_pipeline() -> None:
    assert parsed("parallelism: 2").hash != parsed("parallelism: 3").hash
    assert parsed("batch_flush_interval: 2s").hash == parsed("batch_flush_interval: 3s").hash
    assert [word.message for word in parsed("parallelism: 2, batch_flush_interval: 3s").warnings] == [
        "`batch_flush_interval` has no effect"
    ]


def test_who_is_impure_and_who_reads_it() -> None:
    model = parsed().model
    assert nondeterministic_nodes(model) == {
        "ask": "it calls an HTTP service, whose responses can differ between calls"
    }
    assert nondeterministic_upstream(model, "one") == ["ask"]
    assert nondeterministic_upstream(model, "two") == []


@pytest.mark.parametrize(
    ("header", "value", "message"), [("", "v", "http_secret_header.k"), ("H", "", "http_secret_value.k")]
)
def test_half_a_secret_is_told(header: str, value: str, message: str) -> None:
    settings = Settings.model_validate(
        {"http_secret_header": {"k": header}, "http_secret_value": {"k": value}}
    )
    with pytest.raises(SettingsError, match=message):
        settings.http_secret("K")


SECRET = {"http_secret_header": {"crm": "X-Key"}, "http_secret_value": {"crm": "word"}}


@pytest.mark.parametrize(
    ("more", "settings", "message"),
    [
        ("secret_name: crm", {}, "the secret `crm` has no `http_secret_header.crm`"),
        (
            "secret_name: crm, headers: {x-key: a}",
            SECRET,
            "cannot set both 'secret_name' and an explicit 'X-Key' header - remove one",
        ),
        (
            "secret_name: crm",
            SECRET | {"http_secret_value": {"crm": "a\nb"}},
            "the header `X-Key` has a control character in it",
        ),
        ("headers: {X-A: '${ASK_TOKEN}'}", {}, "the header `X-A` has a control character in it"),
    ],
)
def test_a_run_with_half_a_secret_begins_nothing(
    more: str, settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASK_TOKEN", "a\tb")
    with pytest.raises(PipelineFileError) as caught:
        run(parsed(more), Settings(home=tmp_path / "home", **settings), until=Until.CAUGHT_UP)
    (problem,) = caught.value.problems
    assert (problem.node, problem.message) == ("ask", message)
    assert problem.place
    assert problem.place.line == parsed(more).place_of("ask").line
    assert not (tmp_path / "home").exists()


def test_a_whole_secret_is_enough() -> None:
    assert (
        find_endpoint_errors(parsed("secret_name: CRM, headers: {X-A: b}"), Settings.model_validate(SECRET))
        == []
    )

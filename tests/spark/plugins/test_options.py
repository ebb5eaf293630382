"""Options of plugins in a pipeline file, and the errors for wrong ones. No Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.plugin_files import install

import headrace
from headrace.connectors.registry import plugin_context
from headrace.jobs.run.events import Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineFileError, PluginError
from headrace.pipeline.file.json_schema import file_schema
from headrace.pipeline.file.loader import PipelineFile, from_compiled, load_pipeline, parse_pipeline
from headrace.pipeline.plugins.discovery import find, list_installed, load
from headrace.pipeline.plugins.runtime import PluginState

FILE = """\
version: 1
name: p
sources:
  src:
    type: acme.numbers
    upto: 7
    batch_size: 3
    options:
      step: 2
      upto: 9
sinks:
  out:
    type: acme.folder
    from: src
    primary_key: id
    delivery: exactly_once
    batch_size: 5
    path: here
    token: secret-word
"""


def node(file: PipelineFile, name: str) -> Any:
    return file.model.nodes()[name]


def wrong(text: str) -> list[str]:
    with pytest.raises(PipelineFileError) as caught:
        parse_pipeline(text, "f.yaml")
    return str(caught.value).splitlines()


def test_flat_options_win_and_keys_of_the_node_are_none_of_them() -> None:
    file = parse_pipeline(FILE, "f.yaml")
    source, sink = node(file, "src"), node(file, "out")
    assert source.parsed.model_dump() == {"upto": 7, "step": 2, "batch_size": 3}
    assert sink.parsed.primary_key == ["id"]
    assert set(sink.options) == {"path", "token", "primary_key"}
    assert (sink.batch_size, sink.delivery) == (5, "exactly_once")


def test_variables_win_over_the_file_and_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMLING__PLUGIN__ACME_NUMBERS__UPTO", "20")
    monkeypatch.setenv("STREAMLING__PLUGIN__ACME_NUMBERS__STEP", "3")
    monkeypatch.setenv("HEADRACE__PLUGIN__ACME_NUMBERS__UPTO", "30")
    file = parse_pipeline(FILE, "f.yaml")
    assert node(file, "src").parsed.model_dump() == {"upto": 30, "step": 3, "batch_size": 3}
    assert file.compiled()["sources"]["src"]["options"] == {"batch_size": 3}


def test_secrets_are_not_stored_and_come_back_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = parse_pipeline(FILE, "f.yaml")
    stored = file.compiled()
    assert "secret-word" not in json.dumps(stored)
    assert "secret-word" not in repr(file.model)
    assert file.hash == parse_pipeline(FILE.replace("secret-word", "other-word"), "f.yaml").hash
    again = from_compiled(stored, now=file)
    assert node(again, "out").parsed.token.get_secret_value() == "secret-word"
    assert again.hash == file.hash
    with pytest.raises(PluginError, match="token"):
        from_compiled(stored)
    (tmp_path / "word").write_text("from-a-file\n")
    for written in (f"{{file: {tmp_path}/word}}", "{env: WORD}"):
        monkeypatch.setenv("WORD", "from-a-file")
        pipeline = parse_pipeline(FILE.replace("secret-word", written), "f.yaml")
        assert node(pipeline, "out").parsed.token.get_secret_value() == "from-a-file"


@pytest.mark.parametrize(
    ("here", "instead", "says"),
    [
        ("upto: 7", "uptoo: 7", ["6:5: node 'src': unknown key `uptoo`; did you mean `upto`?"]),
        (
            "    upto: 7\n",
            "    upto: many\n",
            ["6:5: node 'src': `upto` must be a whole number, and is `many`"],
        ),
        ("step: 2", "step: [2]", ["9:7: node 'src': `options.step` must be a whole number, and is a list"]),
        ("    path: here\n", "", ["12:3: node 'out': `path` is missing"]),
        ("path: here", "path: ''", ["18:5: node 'out': `path` is missing"]),
        (
            "token: secret-word",
            "token: [secret-word]",
            ["19:5: node 'out': `token`: Input should be a valid string"],
        ),
        (
            "token: secret-word",
            "token: {env: NOT_THERE}",
            ["19:5: node 'out': `token`: refers to the variable NOT_THERE, which is not set"],
        ),
        ("delivery: exactly_once", "delivery: twice", ["16:5: node 'out': `delivery` cannot be `twice`"]),
        (
            "    from: src\n    primary",
            "    form: src\n    primary",
            [
                "12:3: node 'out': `from` is missing",
                "14:5: node 'out': unknown key `form`; did you mean `from`?",
            ],
        ),
        (
            "type: acme.numbers",
            "type: acme.twice",
            [
                (
                    "5:5: node 'src': the plugin `acme.twice` (acme-plugins 1.0, acme_plugins:twice) is a"
                    " transform, not a source"
                )
            ],
        ),
        (
            "type: acme.numbers",
            "type: acme.number",
            ["5:5: node 'src': source type `acme.number` is a plugin's, and no such plugin is installed"],
        ),
        (
            "type: acme.numbers",
            "type: kafak",
            ["5:5: node 'src': source type `kafak` is not known; did you mean `kafka`?"],
        ),
        (
            "options:\n      step: 2\n      upto: 9",
            "options: 5",
            ["8:5: node 'src': `options` must be a map of keys and values, and is `5`"],
        ),
    ],
)
def test_a_mistake_is_told_where_it_stands(here: str, instead: str, says: list[str]) -> None:
    assert here in FILE
    lines = wrong(FILE.replace(here, instead, 1))
    assert [line.removeprefix("f.yaml:") for line in lines if line.startswith("f.yaml")] == says
    assert "secret-word" not in "".join(lines)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE__PLUGIN__ACME_NUMBERS__UPTO", "many")
    (message, *_) = wrong(FILE)
    assert message == (
        "f.yaml:5:5: node 'src': the variable HEADRACE__PLUGIN__ACME_NUMBERS__UPTO is wrong:"
        " Input should be a valid integer, unable to parse string as an integer"
    )


def test_labels_of_the_plugin_win_with_a_word() -> None:
    text = FILE.replace("    from: src\n", "    from: mid\n") + (
        "transforms:\n  mid:\n    type: acme.twice\n    from: src\n    telemetry: {labels: {team: mine,"
        " tier: gold}}\n"
    )
    file = parse_pipeline(text, "f.yaml")
    assert node(file, "mid").telemetry.labels == {"team": "acme", "tier": "gold"}
    assert "f.yaml:24:26: node 'mid': the label `team` is set by the plugin to `acme`\n  Remove it here." in [
        str(one) for one in file.warnings
    ]


def test_a_sink_that_forgets_says_so() -> None:
    text = FILE.replace("acme.folder", "acme.lines").replace("    token: secret-word\n", "")
    assert wrong(text)[0] == "f.yaml:16:5: node 'out': a acme.lines sink is at-least-once"
    messages = [
        str(one)
        for one in parse_pipeline(text.replace("    delivery: exactly_once\n", ""), "f.yaml").warnings
    ]
    assert any("keeps no record of epochs" in one for one in messages)
    assert not [
        one
        for one in parse_pipeline(text.replace("exactly_once", "at_least_once"), "f.yaml").warnings
        if "keeps no" in str(one)
    ]


def test_only_plugins_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE__PLUGIN__ALLOW", "acme.folder, other")
    (message, hint) = wrong(FILE)
    assert message == (
        "f.yaml:5:5: node 'src': the plugin `acme.numbers` (acme-plugins 1.0, acme_plugins:numbers) is"
        " installed,"
        " and the setting `plugin.allow` does not name it"
    )
    assert "all the rights of the run" in hint


def test_options_may_be_settings(tmp_path: Path) -> None:
    Path("config.yaml").write_text("plugin: {allow: [acme.numbers, acme.folder]}\n")
    parse_pipeline(FILE, "f.yaml")
    Path("config.yaml").write_text("plugin: {allow: []}\n")
    assert "does not name it" in wrong(FILE)[0]


def test_a_broken_plugin_is_named_and_disturbs_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install(tmp_path / "site", "broken_one", "import no_such_driver\n", {"broken.sink": "plugin"})
    install(site, "broken_two", "plugin = 5\n", {"broken.number": "plugin"})
    install(
        site,
        "broken_three",
        "from headrace import Plugin\nplugin = Plugin('other.id', 'transform', print)\n",
        {"broken.id": "plugin"},
    )
    install(
        site,
        "broken_four",
        "from headrace import Plugin\nplugin = Plugin('broken.kind', 'sinks', print)\n",
        {"broken.kind": "plugin"},
    )
    install(site, "broken_five", "1 / 0\n", {"broken.code": "plugin"})
    monkeypatch.syspath_prepend(str(site))
    parse_pipeline(FILE, "f.yaml")
    reasons = {
        "broken.sink": "(broken-one 1.0, broken_one:plugin) cannot be loaded: ModuleNotFoundError: No"
        " module named 'no_such_driver'",
        "broken.number": "(broken-two 1.0, broken_two:plugin) is int, and no headrace.Plugin",
        "broken.id": "(broken-three 1.0, broken_three:plugin) calls itself `other.id`",
        "broken.kind": "cannot be loaded: ValueError: `broken.kind`: kind must be one of source, transform,"
        " sink",
        "broken.code": "cannot be loaded: ZeroDivisionError: division by zero",
        "broken.none": "sink type `broken.none` is a plugin's, and no such plugin is installed",
    }
    for plugin_id, what in reasons.items():
        assert what in wrong(FILE.replace("acme.folder", plugin_id))[0]


def test_two_packages_with_one_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "second", "", {"acme.numbers": "x"})))
    assert (
        "the plugin `acme.numbers` is there 2 times: acme-plugins 1.0, acme_plugins:numbers; second 1.0,"
        " second:x"
    ) in wrong(FILE)[0]


def test_preprocessors_and_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE__PLUGIN__PREPROCESSOR_IDS", "acme.heading,acme.days")
    Path("f.yaml").write_text(FILE.replace("upto: 7", 'upto: "@UPTO@"').replace("path: here", "pth: here"))
    with pytest.raises(PipelineFileError) as caught:
        load_pipeline("f.yaml")
    lines = [line for line in str(caught.value).splitlines() if line.startswith("f.yaml")]
    assert lines == [
        "f.yaml:12:3: node 'out': `path` is missing",
        "f.yaml:18:5: node 'out': unknown key `pth`; did you mean `path`?",
    ]
    monkeypatch.setenv("HEADRACE__PLUGIN__ACME_DAYS__UPTO", "-1")
    Path("f.yaml").write_text(FILE.replace("upto: 7", "uptoo: @UPTO@"))
    with pytest.raises(PipelineFileError) as caught:
        load_pipeline("f.yaml")
    assert str(caught.value).startswith(
        "f.yaml as the preprocessor `acme.days` wrote it:7:5: node 'src': unknown key `uptoo`"
    )


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ("no.such", "the setting `plugin.preprocessor_ids` names `no.such`: no such plugin is installed"),
        ("acme.twice", "is a transform, not a preprocessor"),
        ("bad.raises", "the plugin `bad.raises` failed in rewriting: KeyError: 'x'"),
        (
            "bad.returns",
            (
                "the preprocessor `bad.returns` (bad-text 1.0, bad_text:returns) returned NoneType, and not a"
                " text"
            ),
        ),
    ],
)
def test_a_preprocessor_that_cannot_work(
    ids: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from headrace import Plugin\nraises = Plugin('bad.raises', 'preprocessor', lambda context: lambda"
        " text: {}['x'])\n"
        "returns = Plugin('bad.returns', 'preprocessor', lambda context: lambda text: None)\n"
    )
    monkeypatch.syspath_prepend(
        str(install(tmp_path / "site", "bad_text", text, {"bad.raises": "raises", "bad.returns": "returns"}))
    )
    monkeypatch.setenv("HEADRACE__PLUGIN__PREPROCESSOR_IDS", ids)
    Path("f.yaml").write_text(FILE)
    with pytest.raises(PluginError) as caught:
        load_pipeline("f.yaml")
    assert says in str(caught.value)


def test_the_schema_for_editors_knows_what_is_installed() -> None:
    result = file_schema()
    about = result["$defs"]["PluginSinksAcmeFolder"]
    assert about["properties"]["type"]["const"] == "acme.folder"
    assert {"path", "token", "from", "options", "primary_key", "delivery"} <= set(about["properties"])
    assert sorted(about["required"]) == ["from", "type"]
    assert {"$ref": "#/$defs/PluginSinksAcmeFolder"} in result["properties"]["sinks"]["additionalProperties"][
        "oneOf"
    ]
    assert {"$ref": "#/$defs/PluginTransformsAcmeTwice"} in result["properties"]["transforms"][
        "additionalProperties"
    ]["oneOf"]


def test_nothing_of_a_plugin_is_imported_before_it_is_named(acme: Path) -> None:
    options = "    upto: 7\n    batch_size: 3\n    options:\n      step: 2\n      upto: 9\n"
    plain = FILE.replace("acme.numbers", "iceberg").replace(options, "    table_name: n.t\n")
    plain = plain.replace("acme.folder", "delta").replace("    token: secret-word\n", "")
    code = (
        "import sys\nimport headrace\nheavy = {'pydantic', 'pyspark', 'pyarrow', 'importlib.metadata'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "from headrace.pipeline.file.loader import parse_pipeline\n"
        "from headrace.pipeline.plugins import discovery as found\n"
        f"parse_pipeline({plain!r}, 'f.yaml')\n"
        "assert 'acme_plugins' not in sys.modules\nassert found._scan.cache_info().currsize == 0\n"
        f"parse_pipeline({FILE!r}, 'f.yaml')\n"
        "assert 'acme_plugins' in sys.modules\n"
    )  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(acme)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_every_public_name_is_there() -> None:
    assert [name for name in headrace.__all__ if getattr(headrace, name) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = headrace.nothing


@pytest.mark.parametrize(
    ("say", "kind", "more"),
    [
        ("cannot be a plugin's id", "sink", {"id": "a.b.c"}),
        (("the option `from` could never be"
         " given"), "transform", {"options": type("O", (headrace.Options,), {"__annotations__": {"from_": "int"}})}),
        ("a function says what it `returns`", "function", {}),
        ("the class of a sink has `capabilities`", "sink", {}),
        ("must be a pydantic model", "transform", {"options": dict}),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be(say: str, kind: str, more: dict) -> None:
    with pytest.raises((ValueError, TypeError), match=say.replace("`from`", "`from_?`")):
        headrace.Plugin(**{"id": "a.b", "kind": kind, "make": print, **more})


def test_what_is_installed() -> None:
    ids = [result.id for result in list_installed()]
    assert ids == sorted(ids)
    result = find("acme.twice")
    assert result is not None
    assert load(result).kind == "transform"


def test_state_is_of_one_plugin_in_one_node_of_one_pipeline(tmp_path: Path) -> None:
    def states(name: str) -> list[PluginState]:
        """Of the source and the sink, and of a side output that sees the same source.

        Made as a run makes them.
        """
        file = parse_pipeline(FILE.replace("name: p", f"name: {name}"), "f.yaml")
        contexts = [plugin_context(one, node(file, one), Settings(home=tmp_path)) for one in ("src", "out")]
        return [one.state for one in (*contexts, replace(contexts[0], found=contexts[1].found))]

    everybody = [*states("p"), *states("q"), *states("p-q")]
    for at, state in enumerate(everybody):
        assert state.get("a/b") is None
        state.put("a/b", {"at": at})
    again = [*states("p"), *states("q"), *states("p-q")]
    assert [state.get("a/b") for state in again] == [{"at": at} for at in range(len(everybody))]
    again[0].delete("a/b")
    assert [state.get("a/b") for state in states("p")] == [None, {"at": 1}, {"at": 2}]


@pytest.mark.parametrize(
    ("ids", "options", "says"),
    [
        ("no.such", {}, "the setting `plugin.side_output_ids` names `no.such`: no such plugin is installed"),
        ("acme.twice", {}, "is a transform, not a side_output"),
        (
            "acme.count",
            {"acme.count": {"foldr": "x"}},
            "does not take its options: `path` is missing; there is no option `foldr`",
        ),
    ],
)
def test_a_side_output_that_cannot_work_is_told_before_a_run_begins(
    ids: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    settings = Settings.model_validate(
        {"home": tmp_path / "home", "plugin": {"side_output_ids": ids, "side_output_options": options}}
    )
    with pytest.raises(PluginError, match=says):
        run(parse_pipeline(FILE), settings, until=Until.HISTORY)
    assert not (tmp_path / "home").exists()

"""The contract suite of `headrace.testing`, over plugins that pass it and plugins that fail.

New packages pass it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.depth import FULL, with_slow
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from headrace import Plugin, testing
from headrace.commands.plugin import NewPluginType, app, render
from headrace.jobs.spark.java import find_java
from headrace.pipeline.errors import PluginError, UserError


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> None:
    """The kit takes the session that is there."""


def fresh_folders(tmp_path: Path) -> Callable[[], testing.SinkTarget]:
    numbers = count()

    def fresh() -> testing.SinkTarget:
        folder = tmp_path / f"target{next(numbers)}"
        folder.mkdir()

        def rows() -> list[dict[str, Any]]:
            file = folder / "target.json"
            return json.loads(file.read_text())["rows"] if file.exists() else []

        return testing.SinkTarget({"path": str(folder), "token": "open sesame"}, rows)

    return fresh


def acme_plugin(name: str) -> Plugin:
    return getattr(importlib.import_module("acme_plugins"), name)


def test_a_sink_on_the_exactly_once_base_keeps_the_contract(tmp_path: Path) -> None:
    testing.check_sink(acme_plugin("folder"), fresh_folders(tmp_path))


def test_a_sink_that_sends_is_checked_for_what_it_promises(tmp_path: Path) -> None:
    def fresh() -> testing.SinkTarget:
        path = tmp_path / "lines"
        return testing.SinkTarget(
            {"path": str(path)}, lambda: [json.loads(line) for line in path.read_text().splitlines()]
        )

    testing.check_sink(acme_plugin("lines"), fresh)


def remade(plugin: Plugin, name: str, members: dict[str, Any]) -> Any:
    """The plugin's class with members replaced."""
    base: Any = plugin.make
    return type(name, (base,), members)


def spoilt(tmp_path: Path, **members: Any) -> str:
    """What the kit says of the folder sink with members of its class replaced."""
    plugin = acme_plugin("folder")
    with pytest.raises(AssertionError) as caught:
        testing.check_sink(replace(plugin, make=remade(plugin, "Spoilt", members)), fresh_folders(tmp_path))
    return str(caught.value)


def test_a_sink_that_breaks_a_promise_is_caught(tmp_path: Path) -> None:
    for letter in "abcd":
        (tmp_path / letter).mkdir()
    folder: Any = acme_plugin("folder").make
    assert "another process does not find the registered record" in spoilt(
        tmp_path / "a",
        load_note=lambda self: getattr(self, "kept", None),
        compare_and_swap=_in_memory,
        target_id=None,
    )
    assert "a sink found the record of another one" in spoilt(tmp_path / "b", note_key="same", target_id=None)

    def blind(self: Any, expected: Any, note: Any, rows: Any) -> bool:
        return folder.compare_and_swap(self, self.load_note(), note, rows)

    def unfenced(self: Any) -> Any:
        """Return the state without a comparison of generations."""
        return replace(self.read_state(), generation=self._generation)

    assert "and not FencedError" in spoilt(
        tmp_path / "c", compare_and_swap=blind, _read_checked_state=unfenced
    )

    def twice(self: Any, expected: Any, note: Any, rows: Any) -> bool:
        return folder.compare_and_swap(self, expected, note, rows) and (
            rows is None or folder.compare_and_swap(self, note, note, rows)
        )

    assert "three rows without a key" in spoilt(tmp_path / "d", compare_and_swap=twice)


def _in_memory(self: Any, expected: Any, note: Any, rows: Any) -> bool:
    """Rows are written; the note is kept by the object alone."""
    self.kept = note
    claim = self._read()["notes"].get(self.note_key)
    return importlib.import_module("acme_plugins").Folder.compare_and_swap(
        self, claim, {"another": "note"}, rows
    )


def test_sources_keep_the_contract(tmp_path: Path) -> None:
    assert [row["id"] for row in testing.check_source(acme_plugin("numbers"), {"upto": 11})] == list(
        range(1, 12)
    )
    (tmp_path / "ticks").write_text("8")
    assert testing.check_source(acme_plugin("ticks"), {"path": str(tmp_path / "ticks")}) == [
        {"n": n} for n in range(8)
    ]


def test_a_source_that_changes_is_caught(tmp_path: Path) -> None:
    plugin = acme_plugin("numbers")

    def moody(self: Any, split: Any) -> Any:
        seen = tmp_path / f"seen{split['first']}"
        words = ["a"] if not seen.exists() else ["b"]
        seen.touch()
        yield pa.RecordBatch.from_pydict({"id": [split["first"]], "word": words}, schema=self.columns())

    with pytest.raises(AssertionError, match="one by one do not give the rows"):
        testing.check_source(replace(plugin, make=remade(plugin, "Moody", {"batches": moody})), {"upto": 5})

    def endless(self: Any, partition: str, start: int, end: int) -> Any:
        yield pa.RecordBatch.from_pydict({"n": list(range(start, end + 1))}, schema=self.columns())

    (tmp_path / "ticks").write_text("3")
    ticks = acme_plugin("ticks")
    with pytest.raises(PluginError, match="gave more than 3 rows for the offsets 0 to 3 of partition 0"):
        testing.check_source(
            replace(ticks, make=remade(ticks, "Endless", {"batches": endless})),
            {"path": str(tmp_path / "ticks")},
        )


def test_a_transform_that_looks_at_its_batch_is_caught() -> None:
    plugin = acme_plugin("twice")

    def sizes(self: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("copy", pa.array([batch.num_rows] * batch.num_rows, pa.int32()))

    rows = [{"id": number} for number in range(8)]
    with pytest.raises(AssertionError, match="depend on which of them come together"):
        testing.check_transform(
            replace(plugin, make=remade(plugin, "Sizes", {"process": sizes})),
            {},
            pa.schema([("id", pa.int64())]),
            rows,
        )
    assert len(testing.check_transform(plugin, {"times": 3}, pa.schema([("id", pa.int64())]), rows)) == 18


@pytest.mark.parametrize("kind", with_slow({NewPluginType.SOURCE, NewPluginType.FUNCTION}, NewPluginType))
def test_a_new_package_passes_its_own_tests(
    kind: NewPluginType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"fresh.{kind.replace('-', '_')}_one"
    for path, text in render(name, kind).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.syspath_prepend(str(tmp_path / "tests"))
    tests = vars(importlib.import_module(f"test_{name.replace('.', '_')}"))
    ran = [one for test, one in tests.items() if test.startswith("test_")]
    assert len(ran) >= 2
    for one in ran:
        folder = tmp_path / one.__name__
        folder.mkdir()
        one(**({"tmp_path": folder} if "tmp_path" in inspect.signature(one).parameters else {}))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", NewPluginType if FULL else [NewPluginType.PREPROCESSOR])
def test_a_new_package_passes_them_by_itself(kind: NewPluginType, tmp_path: Path) -> None:
    """As its author runs them.

    A process of its own, nothing installed, a Spark session that the kit starts.
    """
    made = CliRunner().invoke(app, ["new", "acme.fresh", str(tmp_path / "it"), "--kind", kind])
    assert made.exit_code == 0, made.output
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "JAVA_HOME": str(find_java().home)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(
        command, cwd=tmp_path / "it", env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout


def test_a_new_package_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "README.md").write_text("mine")
    made = CliRunner().invoke(app, ["new", "acme.fresh", str(tmp_path / "it")])
    assert isinstance(made.exception, UserError)
    assert [path.name for path in (tmp_path / "it").iterdir()] == ["README.md"]
    with pytest.raises(UserError, match="cannot be the name of a plugin"):
        render("Acme.x", NewPluginType.SINK)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("kafka", "a built-in type"),
        ("class", "a Python keyword"),
        ("json", "a Python module"),
        ("headrace", "a Python module"),
    ],
)
def test_a_name_that_means_something_else_already_is_refused(name: str, meaning: str) -> None:
    with pytest.raises(UserError, match=f"cannot be the name of a plugin: it is {meaning}") as caught:
        render(name, NewPluginType.SINK)
    assert caught.value.hint == f"Add a namespace. Example: acme.{name}."
    assert render(f"acme.{name}", NewPluginType.SINK)


def test_the_list_says_what_loads() -> None:
    result = CliRunner().invoke(app, ["list", "--json"])
    assert result.exit_code == 0, result.output
    listed = {plugin["id"]: plugin for plugin in json.loads(result.stdout)}
    assert listed["acme.folder"] == {
        "id": "acme.folder",
        "kind": "sink",
        "package": "acme-plugins",
        "version": "1.0",
        "entry": "acme_plugins:folder",
        "error": None,
    }

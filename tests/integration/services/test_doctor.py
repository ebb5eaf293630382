"""The output of `headrace doctor` and `headrace services`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from helpers.cli_commands import Answer, run_commands

from headrace.services import NAMES, Services, doctor
from headrace.services.cli import environment


def clean_env(home: Path) -> dict[str, str]:
    """The environment of a command, without settings of the tests."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HEADRACE__", "STREAMLING", "COLUMNS"))
    }
    return kept | {"HEADRACE_HOME": str(home)}


def execute(home: Path, *commands: tuple[str, ...]) -> list[Answer]:
    """Execute commands in one process."""
    return list(run_commands(commands, cwd=home, env=clean_env(home)).values())


def headrace(*arguments: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(
        command,
        env=clean_env(home) | env,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def find_check(name: str) -> doctor.DoctorCheck:
    return next(check for check in doctor.run_checks() if check.name == name)


def test_it_looks_at_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "none" / "yet"))
    names = [check.name for check in doctor.run_checks()]
    wanted = [
        "settings",
        "python",
        "java",
        "jars",
        "disk",
        "memory",
        "ledger",
        "[clickhouse]",
        "[dagster]",
        "[delta]",
        "[kafka]",
    ]
    assert names == [*wanted, "[postgres]", "[services]", "services"]
    assert not (tmp_path / "none").exists()  # looking changes nothing


def test_a_ledger_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mount = namedtuple("mount", ["mountpoint", "fstype"])  # noqa: PYI024 - as psutil has it
    mounts = [mount("/", "ext4"), mount(str(tmp_path), "nfs4")]
    monkeypatch.setattr(doctor.psutil, "disk_partitions", lambda all: mounts)  # noqa: A006, ARG005
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    check = find_check("ledger")
    assert (check.ok, check.required) == (False, True)
    assert "nfs4" in check.details
    assert doctor.file_system(Path("/somewhere")) == "ext4"


def test_a_missing_package_is_a_part_and_not_a_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(doctor._EXTRAS, "delta", ("no_such_module",))
    check = find_check("[delta]")
    assert (check.ok, check.required, check.hint) == (False, False, "pip install 'headrace[delta]'")


def test_little_memory_is_said(monkeypatch: pytest.MonkeyPatch):
    memory = namedtuple("memory", ["available", "total"])  # noqa: PYI024
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: memory(10**9, 8 * 10**9))
    assert not find_check("memory").ok


def test_wrong_settings_are_one_of_its_lines(tmp_path: Path):
    done = headrace("doctor", home=tmp_path, HEADRACE__LEASE_SECONDS="never")
    assert done.returncode == 1
    assert "lease_seconds" in done.stdout
    assert "java" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_what_is_missing_fits_eighty_columns_and_fails(tmp_path: Path):
    done = headrace(
        "doctor",
        home=tmp_path,
        HEADRACE__JAVA_HOME=str(tmp_path / "a-rather-long-name-of-a-folder" / "that-holds-no-java-at-all"),
    )
    assert done.returncode == 1
    assert "MISSING" in done.stdout
    assert "pip install 'headrace[java]'" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_wrong_name_is_an_error_without_a_traceback(tmp_path: Path):
    commands = {"postgress": ("services", "up", "postgress"), "kafkaa": ("services", "down", "kafkaa")}
    for name, done in zip(commands, execute(tmp_path, *commands.values()), strict=True):
        assert done.code == 1
        assert f"there is no local service '{name}'; there are postgres, kafka, clickhouse" in done.errors
        assert "Traceback" not in done.errors


def test_a_broken_file_is_an_error_without_a_traceback(tmp_path: Path):
    (tmp_path / "services.json").write_text("{")
    done = headrace("services", "status", home=tmp_path)
    assert (done.returncode, "services.json is not JSON" in done.stderr, "Traceback" in done.stderr) == (
        1,
        True,
        False,
    )
    (tmp_path / "services.json").write_text('{"version": 7, "services": {}}')
    assert "version 7" in headrace("services", "status", home=tmp_path).stderr


def test_status_of_a_home_that_never_had_any(tmp_path: Path):
    done = headrace("services", "status", home=tmp_path)
    assert (done.returncode, done.stdout.count("never started")) == (1, 3)


def test_status_and_env_of_running_servers(services: Services):
    status, silent, loud = execute(
        services.home, ("services", "status"), ("services", "env"), ("services", "env", "--passwords")
    )
    assert status.code == 0
    assert all(any(line.split()[:2] == [name, "up"] for line in status.out.splitlines()) for name in NAMES)
    for password in (services.postgres.password, services.clickhouse.password):
        assert password not in silent.out + silent.errors + status.out
        assert password in loud.out
    assert f"export HEADRACE__KAFKA_SOURCE__BROKERS={services.kafka.brokers}" in silent.out


def test_env_leads_to_the_servers(services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from headrace.pipeline.config.settings import load_settings

    monkeypatch.setenv(
        "HEADRACE_HOME", str(tmp_path)
    )  # no services.json here: only the environment leads there
    for key, value in environment(services, passwords=True).items():
        monkeypatch.setenv(key, value)
    settings = load_settings()
    assert settings.postgres_sink.port == services.postgres.port
    assert settings.postgres_sink.password.get_secret_value() == services.postgres.password
    assert settings.clickhouse_source.url == services.clickhouse.url
    assert settings.kafka_source.brokers == services.kafka.brokers

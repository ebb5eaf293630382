"""docker/stack.yaml and its image: every address leads to a service.

No container engine is needed. `make check` lints the image.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from helpers.checkout import ROOT
from ruamel.yaml import YAML

from headrace.jobs.dynamic_tables.factory import store_path
from headrace.jobs.staging.bucket_files import BucketFiles
from headrace.jobs.staging.store import open_files
from headrace.pipeline.config.settings import load_settings

DOCKER = ROOT / "docker"
STACK: dict[str, Any] = YAML(typ="safe").load((DOCKER / "stack.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OWN = [name for name, service in SERVICES.items() if service["image"].startswith("headrace:")]
ENVIRONMENT: dict[str, str] = SERVICES["code"]["environment"]
# Where a server listens unless its own configuration has a port.
USUAL_PORTS = {"postgres": {5432}, "clickhouse": {8123}, "prometheus": {9090}, "grafana": {3000}}


def listening(name: str) -> set[int]:
    """Return the ports that a service listens on, by its command and its environment."""
    service = SERVICES[name]
    command = [str(part) for part in service.get("command", [])]
    result = {
        int(command[i + 1]) for i, part in enumerate(command) if part in ("--port", "--webui-port", "-p")
    }
    environment = service.get("environment", {})
    for key in ("KAFKA_LISTENERS", "SCHEMA_REGISTRY_LISTENERS"):
        result |= {int(port) for port in re.findall(r":(\d+)(?:,|$)", environment.get(key, ""))}
    result |= {int(port) for part in command for port in re.findall(r"^-s3\.port=(\d+)$", part)}
    if name == "code":
        result |= {int(re.findall(r'CMD \["dagster", "code-server".*"--port", "(\d+)"', IMAGE)[0])}
    return result | USUAL_PORTS.get(name, set())


IMAGE = (DOCKER / "Dockerfile").read_text()


def addresses() -> list[tuple[str, str, int]]:
    """Return the origin, host and port of everything that one service looks up in another."""
    result = [
        ("ledger", ENVIRONMENT["HEADRACE__STATE_BACKEND__POSTGRES__HOST"], 5432),
        (
            "sink",
            ENVIRONMENT["HEADRACE__POSTGRES_SINK__HOST"],
            int(ENVIRONMENT["HEADRACE__POSTGRES_SINK__PORT"]),
        ),
    ]
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            for host, port in re.findall(r"(?:://|^|,)([a-z][a-z-]*):(\d+)", str(value)):
                if host != "localhost":
                    result.append((key, host, int(port)))
        masters = [urlsplit(part) for part in service.get("command", []) if part.startswith("spark://")]
        result += [("command", master.hostname or "", master.port or 0) for master in masters]
    (location,) = YAML(typ="safe").load((DOCKER / "workspace.yaml").read_text())["load_from"]
    result.append(("workspace.yaml", location["grpc_server"]["host"], location["grpc_server"]["port"]))
    storage = YAML(typ="safe").load((DOCKER / "dagster.yaml").read_text())["storage"]["postgres"][
        "postgres_db"
    ]
    result.append(("dagster.yaml", storage["hostname"], storage["port"]))
    return result


def test_every_address_leads_to_a_port_that_its_service_listens_on() -> None:
    result = addresses()
    assert {host for _, host, _ in result} >= {
        "postgres",
        "kafka",
        "clickhouse",
        "objects",
        "registry",
        "spark-master",
        "code",
    }
    for origin, host, port in result:
        assert host in SERVICES, f"{origin}: no service {host}"
        assert port in listening(host), f"{origin}: {host} does not listen on {port}"


def test_the_listener_for_containers_has_the_name_of_its_service() -> None:
    environment = SERVICES["kafka"]["environment"]
    advertised = dict(re.findall(r"(\w+)://([^,]+)", environment["KAFKA_ADVERTISED_LISTENERS"]))
    assert advertised["INSIDE"] == ENVIRONMENT["HEADRACE__KAFKA_SOURCE__BROKERS"]
    assert advertised["INSIDE"] == ENVIRONMENT["HEADRACE__KAFKA_SINK__BROKERS"]
    published = SERVICES["kafka"]["ports"][0].split(":")[-1]
    assert advertised["OUTSIDE"] == f"localhost:{published}"


def test_settings_load_and_users_are_those_of_the_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The values of all variables differ, so a wrong pair is seen."""

    def fill(value: str) -> str:
        return re.sub(r"\$\{(\w+):\?\}", r"value-of-\1", value)

    monkeypatch.chdir(tmp_path)
    for key, value in ENVIRONMENT.items():
        monkeypatch.setenv(key, fill(value))
    settings = load_settings()
    servers = {name: SERVICES[name]["environment"] for name in ("postgres", "clickhouse", "objects")}
    for connection in (settings.postgres_sink, settings.state_backend.postgres):
        assert connection.user == fill(servers["postgres"]["POSTGRES_USER"])
        assert connection.password.get_secret_value() == fill(servers["postgres"]["POSTGRES_PASSWORD"])
    for connection in (settings.clickhouse_source, settings.clickhouse_sink):
        assert connection.user == fill(servers["clickhouse"]["CLICKHOUSE_USER"])
        assert connection.password.get_secret_value() == fill(servers["clickhouse"]["CLICKHOUSE_PASSWORD"])
    bucket = settings.staging.s3
    assert bucket.access_key_id == fill(servers["objects"]["AWS_ACCESS_KEY_ID"])
    assert bucket.secret_access_key.get_secret_value() == fill(servers["objects"]["AWS_SECRET_ACCESS_KEY"])
    made = re.findall(r"CREATE DATABASE (\w+)", (DOCKER / "postgres-init.sql").read_text())
    assert settings.postgres_sink.db == servers["postgres"]["POSTGRES_DB"]
    assert settings.state_backend.postgres.db in made
    assert settings.spark.conf["spark.driver.host"] in SERVICES
    assert json.loads(ENVIRONMENT["HEADRACE__SPARK__CONF"]) == settings.spark.conf


def test_volumes_are_declared_and_files_exist() -> None:
    used: set[str] = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), volume
            else:
                used.add(source)
    assert used == set(STACK["volumes"])


def test_nothing_that_matters_is_on_the_disk_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The ledger is in Postgres, stored results are in a bucket, the values of dynamic tables on a volume."""
    monkeypatch.chdir(tmp_path)
    home = re.findall(r"HEADRACE_HOME=(\S+)", IMAGE)[0]
    monkeypatch.setenv("HEADRACE_HOME", home)
    for key, value in ENVIRONMENT.items():
        monkeypatch.setenv(key, value)
    settings = load_settings()
    assert settings.state_backend.backend_type == "postgres"
    assert isinstance(open_files(settings), BucketFiles)
    targets = [volume.split(":")[1] for volume in SERVICES["code"]["volumes"]]
    assert str(store_path(settings, "uuid", "main").parents[1]) in targets
    # The image creates them for the user of the processes.
    (made,) = re.findall(r"mkdir -p (.+?) *$", IMAGE, re.MULTILINE)
    for name in OWN:
        for volume in SERVICES[name]["volumes"]:
            if not volume.startswith("."):
                assert volume.split(":")[1] in made.split(), volume


def test_secrets_come_from_the_environment_file_only() -> None:
    example = dict(re.findall(r"^(\w+)=(.*)$", (DOCKER / "stack.env.example").read_text(), re.MULTILINE))
    assert set(example.values()) == {""}
    assert set(re.findall(r"\$\{(\w+)", (DOCKER / "stack.yaml").read_text())) == set(example)
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if "PASSWORD" in key or key.endswith("USER"):
                assert re.fullmatch(r"\$\{\w+:\?\}", value), f"{name}: {key} has a value in the file"


def test_images_have_exact_tags_and_own_ones_do_not_run_as_root() -> None:
    bases = re.findall(r"^FROM (\S+)", IMAGE, re.MULTILINE)
    for image in [*bases, *(service["image"] for service in SERVICES.values())]:
        assert re.search(r":v?\d+\.\d+", image), image
    assert re.findall(r"^USER (\S+)", IMAGE, re.MULTILINE) == ["10001"]
    assert "HEALTHCHECK" in IMAGE
    assert len(OWN) == 5
    others = YAML(typ="safe").load((DOCKER / "compose.yaml").read_text())["services"]
    for name, service in others.items():
        assert service["image"] == SERVICES[name]["image"]


def test_the_image_gets_all_that_it_copies() -> None:
    ignored = (ROOT / ".dockerignore").read_text()
    for line in re.findall(r"^COPY (?:--\S+ )?(.+)$", IMAGE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source.split('/')[0]}\n" in ignored, source


def test_dagster_of_the_storage_is_of_the_locked_release() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    spark = re.findall(r"^dagster-pyspark==(\S+)", lock, re.MULTILINE)
    assert (
        re.findall(r"^dagster-postgres==(\S+)", (DOCKER / "requirements.txt").read_text(), re.MULTILINE)
        == spark
    )


def test_the_image_starts_executors_as_kubernetes_asks_for_them(tmp_path: Path) -> None:
    """Python names the homes of Spark and Java; Java prints its arguments."""
    for name, text in (("python", f"echo {tmp_path}"), ("java", "printf '%s\\n' \"$@\"")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    values = {
        "EXECUTOR_MEMORY": "1g",
        "EXECUTOR_ID": "7",
        "EXECUTOR_CORES": "2",
        "APPLICATION_ID": "app",
        "DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:4040",
        "EXECUTOR_POD_IP": "10.0.0.8",
        "RESOURCE_PROFILE_ID": "0",
        "EXECUTOR_POD_NAME": "exec-7",
    }
    options = ["-Dfirst=a b", *(f"-Dnumber={at}" for at in range(1, 12))]
    environment = {f"SPARK_{name}": value for name, value in values.items()}
    environment |= {f"SPARK_JAVA_OPT_{at}": option for at, option in enumerate(options)}
    environment["PATH"] = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    command = ["bash", str(DOCKER / "spark.sh"), "executor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result = done.stdout.splitlines()
    assert result[: len(options) + 2] == [*options, "-Xms1g", "-Xmx1g"]
    assert result[len(options) + 2 : len(options) + 5] == [
        "-cp",
        f"{tmp_path}/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
    ]
    arguments = dict(zip(result[len(options) + 5 :: 2], result[len(options) + 6 :: 2], strict=True))
    assert arguments == {
        "--driver-url": values["DRIVER_URL"],
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.8",
        "--resourceProfileId": "0",
        "--podName": "exec-7",
    }

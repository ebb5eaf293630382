"""helm/headrace without Helm: its values, its settings and its paths agree with the image and with docker/.

`make test-faults` renders the chart: tests/system/packaging/test_chart_manifests.py.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from helpers.checkout import ROOT
from pydantic import BaseModel
from ruamel.yaml import YAML

from headrace.orchestration.definitions import VARIABLE
from headrace.orchestration.instance import MODULE, UI_VARIABLE
from headrace.pipeline.config.settings import Settings

CHART = ROOT / "helm" / "headrace"
IMAGE = (ROOT / "docker" / "Dockerfile").read_text()
TEMPLATES = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def read_yaml(path: str) -> dict[str, Any]:
    return YAML(typ="safe").load((ROOT / path).read_text())


VALUES = read_yaml("helm/headrace/values.yaml")


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every value. Empty maps and lists are values."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def schema_of(name: str) -> dict[str, Any]:
    """Return the schema of a value by its dotted name. Raises KeyError if there is none."""
    schema = SCHEMA
    for part in name.split("."):
        schema = schema["properties"][part]
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    return schema


def setting_names(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from setting_names(section, (*prefix, name))
        else:
            yield (*prefix, name)


def secret_settings(model: type[BaseModel] = Settings, prefix: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Yield the keys that lead to each secret of the settings."""
    for name, field in model.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from secret_settings(section, (*prefix, name))
        elif "SecretStr" in repr(section):
            yield [*prefix, name, *(["ssl.key.password"] if "dict" in repr(section) else [])]


def refusals(changes: dict[str, Any]) -> list[str]:
    values = VALUES | changes
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(values)]


def test_default_values_are_valid_and_each_has_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert refusals({}) == []
    for name in leaves(VALUES):
        assert name.startswith(("runs.resources", "code.resources", "webserver.resources", "daemon.")) or (
            schema_of(name)
        ), name
    assert set(SCHEMA["properties"]) == {*VALUES, "global"}


def test_templates_use_each_value_and_no_other() -> None:
    used = {name.rstrip(".") for name in re.findall(r"\.Values\.([A-Za-z.]+)", TEMPLATES)}
    # Two variables of templates.
    used |= {f"storage.{name}" for name in re.findall(r"\$storage\.([A-Za-z.]+)", TEMPLATES)}
    used |= {f"spark.executor.{name}" for name in re.findall(r"\$executor\.([A-Za-z.]+)", TEMPLATES)}
    known = set(leaves(VALUES))
    for name in used:
        assert any(leaf == name or leaf.startswith(f"{name}.") for leaf in known), f"no value {name}"
    for leaf in known:
        assert any(leaf == name or leaf.startswith(f"{name}.") for name in used), f"{leaf} is not used"


def test_variables_are_settings() -> None:
    settings = set(setting_names(Settings))
    result = re.findall(r"\bHEADRACE__(\w+)", TEMPLATES)
    assert {tuple(name.lower().split("__")) for name in result} <= settings
    assert len(set(result)) > 10
    own = set(re.findall(r"- name: (HEADRACE_[A-Z]\w+)", TEMPLATES))
    assert own == {"HEADRACE_HOME", VARIABLE, UI_VARIABLE}


def test_dagster_has_the_keys_of_the_stack() -> None:
    chart, stack = read_yaml("helm/headrace/files/dagster.yaml"), read_yaml("docker/dagster.yaml")
    assert set(chart.pop("compute_logs")) == {"module", "class"}
    del stack["storage"]
    assert chart == stack
    assert chart == read_yaml("dagster.yaml")


def test_ports_users_and_folders_are_those_of_the_image() -> None:
    folders = dict(re.findall(r"(\w+)=(/\S+)", IMAGE))
    for name in ("DAGSTER_HOME", "HEADRACE_HOME", "HEADRACE_PIPELINES"):
        assert f"- name: {name}\n  value: {folders[name]}\n" in TEMPLATES, name
    assert re.findall(r"runAs(?:User|Group): (\d+)", TEMPLATES) == re.findall(r"USER (\d+)", IMAGE) * 2
    (port,) = re.findall(r"EXPOSE (\d+)", IMAGE)
    assert set(re.findall(r"(?:containerPort: |grpc: \{port: |code, port: )(\d+)", TEMPLATES)) == {
        port,
        "3000",
    }
    (command,) = re.findall(r"^CMD (\[.*\])$", IMAGE, re.MULTILINE)
    (own,) = re.findall(r"command: (\[dagster, code-server.*\])$", TEMPLATES, re.MULTILINE)
    assert YAML(typ="safe").load(own.replace("{{ .Values.code.module }}", MODULE)) == json.loads(command)
    assert VALUES["code"]["module"] == MODULE
    assert "/usr/local/bin/headrace-spark" in IMAGE
    assert "command: [headrace-spark]" in TEMPLATES


def test_dagster_processes_are_those_of_the_stack() -> None:
    services = read_yaml("docker/stack.yaml")["services"]
    for name in ("webserver", "daemon"):
        command = ", ".join(f'"{part}"' if part.isdigit() else part for part in services[name]["command"])
        assert f"command: [{command}" in TEMPLATES


def test_versions_are_those_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = read_yaml("helm/headrace/Chart.yaml")
    assert chart["appVersion"] == version
    stack = read_yaml("docker/stack.yaml")["services"]["code"]["image"]
    assert stack == f"{VALUES['image']['repository']}:{version}"


def test_the_chart_contains_no_secret() -> None:
    assert set(re.findall(r"^ *kind: (\w+)", TEMPLATES, re.MULTILINE)) == {
        *("ConfigMap", "Deployment", "Ingress", "NetworkPolicy", "PersistentVolumeClaim", "Pod"),
        *("Role", "RoleBinding", "Service", "ServiceAccount"),
    }
    assert set(re.findall(r"type: (\w+)\n  selector", TEMPLATES)) == {"ClusterIP"}


@pytest.mark.parametrize("keys", list(secret_settings()), ids=".".join)
def test_secrets_of_settings_must_be_references(keys: list[str]) -> None:
    def config(value: object) -> dict[str, Any]:
        for key in reversed(keys):
            value = {key: value}
        return {"config": value}

    for reference in ({"env": "SHOP_DB"}, {"file": "/run/secrets/shop-db"}):
        assert refusals(config(reference)) == []
    assert refusals(config("a password"))
    assert refusals(config({"value": "a password"}))

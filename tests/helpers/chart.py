"""The chart helm/headrace, rendered by Helm and checked by kubeconform: tools that `make chart-tools` installs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from helpers.checkout import ROOT

CHART = ROOT / "helm" / "headrace"
TOOLS = Path(sys.prefix) / "chart"
SCHEMAS = TOOLS / "python" / "kubernetes_validate" / "kubernetes-json-schema"
OLDEST, NEWEST = "1.27.0", "1.37.0"
"""The oldest release that Chart.yaml allows, and the newest with a schema."""


@dataclass(frozen=True)
class Manifests:
    """The manifests of one release."""

    text: str

    @property
    def all(self) -> list[dict[str, Any]]:
        return [result for result in YAML(typ="safe").load_all(self.text) if result]

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        """The manifests of a kind by name."""
        return {one["metadata"]["name"]: one for one in self.all if one["kind"] == kind}

    def pods(self) -> dict[str, dict[str, Any]]:
        """The pod templates of Deployments, by name, and that of executors."""
        result = {name: one["spec"]["template"] for name, one in self.of("Deployment").items()}
        if text := self.of("ConfigMap")["shop-headrace"]["data"].get("pod.yaml"):
            result["executor"] = YAML(typ="safe").load(text)
        return result


NOTES = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data:
  text: |
    {{- tpl (.Files.Get "NOTES.txt") . | nindent 4 }}
"""


def render_notes(values: dict[str, Any], folder: Path) -> str:
    """Return NOTES.txt. `helm template` does not print it, so a copy of the chart has it in a manifest."""
    copy = folder / "copy"
    shutil.copytree(CHART, copy, dirs_exist_ok=True)
    (copy / "templates" / "NOTES.txt").rename(copy / "NOTES.txt")
    (copy / "templates" / "notes.yaml").write_text(NOTES)
    done = render(values, folder, "--show-only", "templates/notes.yaml", chart=copy)
    assert done.returncode == 0, done.stderr
    return YAML(typ="safe").load(done.stdout)["data"]["text"]


def render(
    values: dict[str, Any], folder: Path, *arguments: str, chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with these values, as release `shop` in namespace `data`."""
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    command = [str(TOOLS / "bin" / "helm"), "template", "shop", str(chart), "--namespace", "data"]
    return subprocess.run(
        [*command, "--kube-version", OLDEST, "--values", str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def schema_folder(release: str) -> Path:
    """Return the schemas of a release as kubeconform reads them: references are relative to the file."""
    folder = TOOLS / "schemas" / release
    if not folder.exists():
        fresh = Path(tempfile.mkdtemp(dir=TOOLS))
        for path in (SCHEMAS / f"v{release}-local-strict").glob("*.json"):
            schema = json.loads(path.read_text().replace("/api/_definitions.json", "_definitions.json"))
            schema.pop("$id", None)
            (fresh / path.name).write_text(json.dumps(schema))
        folder.parent.mkdir(exist_ok=True)
        fresh.rename(folder)
    return folder


def problems(manifests: str, release: str) -> str:
    """Return what kubeconform finds in manifests for a release of Kubernetes. Empty if they are valid."""
    name = "{{.ResourceKind}}{{.KindSuffix}}.json"
    place = schema_folder(release) / name
    done = subprocess.run(
        [str(TOOLS / "bin" / "kubeconform"), "-strict", "-schema-location", str(place), "-"],
        input=manifests,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else ""


def run_with_packages(script: str, *arguments: str, **variables: str) -> str:
    """Return the output of a Python script that can import Dagster's packages for Postgres and Kubernetes."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TOOLS / "python"), **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout

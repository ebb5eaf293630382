"""The commands and examples of the documentation work.

Commands run, pipeline files are checked, verbs, targets and links exist.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from helpers.checkout import ROOT
from helpers.spark_settings import SHORT_LIVED_SPARK_ENVIRONMENT
from ruamel.yaml import YAML

from headrace import cli
from headrace.pipeline.file.loader import parse_pipeline
from headrace.services import Services
from headrace.services.cli import app as services_app

PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)
_BLOCK = re.compile(r"^```(?P<kind>\w+)(?P<rest>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    kind: str
    skip: str
    text: str


def blocks(page: Path) -> list[Block]:
    result = []
    for match in _BLOCK.finditer(page.read_text()):
        skip = re.fullmatch(r'\s+skip="([^"]+)"', match["rest"])
        assert skip or not match["rest"].strip(), f"{page}: a block says {match['rest']!r}"
        result.append(Block(page, match["kind"], skip[1] if skip else "", match["text"]))
    return result


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUNNABLE = [page for page in PAGES if any(block.kind == "bash" and not block.skip for block in blocks(page))]
RARELY = ("test.md", "explain.md")
"""Pages whose commands have tests of their own in tests/system/cli: run by `make test-faults`."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page.name in RARELY else page for page in RUNNABLE],
    ids=name,
)
def test_commands_of_a_page_run_in_order(page: Path, services: Services, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    script = "\n".join(block.text for block in blocks(page) if block.kind == "bash" and not block.skip)
    env = os.environ | {
        "HEADRACE_HOME": str(services.home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **SHORT_LIVED_SPARK_ENVIRONMENT,
    }
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-x", "-c", script],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    if page.name == "clickhouse-kafka-postgres.md":
        assert re.search(r"^\s*10001 \|", result.stdout, re.MULTILINE)
        assert re.search(r"^\s*7 \| c7 +\| +0\.01", result.stdout, re.MULTILINE)
        assert not re.search(r"^\s*8 \|", result.stdout, re.MULTILINE)
        assert result.stdout.count("  ok   ") == 3


def test_pages_have_commands_and_every_skip_a_reason() -> None:
    assert {page.name for page in RUNNABLE} >= {
        "README.md",
        "quickstart.md",
        "clickhouse-kafka-postgres.md",
        "operate.md",
    }
    assert all(len(block.skip.split()) > 3 for page in PAGES for block in blocks(page) if block.skip)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pipeline_files_and_components_in_a_page_are_good(page: Path) -> None:
    for block in blocks(page):
        if block.kind != "yaml":
            continue
        if block.text.startswith("version: 1"):
            assert parse_pipeline(block.text, name(page)).name
        elif "type: headrace" in block.text:
            module, _, kind = YAML(typ="safe").load(block.text)["type"].rpartition(".")
            assert getattr(importlib.import_module(module), kind)


def _commands() -> dict[str, set[str]]:
    """Every verb of the command line with its options; those of `services` as `services up`."""
    result = {}
    for prefix, app in (("", cli.app), ("services ", services_app)):
        for verb, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
            result[prefix + verb] = {
                option for parameter in command.params for option in getattr(parameter, "opts", ())
            }
    return result


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_that_a_page_mentions_exists(page: Path) -> None:
    commands = _commands()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    for command in re.findall(r"`((?:headrace|make) [^`]+)`", text.replace("\n", " ")):
        words = command.split()
        if words[0] == "make":
            assert words[1] in targets, command
            continue
        words = [word for word in words[1:] if word not in ("-v", "…")]
        verb = " ".join(words[:2]) if words[:1] == ["services"] else next(iter(words), "")
        if not verb or verb.startswith(("services psql", "-")):
            continue
        assert verb in commands, command
        assert {word for word in words if word.startswith("--")} <= commands[verb] | {"--help"}, command


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_about_the_project_alone(page: Path) -> None:
    assert not re.search(r"(^|[^\w.])/(work|root|tmp)/", page.read_text())

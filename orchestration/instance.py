"""The Dagster instance folder: DAGSTER_HOME, by default `.dagster/` in the working directory."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

MODULE = "headrace.orchestration.definitions"
UI_VARIABLE = "HEADRACE_UI"
"""`1` in the processes of `headrace ui`, where supervisors and schedules are on at first."""


def dagster_home() -> Path:
    """Return the instance folder.

    Create it if missing, and copy Headrace's dagster.yaml unless it has one.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or ".dagster").absolute()
    home.mkdir(parents=True, exist_ok=True)
    config = home / "dagster.yaml"
    if not config.exists():
        config.write_text(
            (files("headrace.orchestration") / "dagster.yaml").read_text(encoding="utf-8"), encoding="utf-8"
        )
    return home


def child_environment(headrace_home: Path, pipelines: Path | None = None) -> dict[str, str]:
    """Return the environment of a Dagster process: this process's ledger and services, and the pipelines."""
    environment = os.environ | {
        "DAGSTER_HOME": str(dagster_home()),
        "HEADRACE_HOME": str(headrace_home.absolute()),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": os.environ.get(
            "PYTHONWARNINGS", "ignore::FutureWarning"
        ),  # commands that Dagster has newer ones for
    }
    return environment | {"HEADRACE_PIPELINES": str(pipelines.absolute())} if pipelines else environment

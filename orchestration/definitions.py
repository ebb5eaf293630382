"""Headrace's own code location: `dagster dev -m headrace.orchestration.definitions`, from any folder.

HEADRACE_PIPELINES names files and folders of pipelines, with the path separator between them. If it is not
set, pipelines come from `pipelines/` or `examples/` in the working directory, or from the examples of the
checkout. A file with mistakes does not affect the others. It becomes an asset `broken/<file>` that shows the
mistakes.
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import dagster as dg

from headrace.orchestration.alerts import build_alert_sensors
from headrace.orchestration.build import AutomationDefaults, build_definitions
from headrace.orchestration.instance import UI_VARIABLE
from headrace.pipeline.file.discovery import find_pipeline_files

log = logging.getLogger(__name__)

VARIABLE = "HEADRACE_PIPELINES"


def pipeline_paths() -> list[Path]:
    """Return the files and folders that contain pipelines. Empty if there are none."""
    if value := os.environ.get(VARIABLE):
        return [Path(part).expanduser() for part in value.split(os.pathsep) if part]
    checkout = Path(__file__).resolve().parent.parent
    candidates = [Path("pipelines"), Path("examples"), checkout / "examples"]
    if folder := next((path for path in candidates if path.is_dir()), None):
        return [folder]
    log.warning("event=no_pipelines variable=%s folder=%s", VARIABLE, Path.cwd())
    return []


# Dagster warns about one of its own arguments when it copies a sensor. A user cannot fix that.
warnings.filterwarnings(
    "ignore", message=r"Parameter `owners` of initializer `SensorDefinition", category=dg.BetaWarning
)

in_ui = os.environ.get(UI_VARIABLE) == "1"
defs = dg.Definitions.merge(
    build_definitions(
        find_pipeline_files(pipeline_paths()), strict=False, automation=AutomationDefaults(in_ui, in_ui)
    ),
    # A run has one step, so a separate process for it would only add start-up time.
    dg.Definitions(executor=dg.in_process_executor, sensors=build_alert_sensors(is_on=in_ui)),
)

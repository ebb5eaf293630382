"""Headrace's own code location: `dagster dev -m headrace.orchestration.definitions`, from any folder.

Pipelines come from HEADRACE_PIPELINES, files and folders with the path separator between them. Where that is not set: from
`pipelines/` or `examples/` in the working directory, and else from the examples of the checkout that this code lies in.
A file with mistakes does not take the others down: it shows as an asset `broken/<file>` that says what is wrong and where.
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import dagster as dg

from headrace.orchestration.build import build
from headrace.orchestration.pipelines import pipeline_files

log = logging.getLogger(__name__)

VARIABLE = "HEADRACE_PIPELINES"


def pipeline_paths() -> list[Path]:
    """Where pipelines are looked for; empty where there are none."""
    if named := os.environ.get(VARIABLE):
        return [Path(part).expanduser() for part in named.split(os.pathsep) if part]
    checkout = Path(__file__).resolve().parent.parent
    looked = [Path("pipelines"), Path("examples"), checkout / "examples"]
    if found := next((path for path in looked if path.is_dir()), None):
        return [found]
    log.warning("no pipelines: %s is not set, and there is neither pipelines/ nor examples/ in %s", VARIABLE, Path.cwd())
    return []


# Dagster warns about an argument of its own whenever it copies a sensor; a user can do nothing about it.
warnings.filterwarnings("ignore", message=r"Parameter `owners` of initializer `SensorDefinition", category=dg.BetaWarning)

defs = dg.Definitions.merge(
    build(pipeline_files(pipeline_paths()), strict=False),
    # One step per run: a process of its own for it would only cost its start.
    dg.Definitions(executor=dg.in_process_executor),
)

"""The component: pipeline files in a Dagster project's `defs.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from headrace.orchestration.build import build_definitions
from headrace.orchestration.pipelines import pipeline_files


class PipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """Assets, checks, stream jobs, supervisors and schedules of Headrace pipelines.

    A file with mistakes stops the definitions from loading and names the location, as any mistake in a
    project does.
    """

    path: Annotated[
        str, Field(description="A pipeline file or a folder of them, relative to the folder of defs.yaml.")
    ]
    settings: Annotated[
        dict[str, Any],
        Field(
            default_factory=dict,
            description="Overrides for the settings of the environment. Example: `spark: {master: …}`.",
        ),
    ]
    source_assets: Annotated[
        bool,
        Field(
            description="Declare the inputs of the pipelines as external assets, with kind and columns."
            " Only one component of a project can declare an asset key. Lineage does not need this option."
        ),
    ] = False

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of all pipelines at `path`.

        Raise UserError with every mistake of a broken file.
        """
        path = Path(self.path)
        files = pipeline_files([path if path.is_absolute() else context.path / path])
        return build_definitions(files, self.settings, sources=self.source_assets)

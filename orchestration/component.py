"""The component: pipeline files in a Dagster project's `defs.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from headrace.orchestration.asset_keys import KeyStyle
from headrace.orchestration.build import AutomationDefaults, build_definitions
from headrace.pipeline.file.discovery import find_pipeline_files


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

    supervisor: Annotated[
        Literal["running", "stopped"],
        Field(
            description="Whether the supervisors of continuous streams are on at first. They start streams on"
            " the servers of the settings."
        ),
    ] = "stopped"
    schedules: Annotated[
        Literal["running", "stopped"],
        Field(description="Whether the schedules of the pipelines are on at first."),
    ] = "stopped"

    asset_keys: Annotated[
        KeyStyle,
        Field(
            description="`short`: outer parts of an address are in a key only if two resources have one name."
            " `full`: always, so that no key changes when a pipeline is added."
        ),
    ] = "short"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of all pipelines at `path`.

        Raise UserError with every mistake of a broken file.
        """
        path = Path(self.path)
        files = find_pipeline_files([path if path.is_absolute() else context.path / path])
        automation = AutomationDefaults(self.supervisor == "running", self.schedules == "running")
        return build_definitions(
            files,
            self.settings,
            sources=self.source_assets,
            automation=automation,
            asset_keys=self.asset_keys,
        )

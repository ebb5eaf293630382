"""The component: pipeline files in a Dagster project's `defs.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from headrace.orchestration.build import build
from headrace.orchestration.pipelines import pipeline_files


class PipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """Assets, checks, the stream's job, its supervisor and schedules of Headrace pipelines.

    A file with mistakes stops the definitions from loading, with its place, as any other mistake in a project does.
    """

    path: Annotated[str, Field(description="A pipeline file, or a folder of them; relative to the folder of the defs.yaml.")]
    settings: Annotated[
        dict[str, Any], Field(default_factory=dict, description="Settings over those of the environment, such as `spark: {master: …}`.")
    ]
    source_assets: Annotated[
        bool,
        Field(
            description="Declare what the pipelines read as external assets, with kind and columns. Dagster lets one component declare a key:"
            " turn it on where no other one reads the same. Without it lineage is the same, with bare nodes."
        ),
    ] = False

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Definitions of all pipelines at `path`. Raises UserError for a broken file, with every mistake and its place."""
        path = Path(self.path)
        files = pipeline_files([path if path.is_absolute() else context.path / path])
        return build(files, self.settings, sources=self.source_assets)

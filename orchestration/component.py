"""The component: pipeline files in a Dagster project's `defs.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from headrace.orchestration.asset_keys import KeyStyle
from headrace.orchestration.build import AutomationDefaults, build_definitions
from headrace.orchestration.options import create_options
from headrace.orchestration.scaffold import PipelineScaffolder
from headrace.pipeline.errors import FileLocation, UserError
from headrace.pipeline.file.discovery import find_pipeline_files
from headrace.pipeline.file.inline import parse_inline_pipeline
from headrace.pipeline.file.loader import PipelineFile


@dg.scaffold_with(PipelineScaffolder)
class PipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """Assets, checks, stream jobs, supervisors and schedules of Headrace pipelines.

    A file with mistakes stops the definitions from loading and names the location, as any mistake in a
    project does.
    """

    path: Annotated[
        str | None,
        Field(description="A pipeline file or a folder of them, relative to the folder of defs.yaml."),
    ] = None
    pipelines: Annotated[
        list[dict[str, Any]],
        Field(default_factory=list, description="Pipelines with the keys of a pipeline file and a `name`."),
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

    owners: Annotated[
        list[str],
        Field(default_factory=list, description="Owners of the assets: `team:NAME` or e-mail addresses."),
    ]
    tags: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Tags of the assets, added to the files' own."),
    ]
    group: Annotated[
        str | None, Field(description="Group of the assets. Defaults to the name of each pipeline.")
    ] = None
    freshness: Annotated[
        dict[str, Any] | None,
        Field(description="How old the assets may be. Keys as in a pipeline file. Example: `max_age: 2h`."),
    ] = None
    pool: Annotated[
        str | None,
        Field(
            description="The pool of all runs, one at a time. By default each pipeline has a pool for its"
            " assets and one for its stream."
        ),
    ] = None
    run_tags: Annotated[
        dict[str, str],
        Field(
            default_factory=dict,
            description="Tags of the runs of the pipelines' jobs, schedules and supervisors. A run without a"
            " job gets them when it starts.",
        ),
    ]

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of all pipelines at `path` and in `pipelines`.

        Raise UserError with every mistake of a broken file. Owners, group and freshness of a pipeline file
        have precedence over those of the component.
        """
        place = FileLocation(str(context.path / "defs.yaml"))
        automation = AutomationDefaults(self.supervisor == "running", self.schedules == "running")
        assets: dict[str, Any] = {"owners": self.owners, "tags": self.tags, "group": self.group}
        options = create_options(assets | {"freshness": self.freshness}, self.pool, self.run_tags, place)
        return build_definitions(
            self._find_pipelines(context.path, place),
            self.settings,
            sources=self.source_assets,
            automation=automation,
            asset_keys=self.asset_keys,
            options=options,
        )

    def _find_pipelines(self, folder: Path, place: FileLocation) -> Iterator[Path | PipelineFile]:
        if self.path is None and not self.pipelines:
            msg = "the component has neither `path` nor `pipelines`"
            raise UserError(msg, hint="Set `path: orders.yaml`, a file next to defs.yaml.", place=place)
        if self.path is not None:
            path = Path(self.path)
            yield from find_pipeline_files([path if path.is_absolute() else folder / path])
        for index, body in enumerate(self.pipelines):
            if "name" not in body:
                msg = f"`pipelines[{index}]` has no `name`"
                raise UserError(msg, hint="Add `name: ...`.", place=place)
            yield parse_inline_pipeline(body, place.file, ("attributes", "pipelines", index))

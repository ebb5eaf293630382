"""`@stage@` in pipeline files becomes the name of a stage."""

from __future__ import annotations

from pydantic import Field

from headrace import Options, Plugin, PluginContext


class StageOptions(Options):
    """The keys in the settings."""

    stage: str = Field(default="test", description="The text that replaces @stage@.")


class Stage:
    """Replaces the stage. One instance per file."""

    def __init__(self, context: PluginContext) -> None:
        self.options = context.options

    def process(self, text: str) -> str:
        """Return the text of a pipeline file, before it is read as YAML."""
        return text.replace("@stage@", self.options.stage)


plugin = Plugin("$id", "preprocessor", Stage, StageOptions)

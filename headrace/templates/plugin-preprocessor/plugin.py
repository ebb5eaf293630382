"""`@stage@` in pipeline files becomes the name of a stage."""

from __future__ import annotations

from pydantic import Field

from headrace import Options, Plugin, PluginContext


class StageOptions(Options):
    """What settings may say."""

    stage: str = Field(default="test", description="What stands for @stage@.")


class Stage:
    """Made once per file."""

    def __init__(self, context: PluginContext) -> None:
        self.options = context.options

    def process(self, text: str) -> str:
        """Return the text of a pipeline file, before it is read as YAML."""
        return text.replace("@stage@", self.options.stage)


plugin = Plugin("$id", "preprocessor", Stage, StageOptions)

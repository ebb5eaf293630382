"""Side outputs: plugins that receive the rows of every source, epoch by epoch, in addition to the sinks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel

from headrace.connectors.lazy_session import ensure_started
from headrace.connectors.plugins.contract_checks import create_checked
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.plugins.api import Plugin, PluginType
from headrace.pipeline.plugins.discovery import InstalledPlugin, load_plugin_of_type
from headrace.pipeline.plugins.preprocessors import options_of
from headrace.pipeline.plugins.runtime import PluginContext
from headrace.pipeline.protocol.epochs import EpochPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SideOutput(ABC):
    """A side output, one instance per source.

    At least once: an epoch that is retried or replayed comes again with its number.
    """

    def __init__(self, context: PluginContext) -> None:
        """Store the context, whose name is the source's. Open nothing."""
        self.context = context
        self.options = context.options

    @abstractmethod
    def epoch(self, plan: EpochPlan, rows: DataFrame) -> None:
        """Process the rows that an epoch reads of the source, before any transform or sink.

        `rows` has the payload and the system columns. The work must be complete when this returns, and must
        give the same result for the same `plan.number`. An error keeps the epoch from being written.
        """

    def close(self) -> None:  # noqa: B027  nothing to do if not overridden
        """Close the resources that were opened."""


def check_side_outputs(settings: Settings) -> None:
    """Raise PluginError if a configured side output is not installed or rejects its options. Creates none."""
    for plugin_id in settings.plugin.side_output_ids:
        _load_side_output(plugin_id, settings)


def _load_side_output(plugin_id: str, settings: Settings) -> tuple[InstalledPlugin, Plugin, BaseModel]:
    result, plugin = load_plugin_of_type(plugin_id, PluginType.SIDE_OUTPUT, "side_output_ids")
    return (
        result,
        plugin,
        options_of(result, plugin, settings.plugin.side_output_options, "side_output_options"),
    )


class SideOutputs:
    """The side outputs of one pipeline.

    They are created for the first epoch; every source is read once more for them.
    """

    def __init__(self, pipeline: str, settings: Settings) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._instances: dict[str, list[SideOutput]] = {}

    def see(
        self,
        plan: EpochPlan,
        readings: Mapping[str, SourceBatch],
        filter_rows: Callable[[str, DataFrame], DataFrame],
    ) -> None:
        """Pass an epoch to the side outputs before anything is written.

        They get what `filter_rows` returns of the rows of a source.
        """
        if not self._settings.plugin.side_output_ids:
            return
        for source, reading in readings.items():
            if source not in self._instances:
                self._instances[source] = [
                    self._open(plugin_id, source) for plugin_id in self._settings.plugin.side_output_ids
                ]
            for output in self._instances[source]:
                output.epoch(plan, filter_rows(source, ensure_started(reading.frame)))

    def _open(self, plugin_id: str, source: str) -> SideOutput:
        result, plugin, options = _load_side_output(plugin_id, self._settings)
        context = PluginContext(
            source, options, result, self._pipeline, self._settings.home, labels=plugin.labels
        )
        checks = {"epoch": lambda _: "", "close": lambda _: ""}
        return create_checked(lambda: plugin.make(context), SideOutput, result, source, checks)

    def close(self) -> None:
        """Close the side outputs."""
        for output in [output for outputs in self._instances.values() for output in outputs]:
            output.close()
        self._instances.clear()

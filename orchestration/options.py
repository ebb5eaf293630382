"""What the assets and runs of a pipeline have in Dagster, from its file and from the component."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster._utils.schedules import get_smallest_cron_interval, is_valid_cron_schedule
from pydantic import ValidationError

from headrace.pipeline.errors import FileLocation, UserError
from headrace.pipeline.model.assets import AssetConfig, FreshnessConfig
from headrace.pipeline.types.durations import spell_duration


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of a component for all of its pipelines.

    A key of a pipeline file has precedence over `assets`. Tags of both are merged.
    """

    assets: AssetConfig = field(default_factory=AssetConfig)
    pool: str | None = None
    run_tags: Mapping[str, str] = field(default_factory=dict)


def create_options(
    assets: Mapping[str, Any], pool: str | None, run_tags: Mapping[str, str], place: FileLocation
) -> PipelineOptions:
    """Return the options of a component. Raise UserError with the location of its file."""
    try:
        config = AssetConfig.model_validate(assets)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        msg = f"`{key}`: {first['msg'].removeprefix('Value error, ')}"
        raise UserError(msg, place=place) from None
    to_freshness_policy(config.freshness, place)
    if pool is not None and not re.fullmatch(r"\S+", pool):
        msg = f"`pool`: `{pool}` must be a text without blanks"
        raise UserError(msg, place=place)
    return PipelineOptions(config, pool, dict(run_tags))


def merge_asset_config(file: AssetConfig, component: AssetConfig) -> AssetConfig:
    """Return what the assets of a pipeline have."""
    return AssetConfig(
        description=file.description or component.description,
        owners=file.owners or component.owners,
        tags=component.tags | file.tags,
        group=file.group or component.group,
        freshness=file.freshness or component.freshness,
    )


def to_freshness_policy(config: FreshnessConfig | None, place: FileLocation) -> dg.FreshnessPolicy | None:
    """Return the policy of the assets. Raise UserError for an invalid cron line or time zone."""
    if config is None:
        return None
    if config.max_age is not None:
        return dg.FreshnessPolicy.time_window(fail_window=config.max_age, warn_window=config.warn_after)
    assert config.cron is not None  # noqa: S101  the model has one of both
    assert config.within is not None  # noqa: S101  the model requires it
    if not is_valid_cron_schedule(config.cron):
        msg = f"`freshness.cron`: `{config.cron}` is no cron line"
        raise UserError(msg, hint="Write five fields, such as `0 9 * * *`.", place=place)
    if config.within > (interval := get_smallest_cron_interval(config.cron)):
        msg = f"`freshness.within`: {spell_duration(config.within)} is longer than the time between deadlines"
        raise UserError(msg, hint=f"At most {spell_duration(interval)}.", place=place)
    try:
        return dg.FreshnessPolicy.cron(
            deadline_cron=config.cron, lower_bound_delta=config.within, timezone=config.timezone
        )
    except dg._check.CheckError:  # noqa: SLF001  the error that Dagster raises
        msg = f"`freshness.timezone`: `{config.timezone}` is not a name of the tz database"
        raise UserError(msg, hint="Example: Europe/Berlin.", place=place) from None

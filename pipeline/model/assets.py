"""What a pipeline file declares about its assets in Dagster: owners, tags, group, description, freshness."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.strict import Strict, split_csv

_EMAIL = r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}"
_TAG_KEY = r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}"
_TAG_VALUE = r"[A-Za-z0-9_.-]{0,63}"
_GROUP = r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*"
_RESERVED = ("dagster/", "headrace/")
_SHORTEST = timedelta(minutes=1)


def _owners(owners: tuple[str, ...]) -> tuple[str, ...]:
    for owner in owners:
        if not re.fullmatch(_EMAIL, owner) and not re.fullmatch(r"team:.+", owner):
            msg = f"`{owner}` is neither an e-mail address nor a team; write one such as team:data"
            raise ValueError(msg)
    return owners


def _tags(tags: dict[str, str]) -> dict[str, str]:
    for key, value in tags.items():
        if key.startswith(_RESERVED):
            msg = f"`{key}` begins with `{key.partition('/')[0]}/`, which is reserved"
            raise ValueError(msg)
        if not re.fullmatch(_TAG_KEY, key):
            msg = f"`{key}` must be letters, digits, `_`, `-` and `.`, with an optional namespace and `/`"
            raise ValueError(msg)
        if not re.fullmatch(_TAG_VALUE, value):
            msg = f"the value `{value}` of `{key}` must be at most 63 letters, digits, `_`, `-` and `.`"
            raise ValueError(msg)
    return tags


def _group(group: str) -> str:
    if not re.fullmatch(_GROUP, group):
        msg = f"`{group}` must be letters, digits and `_`, in parts with `/` between"
        raise ValueError(msg)
    return group


Owners = Annotated[tuple[str, ...], BeforeValidator(split_csv), AfterValidator(_owners)]
Tags = Annotated[dict[str, str], AfterValidator(_tags)]
Group = Annotated[str, AfterValidator(_group)]


class FreshnessConfig(Strict):
    """How old the newest materialization may be: `max_age`, or `cron` and `within`.

    Runs that write nothing do not count.
    """

    max_age: Duration | None = Field(
        default=None, description="The assets fail after this time without a materialization."
    )
    warn_after: Duration | None = Field(
        default=None, description="The assets warn after this time, which is shorter than `max_age`."
    )
    cron: str | None = Field(
        default=None, description="Five fields: deadlines for a materialization. Example: `0 9 * * *`."
    )
    within: Duration | None = Field(
        default=None, description="How long before a deadline a materialization counts."
    )
    timezone: str = Field(default="UTC", description="The time zone of `cron`, a name of the tz database.")

    @model_validator(mode="after")
    def _is_one_policy(self) -> FreshnessConfig:
        if (self.max_age is None) is (self.cron is None):
            msg = "needs `max_age` or `cron`, and not both"
            raise ValueError(msg)
        if self.cron is not None and self.within is None:
            msg = "`cron` needs `within`"
            raise ValueError(msg)
        for other, key in (("cron", "warn_after"), ("max_age", "within")):
            if getattr(self, other) is not None and getattr(self, key) is not None:
                msg = f"`{key}` has no effect with `{other}`"
                raise ValueError(msg)
        for key in ("max_age", "warn_after", "within"):
            if (value := getattr(self, key)) is not None and value < _SHORTEST:
                msg = f"`{key}` must be at least 1m"
                raise ValueError(msg)
        if self.max_age and self.warn_after and self.warn_after >= self.max_age:
            msg = "`warn_after` must be shorter than `max_age`"
            raise ValueError(msg)
        return self


class AssetConfig(Strict):
    """What Dagster shows on the assets of a pipeline's sinks. It changes no row."""

    description: str = Field(
        default="", description="What the pipeline is for. Dagster shows it on the assets."
    )
    owners: Owners = Field(
        default=(),
        description="Owners of the assets: `team:NAME` or e-mail addresses. A list, or a string with commas.",
    )
    tags: Tags = Field(default_factory=dict, description="Tags of the assets.")
    group: Group | None = Field(
        default=None, description="Group of the assets. Defaults to the pipeline's name."
    )
    freshness: FreshnessConfig | None = Field(
        default=None, description="How old the assets may be. By default any age."
    )

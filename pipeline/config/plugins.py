"""The model of the settings under `plugin`, and the prefixes of environment variables with plugin options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

PREFIXES = ("HEADRACE__PLUGIN__", "STREAMLING__PLUGIN__")
"""The prefixes of environment variables, the stronger one first."""


def _ids(value: object) -> object:
    """Return a list from a list, or from a string: `a, b` or JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return tuple(part.strip() for part in value.split(",") if part.strip())


Ids = Annotated[tuple[str, ...], BeforeValidator(_ids)]


class PluginSettings(BaseModel):
    """Settings of plugins, which pipeline files do not have.

    A map under any other name is options of the plugin of that name (`HEADRACE__PLUGIN__<NAME>__<KEY>`); they
    are read where the plugin is used.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    allow: Ids | None = Field(
        default=None,
        description="Ids of the plugins that pipelines may use. Defaults to all installed plugins. An empty"
        " list allows none.",
    )
    preprocessor_ids: Ids = Field(
        default=(), description="Preprocessors that rewrite every pipeline file before it is read, in order."
    )
    preprocessor_options: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Options of preprocessors: by id, or flat for all of them.",
    )
    side_output_ids: Ids = Field(default=(), description="Side outputs that see the rows of every source.")
    side_output_options: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Options of side outputs: by id, or flat for all of them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_options(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            key: one for key, one in value.items() if key in cls.model_fields or not isinstance(one, Mapping)
        }

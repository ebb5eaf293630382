"""The settings of plugins. They are read when a pipeline file or a setting names a plugin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from headrace.pipeline.config.plugins import PREFIXES, PluginSettings


def plugin_settings() -> PluginSettings:
    """Return the settings of plugins. Import them only if a variable or config.yaml mentions plugins."""
    if not _spoken_of():
        return PluginSettings()
    from headrace.pipeline.config.settings import load_settings

    return cast("PluginSettings", load_settings().plugin)


def _spoken_of() -> bool:
    from headrace.pipeline.config.sources import CONFIG_NAMES

    if any(name.upper().startswith(tuple(prefix.rstrip("_") for prefix in PREFIXES)) for name in os.environ):
        return True
    path = next((Path(name) for name in CONFIG_NAMES if Path(name).is_file()), None)
    try:
        return path is not None and "plugin" in path.read_text(encoding="utf-8").lower()
    except (OSError, UnicodeDecodeError):
        return True

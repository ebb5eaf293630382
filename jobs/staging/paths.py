"""Paths of stored results. They belong to a pipeline, and driver and workers share them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from headrace.pipeline.config.settings import Settings


def staging_root(settings: Settings) -> Path:
    """Return the folder of all pipelines."""
    return (settings.staging.path or settings.home / "staging").absolute()


def safe_filename(name: str) -> str:
    """Return a readable folder or file name. A digest keeps names unique if characters were replaced."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80]
    return plain if plain == name else f"{plain}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"

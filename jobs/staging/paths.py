"""Names of folders and files of stored results."""

from __future__ import annotations

import hashlib
import re


def safe_filename(name: str) -> str:
    """Return a readable folder or file name. A digest keeps names unique if characters were replaced."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80]
    return plain if plain == name else f"{plain}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"

"""Files with the certificates that sign those of servers."""

from __future__ import annotations

import ssl
from pathlib import Path

from headrace.pipeline.errors import SettingsError


def check_authorities(path: Path, setting: str, node: str) -> ssl.SSLContext:
    """Return a context that trusts the certificates of a PEM file.

    Raise SettingsError, which names the setting, for a file that cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:
        reason = "it has no certificates in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        msg = f"{setting} `{path}` cannot be read: {reason}"
        raise SettingsError(msg, node=node) from None

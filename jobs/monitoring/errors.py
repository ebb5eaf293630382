"""Keeps failures of monitoring away from the run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger(__name__)

P = ParamSpec("P")


def log_errors(function: Callable[P, None]) -> Callable[P, None]:
    """Log exceptions of the function instead of failing the run."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            log.warning(
                "event=monitoring_failed step=%s error=%s: %s", function.__name__, type(error).__name__, error
            )

    return run

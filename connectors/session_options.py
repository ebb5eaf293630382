"""Options of a Spark session that hold for one block of code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def with_options(session: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set options of a session, and restore them at the end."""
    before = {key: session.conf.get(key, None) for key in options}
    for key, value in options.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, value)

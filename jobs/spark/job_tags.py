"""A tag on the Spark jobs of one run, so that they can be canceled where several runs share a session."""

from __future__ import annotations

import contextvars
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_tag: contextvars.ContextVar[str] = contextvars.ContextVar("headrace_job_tag", default="")


def tag_jobs(spark: SparkSession | None) -> str:
    """Tag the jobs that this thread starts from now on. Return the tag.

    Without a session, the thread that starts one calls `inherit_job_tag`.
    """
    tag = f"headrace-{secrets.token_hex(8)}"
    _tag.set(tag)
    if spark is not None:
        spark.sparkContext.addJobTag(tag)
    return tag


def untag_jobs(spark: SparkSession | None, tag: str) -> None:
    """Remove the tag from this thread, and from the jobs of a session that goes on."""
    _tag.set("")
    if spark is not None:
        spark.sparkContext.removeJobTag(tag)


def inherit_job_tag(spark: SparkSession) -> None:
    """Tag the jobs of this thread with the tag of the context that was copied for it, if there is one.

    Spark's own properties belong to one thread, and a context of `contextvars` is copied to others.
    """
    if tag := _tag.get():
        spark.sparkContext.addJobTag(tag)

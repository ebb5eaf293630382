"""The outer parts of an address: folders, brokers. They distinguish targets that have one name."""

from __future__ import annotations


def split_location(location: str) -> list[str]:
    """Return the parts of a path or a URL, from the outermost on.

    Example: `s3a://bucket/lake` gives `s3a`, `bucket` and `lake`.
    """
    path = location.removeprefix("file://").replace("://", "/")
    return [part for part in path.split("/") if part not in ("", ".", "..")]


def split_brokers(brokers: str) -> list[str]:
    """Return one part for a Kafka cluster, which does not depend on the order of the brokers."""
    return [",".join(sorted(part.strip() for part in brokers.split(",") if part.strip()))]

"""The outer parts of an address: folders, brokers. They distinguish targets that have one name."""

from __future__ import annotations

from headrace.pipeline.protocol.epochs import Json


def split_location(location: str) -> list[str]:
    """Return the parts of a path or a URL, from the outermost on.

    Example: `s3a://bucket/lake` gives `s3a`, `bucket` and `lake`.
    """
    path = location.removeprefix("file://").replace("://", "/")
    return [part for part in path.split("/") if part not in ("", ".", "..")]


def describe_topic(topic: str, brokers: str) -> Json:
    """Return the description of a topic. The order of the brokers does not change it."""
    cluster = ",".join(sorted(part.strip() for part in brokers.split(",") if part.strip()))
    return {
        "kind": "kafka",
        "asset_key": ["kafka", topic],
        "scope": [cluster],
        "topic": topic,
        "table_name": topic,
    }

"""Values of settings as users and environment variables write them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit


def to_lower(value: Any) -> Any:
    """Return a string in lower case, any other value unchanged."""
    return value.lower() if isinstance(value, str) else value


def to_backend_name(value: Any) -> Any:
    """Return the ledger's backend in lower case. Reject Streamling's in-memory backend."""
    if isinstance(value, str) and "".join(filter(str.isalnum, value)).lower() == "inmemory":
        msg = (
            f"must be `sqlite` or `postgres`: a ledger in memory (`{value}`) would lose the state of every"
            " target when the process ends."
            " `sqlite`, the default, needs no server: it is a file below `home`"
        )
        raise ValueError(msg)
    return to_lower(value)


def to_upper(value: Any) -> Any:
    """Return a string in upper case, any other value unchanged."""
    return value.upper() if isinstance(value, str) else value


def split_list(value: Any) -> Any:
    """Split `a, b` into a list. A variable can only contain a string."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def is_url(value: str) -> bool:
    """Return whether a setting names an HTTP address. `none` does not."""
    return value.startswith(("http://", "https://"))


def find_redis_url_problem(value: str) -> str:
    """Return why a setting is not the address of a Redis server, or "". The reason does not contain it."""
    try:
        parts = urlsplit(value)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return "must be an address such as redis://localhost:6379/0"
    if "@" in parts.netloc:
        return (
            "must not hold credentials, which would end up in logs; set `redis_sink.user` and"
            " `redis_sink.password` in the settings"
        )
    database = parts.path.removeprefix("/")
    is_plain = not parts.query and not parts.fragment and (not database or database.isdecimal())
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or not has_port or not is_plain:
        return "must be an address such as redis://localhost:6379/0, or rediss:// with TLS"
    return ""

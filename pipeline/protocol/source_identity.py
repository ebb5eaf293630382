"""The identity of a source when its position was created.

It consists of the keys that decide which rows a snapshot, a handoff position or an offset refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from headrace.pipeline.protocol.epochs import Json

_DEFAULT_LAG = timedelta(hours=1)


def source_identity(node: Any) -> Json:
    """Return the fixed keys of a source, without defaults. All options of a plugin are fixed."""
    if node.type == "hybrid":
        result = _fixed_fields(node) - {"bounded_sources", "unbounded_source"}
        if node.handoff_lag == _DEFAULT_LAG:
            result -= {"handoff_lag"}
        parts = {
            "type": node.type,
            "bounded_sources": [source_identity(part.node()) for part in node.bounded_sources],
            "unbounded_source": source_identity(node.unbounded_source.node()),
        }
        return parts | node.model_dump(mode="json", by_alias=True, include=result, exclude_none=True)
    if not hasattr(node, "identity_keys"):
        return {"type": node.type, "options": node.model_dump(mode="json").get("options", {})}
    return {"type": node.type} | node.model_dump(
        mode="json", by_alias=True, include=_fixed_fields(node), exclude_defaults=True
    )


def _fixed_fields(node: Any) -> set[str]:
    """Return the names of the model's fields for the fixed keys: `SourceConfig.identity_keys`."""
    fields = type(node).model_fields
    return {name for name, field in fields.items() if (field.alias or name) in node.identity_keys}


def identity_changes(
    former: Json, now: Json, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Yield path, old value and new value of each difference.

    Lists of different lengths differ as a whole.
    """
    for key in [*former, *(key for key in now if key not in former)]:
        had, has = former.get(key), now.get(key)
        if had == has:
            continue
        if isinstance(had, dict) and isinstance(has, dict):
            yield from identity_changes(had, has, (*path, key))
        elif (
            isinstance(had, list)
            and isinstance(has, list)
            and len(had) == len(has)
            and all(isinstance(one, dict) for one in (*had, *has))
        ):
            for place, (one, other) in enumerate(zip(had, has, strict=True)):
                yield from identity_changes(one, other, (*path, key, place))
        else:
            yield (*path, key), had, has

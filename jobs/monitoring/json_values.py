"""Values of rows in JSON as Streamling shows them.

Bytes are hexadecimal digits; decimals and times are strings, also when nested.
"""

from __future__ import annotations

import math
from datetime import date, datetime, time
from decimal import Decimal
from functools import singledispatch
from typing import Any


@singledispatch
def json_value(value: Any) -> Any:
    """Return a Python value of an Arrow column for JSON. Values of other types become strings."""
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


@json_value.register(bytes)
def _bytes(value: bytes) -> str:
    return value.hex()


@json_value.register(float)
def _float(value: float) -> float | None:
    return value if math.isfinite(value) else None


@json_value.register(Decimal)
def _decimal(value: Decimal) -> str:
    return format(value, "f")


@json_value.register(datetime)
def _datetime(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


@json_value.register(date)
@json_value.register(time)
def _day_or_time(value: date | time) -> str:
    return value.isoformat()


@json_value.register(dict)
def _map(value: dict[Any, Any]) -> dict[str, Any]:
    return {str(key): json_value(inner) for key, inner in value.items()}


@json_value.register(list)
@json_value.register(tuple)
def _list(value: list[Any] | tuple[Any, ...]) -> list[Any]:
    return [json_value(inner) for inner in value]

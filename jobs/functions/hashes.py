"""XXH3 of text."""

from __future__ import annotations

import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from headrace.jobs.functions.columns import as_binary, is_valid


def xxhash(value: pa.Array) -> pa.Array:
    """32 hexadecimal digits. NULL stays NULL."""
    found = [xxh3_128_hexdigest(one) for one in as_binary(value).to_pylist()]
    return pa.array(found, pa.string(), mask=None if not value.null_count else ~is_valid(value))

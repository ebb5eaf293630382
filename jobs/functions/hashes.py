"""Hashes of strings and bytes: Keccak-256 as Ethereum uses it, and XXH3."""

from __future__ import annotations

import re

import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from headrace.jobs.functions.arrow_bytes import as_binary, is_valid

try:
    from Crypto.Hash import keccak
except ImportError as error:
    msg = "the module Crypto is missing"
    raise ImportError(msg, name="pycryptodome") from error

_HEX = re.compile(rb"0x(?:[0-9a-fA-F]{2})*")


def keccak256(value: pa.Array) -> pa.Array:
    """Return 0x and 64 hexadecimal digits per row.

    A string that is 0x and whole bytes in hexadecimal is hashed as those bytes. NULL stays NULL.
    """
    is_string = not pa.types.is_binary(value.type)
    rows = (
        bytes.fromhex(row[2:].decode()) if is_string and _HEX.fullmatch(row) else row
        for row in as_binary(value).to_pylist()
    )
    return _with_nulls([f"0x{keccak.new(digest_bits=256, data=row).hexdigest()}" for row in rows], value)


def xxhash(value: pa.Array) -> pa.Array:
    """Return 32 hexadecimal digits per row. NULL stays NULL."""
    return _with_nulls([xxh3_128_hexdigest(row) for row in as_binary(value).to_pylist()], value)


def _with_nulls(hashes: list[str], value: pa.Array) -> pa.Array:
    return pa.array(hashes, pa.string(), mask=None if not value.null_count else ~is_valid(value))

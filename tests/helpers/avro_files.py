"""Writes Avro container files, also broken ones, from JSON schemas."""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

_SYNC = b"0123456789abcdef"


def write_avro(
    path: Path,
    schema: Mapping[str, Any],
    blocks: Sequence[Sequence[Mapping[str, Any]]],
    codec: str = "null",
    counts: Sequence[int] = (),
) -> None:
    """Write rows of long, int, string and nullable fields. `counts` are wrong numbers of rows."""
    header = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    pairs = b"".join(_bytes(name.encode()) + _bytes(value) for name, value in header.items())
    result = b"Obj\x01" + _long(len(header)) + pairs + b"\0" + _SYNC
    for at, rows in enumerate(blocks):
        fields = [(one["name"], one["type"]) for one in schema["fields"]]
        plain = b"".join(_value(row[name], kind) for row in rows for name, kind in fields)
        packed = _CODECS[codec](plain)
        count = counts[at] if at < len(counts) else len(rows)
        result += _long(count) + _bytes(packed) + _SYNC
    path.write_bytes(result)


def _value(value: Any, kind: Any) -> bytes:
    if isinstance(kind, list):
        at = kind.index("null") if value is None else 1 - kind.index("null")
        return _long(at) + (b"" if value is None else _value(value, kind[at]))
    if kind in ("long", "int"):
        return _long(value)
    return _bytes(value if isinstance(value, bytes) else value.encode())


def _bytes(value: bytes) -> bytes:
    return _long(len(value)) + value


def _long(value: int) -> bytes:
    rest, result = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        result.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*result, rest])


def _deflate(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(plain) + packer.flush()


def _snappy(plain: bytes) -> bytes:
    return pa.compress(plain, "snappy", asbytes=True) + zlib.crc32(plain).to_bytes(4, "big")


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": lambda plain: pa.compress(plain, "zstd", asbytes=True),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}

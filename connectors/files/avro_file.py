"""Avro container files: the header, and the blocks of rows. Rows are decoded by Spark, see `decoder`."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_CHECKSUM_BYTES = 4
"""After a block that Snappy compressed."""
_MOST_BYTES = 1 << 30
"""The largest block or value of a header. A broken file may have any number there."""


@dataclass(frozen=True, slots=True)
class AvroHeader:
    """What the header of a file says about its blocks."""

    schema: str
    codec: str
    sync: bytes


def read_header(file: IO[bytes]) -> AvroHeader:
    """Read the header. The file is at the first block then. Raise pa.ArrowInvalid for another format."""
    if file.read(len(MAGIC)) != MAGIC:
        msg = "it does not begin like an Avro container file"
        raise pa.ArrowInvalid(msg)
    values: dict[str, bytes] = {}
    while count := _read_long(file):
        if count < 0:
            _read_long(file)  # The bytes of the block, for readers that skip it.
        for _ in range(abs(count)):
            name = _read_bytes(file).decode()
            values[name] = _read_bytes(file)
    if "avro.schema" not in values:
        msg = "its header has no schema"
        raise pa.ArrowInvalid(msg)
    codec = values.get("avro.codec", b"null").decode() or "null"
    if codec not in _CODECS:
        msg = f"its codec `{codec}` is not one of {', '.join(_CODECS)}"
        raise pa.ArrowInvalid(msg)
    return AvroHeader(values["avro.schema"].decode(), codec, _read_exactly(file, _SYNC_BYTES))


def count_rows(file: IO[bytes]) -> list[int]:
    """Return the rows of each block. Raise pa.ArrowInvalid for a file that is incomplete or broken."""
    header = read_header(file)
    return [count for count, _ in _raw_blocks(file, header, of=range(0))]


def read_blocks(file: IO[bytes], of: range) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, rows and payload of the blocks with these numbers. Blocks without rows are left out.

    A payload is the block as an Avro array: the number of items, the items, and an end.
    """
    header = read_header(file)
    decompress = _CODECS[header.codec]
    for number, (count, block) in enumerate(_raw_blocks(file, header, of)):
        if number >= of.stop:
            return
        if number in of and count:
            yield number, count, _write_long(count) + decompress(block) + b"\0"


def _raw_blocks(file: IO[bytes], header: AvroHeader, of: range) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of each block, and its bytes if its number is in `of`. Other blocks are skipped."""
    number = 0
    while first := file.read(1):
        count, size = _read_long(file, first), _read_long(file)
        if count < 0 or not 0 <= size <= _MOST_BYTES:
            msg = f"block {number} has {count} rows and {size} bytes"
            raise pa.ArrowInvalid(msg)
        if number in of:
            block = _read_exactly(file, size)
        else:
            block = b""
            file.seek(size, 1)
        if _read_exactly(file, _SYNC_BYTES) != header.sync:
            msg = f"block {number} does not end with the marker of the file"
            raise pa.ArrowInvalid(msg)
        yield count, block
        number += 1


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    result = file.read(size) if size <= _MOST_BYTES else b""
    if len(result) != size:
        msg = "it ends in the middle of a block"
        raise pa.ArrowInvalid(msg)
    return result


def _read_bytes(file: IO[bytes]) -> bytes:
    return _read_exactly(file, _read_long(file))


def _read_long(file: IO[bytes], first: bytes = b"") -> int:
    """Return a number in Avro's variable length. `first` is its first byte if that is read already."""
    result, shift = 0, 0
    byte = (first or _read_exactly(file, 1))[0]
    while True:
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1)
        shift += 7
        byte = _read_exactly(file, 1)[0]


def _write_long(number: int) -> bytes:
    result, rest = bytearray(), number << 1
    while rest > 0x7F:
        result.append(rest & 0x7F | 0x80)
        rest >>= 7
    result.append(rest)
    return bytes(result)


def _inflate(block: bytes) -> bytes:
    return zlib.decompress(block, wbits=-15)


def _unsnap(block: bytes) -> bytes:
    body, checksum = block[:-_CHECKSUM_BYTES], block[-_CHECKSUM_BYTES:]
    size, shift = 0, 0
    for byte in body:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > _MOST_BYTES:
        msg = f"a block has {size} bytes"
        raise pa.ArrowInvalid(msg)
    result = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(result) != int.from_bytes(checksum, "big"):
        msg = "a block has another checksum than its bytes"
        raise pa.ArrowInvalid(msg)
    return result


def _unzstd(block: bytes) -> bytes:
    return pa.CompressedInputStream(pa.BufferReader(block), "zstd").read()


_CODECS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflate,
    "snappy": _unsnap,
    "zstandard": _unzstd,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}

"""Deletion vectors: the row positions of a data file that later commits removed.

Files and descriptors are those of the Delta protocol, section "Deletion Vectors". A vector is a 64-bit
Roaring bitmap in the portable format, after a magic number.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.pipeline.protocol.epochs import Json

if TYPE_CHECKING:
    from pyroaring import BitMap64

_MAGIC = struct.pack("<i", 1681511377)
_FILE_VERSION = b"\x01"
_UUID_DIGITS = 20
_PYTHON = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Base 85 as Python and as ZeroMQ write it, which Delta follows. Only the digits differ."""
_TO_PYTHON, _TO_Z85 = bytes.maketrans(_Z85, _PYTHON), bytes.maketrans(_PYTHON, _Z85)


class UnknownVectorError(Exception):
    """A deletion vector in a format that this module does not read."""


def read_deletion_vector(table: Path, descriptor: Json) -> BitMap64:
    """Return the removed positions of a data file. Raise UnknownVectorError for other formats."""
    from pyroaring import BitMap64

    data = _read_bytes(table, descriptor)
    if not data.startswith(_MAGIC):
        raise UnknownVectorError(descriptor["pathOrInlineDv"])
    return BitMap64.deserialize(data[len(_MAGIC) :])


def write_deletion_vectors(table: Path, vectors: Mapping[str, BitMap64]) -> dict[str, Json]:
    """Write the vectors of data files into one new file. Return the descriptor of each, by the same names."""
    if not vectors:
        return {}
    name = uuid.uuid4()
    deletion_vectors: dict[str, Json] = {}
    content = bytearray(_FILE_VERSION)
    for path, rows in vectors.items():
        data = _MAGIC + rows.serialize()
        deletion_vectors[path] = {
            "storageType": "u",
            "pathOrInlineDv": base64.b85encode(name.bytes).translate(_TO_Z85).decode(),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (table / f"deletion_vector_{name}.bin").write_bytes(content)
    return deletion_vectors


def _read_bytes(table: Path, descriptor: Json) -> bytes:
    kind, text = descriptor["storageType"], descriptor["pathOrInlineDv"]
    size = descriptor["sizeInBytes"]
    if kind == "i":
        return _decode(text)[:size]
    if kind != "u":
        raise UnknownVectorError(text)
    folder, digits = text[:-_UUID_DIGITS], text[-_UUID_DIGITS:]
    path = table / folder / f"deletion_vector_{uuid.UUID(bytes=_decode(digits))}.bin"
    with path.open("rb") as file:
        file.seek(descriptor.get("offset") or 0)
        length = struct.unpack(">i", file.read(4))[0]
        data = file.read(length)
        checksum = struct.unpack(">I", file.read(4))[0]
    if length != size or zlib.crc32(data) != checksum:
        raise UnknownVectorError(str(path))
    return data


def _decode(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_TO_PYTHON))

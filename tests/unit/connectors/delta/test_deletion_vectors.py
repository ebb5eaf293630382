"""Deletion vectors come back as they were written, in files and in the log."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

import pytest
from pyroaring import BitMap64

from headrace.connectors.delta.deletion_vectors import (
    UnknownVectorError,
    read_deletion_vector,
    write_deletion_vectors,
)

_TO_Z85 = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)


def test_vectors_of_one_file_come_back(tmp_path: Path) -> None:
    vectors = {
        "a": BitMap64([0]),
        "b": BitMap64(range(0, 300_000, 3)),
        "c": BitMap64([5, 2**32 - 1, 2**32, 2**40]),
    }
    described = write_deletion_vectors(tmp_path, vectors)
    assert len(list(tmp_path.iterdir())) == 1
    for name, rows in vectors.items():
        assert described[name]["cardinality"] == len(rows)
        assert read_deletion_vector(tmp_path, described[name]) == rows


def test_nothing_to_write_makes_no_file(tmp_path: Path) -> None:
    assert write_deletion_vectors(tmp_path, {}) == {}
    assert list(tmp_path.iterdir()) == []


def test_vector_in_the_log_is_read(tmp_path: Path) -> None:
    rows = BitMap64([3, 4, 7])
    data = struct.pack("<i", 1681511377) + rows.serialize()
    data += bytes(-len(data) % 4)
    text = base64.b85encode(data).decode().translate(_TO_Z85)
    descriptor = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data)}
    assert read_deletion_vector(tmp_path, descriptor) == rows


def test_path_of_a_vector_is_that_of_the_protocol(tmp_path: Path) -> None:
    """The example is the protocol's: a random prefix, and a UUID in base 85."""
    file = tmp_path / "ab" / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    source = write_deletion_vectors(tmp_path, {"x": BitMap64([1, 2])})["x"]
    file.parent.mkdir()
    next(tmp_path.glob("*.bin")).rename(file)
    descriptor = {**source, "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
    assert list(read_deletion_vector(tmp_path, descriptor)) == [1, 2]


@pytest.mark.parametrize("harm", ["checksum", "format", "kind"])
def test_unknown_vector_is_refused(tmp_path: Path, harm: str) -> None:
    descriptor = write_deletion_vectors(tmp_path, {"x": BitMap64([1, 2])})["x"]
    file = next(tmp_path.glob("*.bin"))
    if harm == "checksum":
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif harm == "format":  # the protocol's example, in the older format
        text = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
        descriptor = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": 40}
    else:
        descriptor = {**descriptor, "storageType": "p"}
    with pytest.raises(UnknownVectorError):
        read_deletion_vector(tmp_path, descriptor)

"""Protobuf schemas as values: compiled from `.proto` files by Google's compiler, with all names resolved."""

from __future__ import annotations

import base64
import binascii
import functools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.protobuf.imports import CONFLUENT, import_folders, require_packages
from headrace.connectors.kafka.registry_client import SchemaLanguage, SchemaReference
from headrace.pipeline.errors import SchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

MESSAGE, ENUM, MAP, GROUP, RECURSION = "message", "enum", "map", "group", "recursion"
"""Kinds of types that are no scalars. A recursion is a message inside of itself."""
_KINDS = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", GROUP),
    *(MESSAGE, "bytes", "uint32", ENUM, "sfixed32", "sfixed64", "sint32", "sint64"),
)
"""By the numbers of `FieldDescriptorProto.Type`."""
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_MAIN = "schema-of-the-topic.proto"
_COMPILER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ProtobufType:
    """A type. `kind` is a scalar of Protobuf or one of the kinds above. Messages and enums have a `name`."""

    kind: str
    name: str = ""
    fields: tuple[ProtobufField, ...] = ()
    """Of a message; key and value of a map."""
    symbols: tuple[tuple[int, str], ...] = ()
    """Of an enum."""

    def __str__(self) -> str:
        """Return a short name for messages."""
        return self.name or self.kind


@dataclass(frozen=True, slots=True)
class ProtobufField:
    """A field of a message. `default` is the value of a message without it; None means NULL."""

    name: str
    number: int
    type: ProtobufType
    is_repeated: bool = False
    default: Any = None

    def __str__(self) -> str:
        """Return the field's type for messages."""
        return f"repeated {self.type}" if self.is_repeated else str(self.type)


@dataclass(frozen=True)
class ProtobufSchema:
    """A compiled `.proto` file with its imports: a serialized FileDescriptorSet that ends with the file."""

    descriptors: bytes = field(repr=False)

    @functools.cached_property
    def messages(self) -> Mapping[tuple[int, ...], Descriptor]:
        """The messages of the file by their place in it, as in the frame: (0,) is the first one.

        (0, 1) is the second message inside of the first one. Entries of maps do not count.
        """
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool

        pool = DescriptorPool()
        result = FileDescriptorSet.FromString(self.descriptors)
        for one in result.file:
            pool.Add(one)
        package = result.file[-1].package
        names = dict(_place_messages(result.file[-1].message_type, (), f"{package}." if package else ""))
        return {place: pool.FindMessageTypeByName(name) for place, name in names.items()}

    @functools.cached_property
    def types(self) -> Mapping[tuple[int, ...], ProtobufType]:
        """The messages of the file by their place in it."""
        return {place: _message_type(one, ()) for place, one in self.messages.items()}

    def find_message(self, name: str | None) -> ProtobufType:
        """Return the message of a full name, or the first one. Raise SchemaError if there is none."""
        for one in self.types.values():
            if name is None or one.name == name:
                return one
        names = ", ".join(f"`{one.name}`" for one in self.types.values())
        msg = "the schema has no message" if name is None else f"the schema has no message `{name}`"
        raise SchemaError(msg, hint=f"It has {names}." if names else "Its file needs a `message`.")

    def to_text(self) -> str:
        """Return the schema as Base64, which `parse_schema` reads."""
        return base64.b64encode(self.descriptors).decode()


def parse_schema(text: str, references: Sequence[SchemaReference] = ()) -> ProtobufSchema:
    """Return the schema of a `.proto` file, or of a FileDescriptorSet in Base64. Raise SchemaError."""
    require_packages()
    if _BASE64.fullmatch(text) is None:
        return _compile(text, tuple(references))
    from google.protobuf.message import DecodeError

    try:
        schema = ProtobufSchema(base64.b64decode(text))
        schema.messages  # noqa: B018  reads it
    except (binascii.Error, DecodeError, TypeError, IndexError) as error:
        msg = f"the schema is no `.proto` file, and no FileDescriptorSet in Base64: {error}"
        hint = "`protoc --include_imports --descriptor_set_out=FILE` writes one with all imports."
        raise SchemaError(msg, hint=hint) from None
    return schema


PROTOBUF = SchemaLanguage("PROTOBUF", "Protobuf", parse_schema)


@functools.lru_cache(maxsize=64)
def _compile(text: str, references: tuple[SchemaReference, ...]) -> ProtobufSchema:
    """Return the compiled schema. The compiler runs in a process, because it prints its errors."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        for name, content in (*CONFLUENT, *references, SchemaReference(_MAIN, text)):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                msg = f"the schema imports `{name}`, which is no relative path"
                raise SchemaError(msg)
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(content, encoding="utf-8")
        output = Path(folder) / "descriptors"
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{folder}",
            *(f"-I{one}" for one in import_folders()),
        ]
        command += ["--include_imports", f"--descriptor_set_out={output}", _MAIN]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILER_SECONDS, cwd=folder
        )
        if done.returncode:
            lines = [line.replace(f"{folder}/", "") for line in done.stderr.splitlines()]
            problem = next((line for line in lines if ".proto:" in line), "the compiler gives no reason")
            msg = f"the schema cannot be compiled: {problem.replace(f'{_MAIN}:', 'line ')}"
            hint = "Is it Protobuf? `reader_schema` can be a FileDescriptorSet in Base64 with all imports."
            raise SchemaError(msg, hint=hint)
        return ProtobufSchema(output.read_bytes())


def _place_messages(
    messages: Sequence[Any], outer: tuple[int, ...], prefix: str
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the place and the full name of each message."""
    plain = [one for one in messages if not one.options.map_entry]
    for index, one in enumerate(plain):
        yield (*outer, index), prefix + one.name
        yield from _place_messages(one.nested_type, (*outer, index), f"{prefix}{one.name}.")


def _message_type(message: Descriptor, outer: tuple[str, ...]) -> ProtobufType:
    name = message.full_name
    if name in outer:
        return ProtobufType(RECURSION, name)
    is_map = message.GetOptions().map_entry
    fields = tuple(_field(one, (*outer, name)) for one in message.fields)
    return ProtobufType(MAP if is_map else MESSAGE, "" if is_map else name, fields)


def _field(one: FieldDescriptor, outer: tuple[str, ...]) -> ProtobufField:
    kind = _KINDS[one.type]
    if kind == MESSAGE and one.message_type is not None:
        result = _message_type(one.message_type, outer)
    elif one.enum_type is not None:
        symbols = tuple((value.number, value.name) for value in one.enum_type.values)
        result = ProtobufType(kind, one.enum_type.full_name, symbols=symbols)
    else:
        result = ProtobufType(kind)
    has_default = not one.is_repeated and (not one.has_presence or one.has_default_value)
    default = one.default_value if has_default else None
    return ProtobufField(one.name, one.number, result, one.is_repeated, default)

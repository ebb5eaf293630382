"""Avro schemas as values: parsed from JSON with all names resolved, and written without names of their own.

Errors name the field by its path, such as `customer.address.zip`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.pipeline.errors import SchemaError

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NUMBER_OF_DIGITS = 100
"""The largest precision of a decimal that is read. Larger ones are mistakes."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type. `kind` is an Avro primitive, record, enum, fixed, array, map or union.

    A union of one type and null is that type with `null_at`, the index of null.
    """

    kind: str
    null_at: int | None = None
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    """Bytes of a fixed."""
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """Of an enum: the symbol for those that the reader does not know."""
    fields: tuple[AvroField, ...] = ()
    items: AvroType | None = None
    """The elements of an array, the values of a map."""
    branches: tuple[AvroType, ...] = ()
    doc: str = field(default="", compare=False)

    @property
    def is_decimal(self) -> bool:
        """Whether bytes or a fixed have the digits of a decimal."""
        return self.logical == "decimal"

    @property
    def item_type(self) -> AvroType:
        """The type of the elements of an array, or of the values of a map."""
        assert self.items is not None  # noqa: S101  the parser sets it
        return self.items

    def find_field(self, name: str) -> AvroField | None:
        """Return the field of a record with this name."""
        return next((one for one in self.fields if one.name == name), None)

    def __str__(self) -> str:
        """Return a short name for messages."""
        if self.is_decimal:
            return f"decimal({self.precision},{self.scale})"
        if self.kind == "union":
            return f"union of {', '.join(map(str, self.branches))}"
        return f"{self.kind} ({self.logical})" if self.logical else self.kind


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record. `default` is JSON; it has a meaning only with `has_default`."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = field(default=None, compare=False)


def parse_record(text: str, references: Iterable[str] = ()) -> AvroType:
    """Return the record that a schema describes, alone or in a union with null.

    `references` are schemas whose named types the text uses. Raise SchemaError for anything else.
    """
    parser = _Parser()
    for reference in references:
        parser.read(_load(reference), "", ())
    record = parser.read(_load(text), "", ())
    if record.kind != "record":
        msg = f"the schema is {record}, and only records have columns"
        raise SchemaError(msg, hint="Let the producer send records.")
    return record


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if text.lstrip()[:1] in ("{", "["):
            msg = f"the schema is not JSON: {error}"
            raise SchemaError(msg) from None
        # The name of a primitive, as some registries return it.
        return text.strip()


class _Parser:
    """Parses schemas that share their named types."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}
        """None while the type is being read: a name found then is a recursion."""

    def read(self, node: Any, namespace: str, path: tuple[str, ...]) -> AvroType:
        """Return the type of a JSON value. `path` is the field that it is of."""
        if isinstance(node, list):
            return self._union(node, namespace, path)
        if isinstance(node, str):
            return AvroType(node) if node in PRIMITIVES else self._look_up(node, namespace, path)
        kind = node.get("type") if isinstance(node, dict) else None
        if isinstance(kind, dict | list):
            return self.read(kind, namespace, path)
        if not isinstance(kind, str):
            raise _wrong(path, f"`{json.dumps(node)[:80]}` is not an Avro type")
        return self._read_named(node, kind, namespace, path)

    def _read_named(
        self, node: Mapping[str, Any], kind: str, namespace: str, path: tuple[str, ...]
    ) -> AvroType:
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(node, "record" if kind == "error" else kind, namespace, path)
        if kind == "array":
            return AvroType("array", items=self.read(node.get("items"), namespace, (*path, "[]")))
        if kind == "map":
            return AvroType("map", items=self.read(node.get("values"), namespace, (*path, "{}")))
        if kind in PRIMITIVES:
            return _with_logical_type(AvroType(kind), node, path)
        return self._look_up(kind, namespace, path)

    def _union(self, node: list[Any], namespace: str, path: tuple[str, ...]) -> AvroType:
        branches = tuple(self.read(branch, namespace, path) for branch in node)
        kinds = [branch.kind for branch in branches]
        if len(branches) == 2 and kinds.count("null") == 1:
            null_at = kinds.index("null")
            return replace(branches[1 - null_at], null_at=null_at)
        return branches[0] if len(branches) == 1 else AvroType("union", branches=branches)

    def _define(self, node: Mapping[str, Any], kind: str, namespace: str, path: tuple[str, ...]) -> AvroType:
        name = str(node.get("name", ""))
        own = name.rpartition(".")[0] or str(node.get("namespace", namespace) or "")
        full = name if "." in name or not own else f"{own}.{name}"
        if not name:
            raise _wrong(path, f"{kind} without a name")
        self._named[full] = None
        if kind == "record":
            result = AvroType(
                "record",
                fields=tuple(self._field(one, own, path) for one in node.get("fields", ())),
                doc=str(node.get("doc") or ""),
            )
        elif kind == "enum":
            result = AvroType("enum", symbols=tuple(node.get("symbols", ())), default=node.get("default"))
        else:
            result = _with_logical_type(AvroType("fixed", size=int(node.get("size", 0))), node, path)
        self._named[full] = result
        return result

    def _field(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> AvroField:
        name = str(node.get("name", ""))
        kind = node.get("type")
        # A logical type next to the name of a field, where some producers write it, is no Avro.
        return AvroField(
            name,
            self.read(kind, namespace, (*path, name)),
            tuple(node.get("aliases", ())),
            "default" in node,
            node.get("default"),
        )

    def _look_up(self, name: str, namespace: str, path: tuple[str, ...]) -> AvroType:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for known in (full, name):
            if known in self._named:
                if (result := self._named[known]) is None:
                    raise _wrong(path, f"type `{name}` contains itself, and columns cannot")
                return result
        raise _wrong(path, f"type `{name}` is not defined")


def _with_logical_type(kind: AvroType, node: Mapping[str, Any], path: tuple[str, ...]) -> AvroType:
    """Return the type with its logical type. One that does not fit is ignored, as Avro demands."""
    logical = str(node.get("logicalType") or "")
    if logical == "decimal":
        precision, scale = node.get("precision"), node.get("scale", 0)
        if (
            kind.kind not in ("bytes", "fixed")
            or not isinstance(precision, int)
            or not isinstance(scale, int)
        ):
            return kind
        if not 0 <= scale <= precision or not 1 <= precision <= _NUMBER_OF_DIGITS:
            raise _wrong(path, f"decimal({precision},{scale}) is not a decimal of 1 to 100 digits")
        if kind.kind == "fixed" and precision > digits_of_fixed(kind.size):
            return kind
        return replace(kind, logical=logical, precision=precision, scale=scale)
    fits = logical in _LOGICAL.get(kind.kind, ()) and (kind.kind != "fixed" or kind.size == _FIXED[logical])
    return replace(kind, logical=logical) if fits else kind


def digits_of_fixed(size: int) -> int:
    """Return the precision of the decimals that a fixed of so many bytes can hold."""
    return len(str(2 ** (8 * size - 1) - 1)) - 1 if size else 0


_LOGICAL: Mapping[str, frozenset[str]] = {
    "int": frozenset({"date", "time-millis"}),
    "long": frozenset(
        {
            "time-micros",
            *(
                f"{local}timestamp-{unit}"
                for local in ("", "local-")
                for unit in ("millis", "micros", "nanos")
            ),
        }
    ),
    "string": frozenset({"uuid"}),
    "bytes": frozenset({"big-decimal"}),
    "fixed": frozenset({"uuid", "duration"}),
}
_FIXED = {"uuid": 16, "duration": 12}


def _wrong(path: tuple[str, ...], what: str) -> SchemaError:
    where = f"field `{spell_path(path)}`: " if path else ""
    return SchemaError(f"{where}{what}")


def spell_path(path: Iterable[str]) -> str:
    """Return the path of a field for messages, such as `orders[].price`."""
    return ".".join(path).replace(".[]", "[]").replace(".{}", "{}")


def write_schema(kind: AvroType) -> str:
    """Return a schema as JSON that needs no other schema.

    Named types get names by their place, so that the names of two schemas never differ.
    """
    return json.dumps(_write(kind, "r"), separators=(",", ":"))


def _write(kind: AvroType, name: str) -> Any:
    if kind.kind == "union":
        return [_write(branch, f"{name}_u{at}") for at, branch in enumerate(kind.branches)]
    if kind.null_at is not None:
        branches = ["null", _write(replace(kind, null_at=None), name)]
        return branches if kind.null_at == 0 else branches[::-1]
    result: dict[str, Any] = {"type": kind.kind}
    if kind.kind == "record":
        result |= {"name": name, "fields": [_write_field(one, name) for one in kind.fields]}
        result |= {"doc": kind.doc} if kind.doc else {}
    elif kind.kind == "enum":
        result |= {"name": name, "symbols": list(kind.symbols)}
        result |= {"default": kind.default} if kind.default is not None else {}
    elif kind.kind == "fixed":
        result |= {"name": name, "size": kind.size}
    elif kind.kind in ("array", "map"):
        result[{"array": "items", "map": "values"}[kind.kind]] = _write(kind.item_type, f"{name}_i")
    if kind.logical:
        result["logicalType"] = kind.logical
        result |= {"precision": kind.precision, "scale": kind.scale} if kind.is_decimal else {}
    return kind.kind if len(result) == 1 else result


def _write_field(one: AvroField, name: str) -> dict[str, Any]:
    result = {"name": one.name, "type": _write(one.type, _name_of(name, one))}
    result |= {"default": one.default} if one.has_default else {}
    return result | ({"aliases": list(one.aliases)} if one.aliases else {})


def _name_of(record: str, one: AvroField) -> str:
    """Return the name of the type of a field. The length keeps `a_b` apart from `b` in `a`."""
    return f"{record}_{len(one.name)}{one.name}"

"""Avro schemas: parsing, columns, what is refused, and how two schemas meet. Nothing is started."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from helpers.avro_messages import record
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.avro.columns import key_of_doc, record_columns
from headrace.connectors.avro.resolution import resolve_schemas
from headrace.connectors.avro.schema import parse_record, write_schema
from headrace.connectors.kafka.avro.reader_schema import resolve_avro
from headrace.connectors.kafka.config import KafkaSourceConfig
from headrace.connectors.kafka.schema_frames import frame_of, schema_id_of
from headrace.pipeline.config.sections import KafkaConnection
from headrace.pipeline.errors import SchemaError


def columns(kind: Any, *references: str) -> pa.DataType:
    return record_columns(parse_record(json.dumps(record(("c", kind))), references)).field("c").type


def test_named_types_are_found_by_their_namespaces() -> None:
    inner = {"type": "enum", "name": "shop.kind", "symbols": ["A"]}
    row = record(
        ("a", inner),
        ("b", "shop.kind"),
        ("c", record(("d", {"type": "fixed", "name": "hash", "size": 4}), ("e", "hash"), name="shop.inner")),
        ("f", "shop.hash"),
        namespace="other",
    )
    result = record_columns(parse_record(json.dumps(row)))
    assert result.field("b").type == pa.string()
    assert result.field("f").type == pa.binary()
    assert columns("x.y", '{"type": "fixed", "name": "y", "namespace": "x", "size": 1}') == pa.binary()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (["int", "string"], "field `c` is a union of int, string"),
        ("null", "field `c` has no type but null"),
        ({"type": "array", "items": ["null", "int", "string"]}, "field `c[]` is a union of null, int, string"),
        ({"type": "map", "values": record(("x", ["int", "long"]), name="i")}, "field `c{}.x` is a union of int"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 79}, "field `c` is decimal(79,0); the largest"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 77, "scale": 1}, "field `c` is decimal(77,1)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 101}, "field `c`: decimal(101,0) is not"),
        (
            {"type": "array", "items": {"type": "bytes", "logicalType": "decimal", "precision": 39}},
            "field `c[]` is decimal(39,0) inside of another type",
        ),
        ({"type": "bytes", "logicalType": "big-decimal"}, "field `c` is a big-decimal"),
        (record(name="none"), "field `c` is a record without fields"),
        (record(("again", ["null", "row"]), name="i"), "field `c.again`: type `row` contains itself"),
        ("nowhere", "field `c`: type `nowhere` is not defined"),
        ({"items": "int"}, "field `c`: `{\"items\": \"int\"}` is not an Avro type"),
    ],
)  # fmt: skip
def test_what_no_column_can_have_is_refused_with_its_field(kind: Any, says: str) -> None:
    with pytest.raises(SchemaError) as refused:
        columns(kind)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "text", ['"string"', "string", '["null", "int"]', '{"type": "array", "items": "int"}']
)
def test_only_records_have_columns(text: str) -> None:
    with pytest.raises(SchemaError, match="only records have columns"):
        parse_record(text)


def test_fields_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(SchemaError, match="`id` and `ID` differ only in case"):
        record_columns(parse_record(json.dumps(record(("id", "int"), ("ID", "int")))))


def test_a_decimal_that_does_not_fit_its_bytes_is_plain_bytes() -> None:
    small = {"type": "fixed", "name": "f", "size": 2, "logicalType": "decimal", "precision": 5}
    assert columns(small) == pa.binary()
    assert columns(small | {"precision": 4}) == pa.decimal128(4, 0)


TEXTS = st.text("ab_1", min_size=1, max_size=3).map(lambda text: f"f{text}")
LEAVES = st.sampled_from(
    [
        *("boolean", "int", "long", "string", "bytes"),
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        ["null", "string"],
        ["double", "null"],
    ]
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "map", "values": values}),
        st.dictionaries(TEXTS, inner, min_size=1, max_size=3).map(
            lambda fields: {"type": "record", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
        ),
    ),
    max_leaves=8,
)


def named(kind: Any, names: list[int]) -> Any:
    """Gives each record of a schema a name of its own."""
    if isinstance(kind, list):
        return [named(branch, names) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    names.append(0)
    own = {"name": f"n{len(names)}"} if kind["type"] == "record" else {}
    inner = {key: named(kind[key], names) for key in ("items", "values") if key in kind}
    fields = {"fields": [one | {"type": named(one["type"], names)} for one in kind.get("fields", ())]}
    return kind | own | inner | (fields if own else {})


@given(st.dictionaries(TEXTS, TYPES, min_size=1, max_size=4))
def test_a_written_schema_is_the_same_schema(fields: dict[str, Any]) -> None:
    row = named({"type": "record", "fields": [{"name": n, "type": t} for n, t in fields.items()]}, [])
    parsed = parse_record(json.dumps(row))
    written = write_schema(parsed)
    assert parse_record(written) == parsed
    assert write_schema(parse_record(written)) == written
    names = _names(json.loads(written))
    assert len(names) == len(set(names))
    resolve_schemas(parsed, parsed)


def _names(kind: Any) -> list[str]:
    if isinstance(kind, list):
        return [name for branch in kind for name in _names(branch)]
    if not isinstance(kind, dict):
        return []
    own = [kind["name"]] if "fields" in kind or kind.get("type") in ("enum", "fixed") else []
    inner = [kind[key] for key in ("items", "values") if key in kind]
    inner += [one["type"] for one in kind.get("fields", ())]
    return own + [name for one in inner for name in _names(one)]


@given(st.integers(0, 2**32 - 1))
def test_a_frame_has_its_id(schema_id: int) -> None:
    assert schema_id_of(frame_of(schema_id)) == schema_id
    assert schema_id_of(frame_of(schema_id)[:4]) is None
    assert schema_id_of(b"\1" + frame_of(schema_id)[1:]) is None


@pytest.mark.parametrize(
    ("doc", "key"),
    [
        ('{"primaryKeys": ["id", "day"]}', ("id", "day")),
        ('{"primaryKeys": "id"}', ()),
        ('{"primaryKeys": [1]}', ()),
        ("An order.", ()),
        ("", ()),
        ("[1]", ()),
    ],
)
def test_a_key_in_a_doc(doc: str, key: tuple[str, ...]) -> None:
    assert key_of_doc(doc) == key


def node(**more: Any) -> KafkaSourceConfig:
    row = record(("id", "long"), ("v", "string"), doc='{"primaryKeys": ["id"]}')
    return KafkaSourceConfig.model_validate({"topic": "t", "reader_schema": json.dumps(row)} | more)


def test_a_schema_in_the_file_needs_no_registry() -> None:
    away = KafkaConnection(schema_registry_url="http://127.0.0.1:1")
    result = resolve_avro("src", node(), away)
    assert result.primary_key == ("id",)
    assert not result.validate_writer_schema_ordering
    assert resolve_avro("src", result, away) == result
    assert resolve_avro("src", node(primary_key="v"), away).primary_key == ("v",)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"primary_key": "other"}, "the primary key has `other`"),
        ({"reader_schema": "{"}, "`reader_schema`: the schema"),
        ({"reader_schema": '{"type": "record", "name": "r", "fields": [{"name": "_gs_pos", "type": "int"}]}'}, "_gs_pos"),
        ({"reader_schema": '{"type": "record", "name": "r", "fields": [{"name": "_gs_op", "type": "int"}]}'}, "must be a string"),
        ({"reader_schema": json.dumps(record(("id", "int"))), "tombstone": "delete"}, "`tombstone: delete` needs a key"),
    ],
)  # fmt: skip
def test_a_reader_schema_that_cannot_be_used(more: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaError) as refused:
        resolve_avro("src", node(**more), KafkaConnection())
    assert says in str(refused.value)
    assert refused.value.node == "src"

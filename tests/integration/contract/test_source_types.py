"""Values of every type from every source.

What arrives in Spark is what the outside system holds, or it is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.nested_rows import INF, INSTANT, NESTED, ROWS, same_as
from helpers.sink_makers import TYPES, VALUES
from helpers.source_makers import (
    ClickHouseWorld,
    DeltaWorld,
    FileWorld,
    IcebergWorld,
    KafkaWorld,
    SourceWorld,
    refused,
)
from pyarrow import orc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.connectors.files.config import FileSourceConfig
from headrace.connectors.files.source import Files
from headrace.connectors.source_base import Snapshot
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, SchemaError
from headrace.services import Services

PLANES = "aé漢\u07ff\u0800\ufffd\U00010000\U0001d11e\U0002f800\U0003134a\U000e0041\U000f0000\U0010ffff"


def arrived(world: SourceWorld, source: Any, schema: pa.Schema) -> list[dict[str, Any]]:
    """All rows by id, as values of `schema`, which is also what the source announces."""
    fixed = world.fixed(source)
    table = (
        world.read(source, fixed, world.pieces(source, fixed)).toArrow().sort_by("id").select(schema.names)
    )
    assert world.schema(source) == schema
    assert table.schema == schema
    return wanted(table.to_pylist(), schema)


def wanted(rows: list[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    return [{field.name: same_as(row[field.name], field.type) for field in schema} for row in rows]


def without_small_integers(kind: Any) -> Any:
    """Iceberg has none."""
    if pa.types.is_map(kind):
        return pa.map_(without_small_integers(kind.key_type), without_small_integers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(without_small_integers(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(member.name, without_small_integers(member.type)) for member in kind])
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind


NOT_A_NUMBER = pa.schema([("id", pa.int64()), ("single", pa.float32()), ("inside", pa.list_(pa.float64()))])
TABLES = {
    "plain": (TYPES, VALUES),
    "nested": (NESTED, ROWS),
    "nan": (NOT_A_NUMBER, [{"id": 1, "single": math.nan, "inside": [math.nan, INF, None]}]),
    "planes": (pa.schema([("id", pa.int64()), ("v", pa.string()), ("m", pa.map_(pa.string(), pa.string()))]),
               [{"id": 1, "v": PLANES + "\0", "m": [(PLANES, PLANES)]}]),
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_iceberg(
    spark: SparkSession, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    schema, rows = TABLES[table]
    schema = pa.schema([pa.field(field.name, without_small_integers(field.type)) for field in schema])
    world = IcebergWorld(spark, services, tmp_path, monkeypatch)
    frame = world.writer.createDataFrame(
        pa.Table.from_pylist(rows, schema), from_arrow_schema(schema, prefer_timestamp_ntz=True)
    )
    frame.writeTo("w.n.typed").create()
    assert arrived(world, world.open("n.typed"), schema) == wanted(rows, schema)
    world.close()


@pytest.mark.parametrize("table", TABLES)
def test_parquet_files(
    spark: SparkSession, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    schema, rows = TABLES[table]
    world = FileWorld(spark, services, tmp_path, monkeypatch)
    (world.folder / "part-0.parquet").unlink()
    world.put(pa.Table.from_pylist(rows, schema))
    assert arrived(world, world.open(), schema) == wanted(rows, schema)
    world.close()


def in_orc_range(value: Any) -> Any:
    """Return the value with times that Arrow's nanoseconds can hold, which is how it reads ORC."""
    if isinstance(value, datetime) and not 1677 < value.year < 2262:
        return value.replace(year=2261 if value.year > 2000 else 1678)
    if isinstance(value, dict):
        return {name: in_orc_range(member) for name, member in value.items()}
    return type(value)(map(in_orc_range, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("table", TABLES)
def test_orc_files(spark: SparkSession, tmp_path: Path, table: str) -> None:
    schema, rows = TABLES[table]
    rows = [in_orc_range(row) for row in rows]
    orc.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "a.orc")
    assert file_rows(spark, tmp_path, "orc", schema) == wanted(rows, schema)


def test_an_orc_time_that_arrow_cannot_hold_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    orc.write_table(
        pa.Table.from_pylist([{"id": 1, "at": datetime(9999, 12, 31)}], schema), tmp_path / "a.orc"
    )
    error = refused(lambda: file_rows(spark, tmp_path, "orc", schema), "src", "out of range for nanosecond")
    assert isinstance(error, DataError)


@pytest.mark.parametrize("table", ["plain", "nan", "planes"])  # Avro cannot have the names of `nested`
def test_avro_files(spark: SparkSession, tmp_path: Path, table: str) -> None:
    schema, rows = TABLES[table]
    schema = pa.schema([pa.field(field.name, without_small_integers(field.type)) for field in schema])
    frame = spark.createDataFrame(
        pa.Table.from_pylist(rows, schema), from_arrow_schema(schema, prefer_timestamp_ntz=True)
    )
    with_codec = frame.coalesce(1).write.format("avro").option("compression", "deflate")
    with_codec.save(str(tmp_path / "typed"))
    assert file_rows(spark, tmp_path / "typed", "avro", schema) == wanted(rows, schema)


def file_rows(spark: SparkSession, folder: Path, kind: str, schema: pa.Schema) -> list[dict[str, Any]]:
    """All rows of a folder by id, as values of `schema`, which is also what the source announces."""
    node = FileSourceConfig.model_validate({"path": str(folder), "format": kind, "mode": "bounded"})
    source = Files(node, Settings(), name="src")
    snapshot = source.create_snapshot(spark, "token")
    frame = source.read(spark, snapshot, source.splits(spark, snapshot, None, None))
    table = frame.toArrow().sort_by("id").select(schema.names)
    assert source.schema(spark) == schema
    assert table.schema == schema
    return wanted(table.to_pylist(), schema)


@pytest.mark.parametrize("table", TABLES)
def test_delta(
    spark: SparkSession, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    schema, rows = TABLES[table]
    world = DeltaWorld(spark, services, tmp_path, monkeypatch)
    frame = world.spark.createDataFrame(
        pa.Table.from_pylist(rows, schema), from_arrow_schema(schema, prefer_timestamp_ntz=True)
    )
    frame.write.format("delta").option("delta.columnMapping.mode", "name").save(f"{tmp_path}/typed")
    assert arrived(world, world.open(f"{tmp_path}/typed"), schema) == wanted(rows, schema)
    world.close()


@pytest.mark.parametrize("columns", ["", "id"])
def test_an_iceberg_type_that_spark_lacks_is_named(
    spark: SparkSession, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    world = IcebergWorld(spark, services, tmp_path, monkeypatch)
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    types, made = jvm.org.apache.iceberg.types.Types, jvm.java.util.ArrayList()
    for number, (name, kind) in enumerate(
        {"id": types.LongType.get(), "odd": types.TimeType.get()}.items(), 1
    ):
        made.add(types.NestedField.optional(number, name, kind))
    catalog = jvm.org.apache.iceberg.hadoop.HadoopCatalog(
        session.sessionState().newHadoopConf(), str(tmp_path)
    )
    catalog.createTable(
        jvm.org.apache.iceberg.catalog.TableIdentifier.parse("n.clock"), jvm.org.apache.iceberg.Schema(made)
    )
    node: dict[str, Any] = {"columns": columns} if columns else {}
    source = world.open("n.clock", **node)
    assert isinstance(refused(lambda: world.schema(source), "n.clock", "odd (time)"), SchemaError)


LATEST = datetime(2299, 12, 31, 23, 59, 59, 999999, UTC)
CLICKHOUSE: list[tuple[str, str, pa.DataType, Any]] = [
    ("Int8", "-128", pa.int8(), -128), ("Int16", "-32768", pa.int16(), -(2**15)),
    ("Int32", "-2147483648", pa.int32(), -(2**31)), ("Int64", "-9223372036854775808", pa.int64(), -(2**63)),
    ("Array(Nullable(UInt8))", "[0, 255, NULL]", pa.list_(pa.int16()), [0, 255, None]),
    ("Array(UInt16)", "[65535]", pa.list_(pa.int32()), [65535]),
    ("Array(UInt32)", "[4294967295]", pa.list_(pa.int64()), [2**32 - 1]),
    ("Array(Nullable(UInt64))", "[18446744073709551615, NULL]", pa.list_(pa.decimal128(20, 0)), [Decimal(2**64 - 1), None]),
    ("Array(Nullable(Float64))", ("[nan, inf, -inf, NULL, 0.1,"
                                 " 1e308]"), pa.list_(pa.float64()), [math.nan, INF, -INF, None, 0.1, 1e308]),
    ("Array(Float32)", "[nan, -inf, 0.1]", pa.list_(pa.float32()), [math.nan, -INF, 0.1]),
    ("Nullable(Float32)", "nan", pa.float32(), math.nan),
    ("Array(Nullable(Bool))", "[true, NULL, false]", pa.list_(pa.bool_()), [True, None, False]),
    ("Array(Decimal(38, 38))", f"['0.{'9' * 38}']", pa.list_(pa.decimal128(38, 38)), [Decimal("0." + "9" * 38)]),
    (("Map(String, Nullable(Decimal(38,"
     " 0)))"), (f"map('a', toDecimal128('-{'9' * 38}', 0), 'b',"
              " NULL)"), pa.map_(pa.string(), pa.decimal128(38, 0)),
     [("a", Decimal("-" + "9" * 38)), ("b", None)]),
    ("Array(Nullable(Date32))", ("['1900-01-01', '2299-12-31',"
                                " NULL]"), pa.list_(pa.date32()), [date(1900, 1, 1), date(2299, 12, 31), None]),
    ("Array(DateTime64(6, 'UTC'))", ("['1900-01-01 00:00:00.000001', '2299-12-31"
                                    " 23:59:59.999999']"), pa.list_(INSTANT),
     [datetime(1900, 1, 1, 0, 0, 0, 1, UTC), LATEST]),
    (("DateTime64(6,"
     " 'Europe/Berlin')"), "'2024-03-31 03:30:00.123456'", INSTANT, datetime(2024, 3, 31, 1, 30, 0, 123456, UTC)),
    (("Map(Date, Array(Tuple(x Nullable(Int8), y"
     " Array(String))))"), "{'2024-02-29': [(NULL, ['', 'é']), (1, [])]}",
     pa.map_(pa.date32(), pa.list_(pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]))),
     [(date(2024, 2, 29), [{"x": None, "y": ["", "é"]}, {"x": 1, "y": []}])]),
    (("Map(UInt64, DateTime64(6,"
     " 'UTC'))"), ("{18446744073709551615: '2024-01-01"
                 " 00:00:00.000001'}"), pa.map_(pa.decimal128(20, 0), INSTANT),
     [(Decimal(2**64 - 1), datetime(2024, 1, 1, 0, 0, 0, 1, UTC))]),
    (("Tuple(m Map(String, Array(Nullable(Int64))), t Tuple(Nullable(String),"
     " FixedString(2)))"), "({'k': [1, NULL]}, (NULL, 'a'))",
     pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int64()))), ("t", pa.struct([("1", pa.string()), ("2", pa.binary())]))]),
     {"m": [("k", [1, None])], "t": {"1": None, "2": b"a\0"}}),
    ("Array(Nullable(String))", f"['{PLANES}', NULL, '\\0', '']", pa.list_(pa.string()), [PLANES, None, "\0", ""]),
    ("Array(Array(Array(UUID)))", ("[[[], ['61f0c404-5cb3-11e7-907b-a6006ad3dba0']],"
                                  " []]"), pa.list_(pa.list_(pa.list_(pa.string()))),
     [[[], ["61f0c404-5cb3-11e7-907b-a6006ad3dba0"]], []]),
]  # fmt: skip


def test_clickhouse(spark: SparkSession, services: Services, ch_db: str) -> None:
    world = ClickHouseWorld(spark, services, ch_db)
    schema = pa.schema(
        [("id", pa.int64()), *((f"c{at}", kind) for at, (_, _, kind, _) in enumerate(CLICKHOUSE))]
    )
    columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(CLICKHOUSE))
    world.do(f"CREATE TABLE {ch_db}.typed (id Int64, {columns}) ENGINE = MergeTree ORDER BY id")
    world.do(f"INSERT INTO {ch_db}.typed VALUES (1, {', '.join(value for _, value, *_ in CLICKHOUSE)})")
    world.do(f"INSERT INTO {ch_db}.typed (id) VALUES (2)")
    source = world.open(f"{ch_db}.typed")
    result = arrived(world, source, schema)
    assert (
        result[0]
        == wanted([{"id": 1} | {f"c{at}": value for at, (*_, value) in enumerate(CLICKHOUSE)}], schema)[0]
    )
    fixed = world.fixed(source)
    pieces = world.pieces(source, fixed)
    fetch = source.create_split_reader(Snapshot(fixed, fixed["pinned"]), pieces, None)
    direct = [row for piece in pieces for batch in fetch.fetch(piece) for row in batch.to_pylist()]
    assert wanted(direct, schema) == result
    world.close()


def test_clickhouse_nested_columns_are_lists(spark: SparkSession, services: Services, ch_db: str) -> None:
    world = ClickHouseWorld(spark, services, ch_db)
    world.do(
        f"CREATE TABLE {ch_db}.typed (id Int64, n Nested(a UInt8, b Nullable(String))) ENGINE = MergeTree"
        " ORDER BY id"
    )
    world.do(f"INSERT INTO {ch_db}.typed VALUES (1, [1, 255], ['x', NULL])")
    schema = pa.schema([("id", pa.int64()), ("n.a", pa.list_(pa.int16())), ("n.b", pa.list_(pa.string()))])
    assert arrived(world, world.open(f"{ch_db}.typed"), schema) == [
        {"id": 1, "n.a": [1, 255], "n.b": ["x", None]}
    ]
    world.close()


def test_a_clickhouse_type_without_a_counterpart_is_named(
    spark: SparkSession, services: Services, ch_db: str
) -> None:
    world = ClickHouseWorld(spark, services, ch_db)
    world.do(
        f"CREATE TABLE {ch_db}.typed (id Int64, odd Map(String, Tuple(Int8, Array(UInt256)))) ENGINE ="
        " MergeTree ORDER BY id"
    )
    error = refused(
        lambda: world.schema(world.open(f"{ch_db}.typed")),
        "`odd`",
        "Map(String, Tuple(Int8, Array(UInt256)))",
        "UInt256",
    )
    assert isinstance(error, SchemaError)
    world.close()


MOMENT = datetime(2024, 3, 31, 1, 30, 0, 123456, UTC)
KAFKA: list[tuple[str, str, pa.DataType, Any]] = [
    ("int8", "-128", pa.int8(), -128), ("int16", "-32768", pa.int16(), -(2**15)),
    ("int32", "2147483647", pa.int32(), 2**31 - 1), ("int64", "-9223372036854775808", pa.int64(), -(2**63)),
    ("uint8", "255", pa.int16(), 255), ("uint16", "65535", pa.int32(), 65535),
    ("uint32", "4294967295", pa.int64(), 2**32 - 1),
    ("uint64", "18446744073709551615", pa.decimal128(20, 0), Decimal(2**64 - 1)),
    ("float32", "0.1", pa.float32(), 0.1), ("float32", "NaN", pa.float32(), math.nan),
    ("float64", "0.1", pa.float64(), 0.1), ("float64", '"NaN"', pa.float64(), math.nan),
    ("float64", "-Infinity", pa.float64(), -INF), ("float64", '"Infinity"', pa.float64(), INF),
    ("decimal(38,0)", "9" * 38, pa.decimal128(38, 0), Decimal("9" * 38)),
    ("decimal(38,10)", f'"-{"9" * 28}.{"9" * 10}"', pa.decimal128(38, 10), Decimal(f"-{'9' * 28}.{'9' * 10}")),
    ("boolean", "false", pa.bool_(), False), ("date32", '"0001-01-01"', pa.date32(), date(1, 1, 1)),
    ("date32", '"9999-12-31"', pa.date32(), date(9999, 12, 31)),
    ("timestamp", '"2024-03-31T03:30:00.123456+02:00"', INSTANT, MOMENT),
    ("timestamp", '"2024-03-31 01:30:00.123456"', INSTANT, MOMENT),
    ("timestamp", '"9999-12-31T23:59:59.999999Z"', INSTANT, datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ("string", json.dumps(PLANES + "\0\"\\'\u2028"), pa.string(), PLANES + "\0\"\\'\u2028"),
    ("string", json.dumps(PLANES, ensure_ascii=False), pa.string(), PLANES),
    ("string", r'"\\ud800 is six letters"', pa.string(), r"\ud800 is six letters"),
    ("string", '"1.50"', pa.string(), "1.50"), ("string", '"{\\"a\\": 1.50}"', pa.string(), '{"a": 1.50}'),
    ("string", "1234567890123456789.125", pa.string(), "1234567890123456789.125"),
    ("binary", '"00fFA0"', pa.binary(), b"\x00\xff\xa0"), ("binary", '""', pa.binary(), b""),
]  # fmt: skip


@pytest.fixture
def kafka(spark: SparkSession, services: Services, topic: Callable[..., str]) -> KafkaWorld:
    return KafkaWorld(spark, services, topic)


def send(world: KafkaWorld, payload: str) -> None:
    world.producer.produce(world.name, payload.encode(), partition=0)
    assert world.producer.flush(30) == 0


def test_kafka(kafka: KafkaWorld) -> None:
    declared = {"id": "int64"} | {f"c{at}": kind for at, (kind, *_) in enumerate(KAFKA)}
    schema = pa.schema([("id", pa.int64()), *((f"c{at}", kind) for at, (_, _, kind, _) in enumerate(KAFKA))])
    send(kafka, '{"id": 1, ' + ", ".join(f'"c{at}": {text}' for at, (_, text, *_) in enumerate(KAFKA)) + "}")
    send(kafka, '{"id": 2}')
    send(kafka, '{"id": 3, ' + ", ".join(f'"c{at}": null' for at in range(len(KAFKA))) + "}")
    full = {f"c{at}": value for at, (*_, value) in enumerate(KAFKA)}
    rows = [{"id": 1} | full, {"id": 2} | dict.fromkeys(full), {"id": 3} | dict.fromkeys(full)]
    source = kafka.open(schema=declared)
    assert arrived(kafka, source, schema) == wanted(rows, schema)
    kafka.close()


def test_kafka_columns_may_have_the_names_that_messages_use(kafka: KafkaWorld) -> None:
    names = [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "headers",
        "value",
        "key",
        "text",
        "json",
        "v",
        "bad",
    ]
    send(kafka, json.dumps({"id": 1} | {name: f"1.5 {name}" for name in names}))
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
    source = kafka.open(schema={"id": "int64"} | dict.fromkeys(names, "string"))
    assert arrived(kafka, source, schema) == [{"id": 1} | {name: f"1.5 {name}" for name in names}]
    kafka.close()


DOCUMENTS = [
    (
        '{"p": 1234567890123456789.123456789, "a": [0.10, -0.5e3, {"z": 1, "b": "é\\n\\ud83d\\ude00", "n":'
        ' null}], "t": true}'
    ),
    "[12345678901234567890123456789012345678, 0.00000000000000000000000000000000001]",
    '{"plain": [1, "2.5", {}], "": ""}',
    "[]",
]


def test_kafka_lists_and_objects_stay_json_with_every_digit(kafka: KafkaWorld) -> None:
    for number, document in enumerate(DOCUMENTS):
        send(kafka, f'{{"id": {number}, "odd `name": {document}}}')
    schema = pa.schema([("id", pa.int64()), ("odd `name", pa.string())])
    result = arrived(kafka, kafka.open(schema={"id": "int64", "odd `name": "string"}), schema)
    exact = [json.loads(row["odd `name"], parse_float=Decimal) for row in result]
    assert exact == [json.loads(document, parse_float=Decimal) for document in DOCUMENTS]
    kafka.close()


@pytest.mark.parametrize(
    "kind", ["array<int64>", "struct<a: int64>", "map<string, int64>", "list", "decimal(39,0)"]
)
def test_kafka_types_that_a_schema_cannot_name_are_refused(kafka: KafkaWorld, kind: str) -> None:
    error = refused(lambda: kafka.schema(kafka.open(schema={"id": "int64", "v": kind})), "`v`", kind)
    assert isinstance(error, SchemaError)
    assert "string" in error.hint


@pytest.mark.parametrize(
    "text",
    [
        r"\ud800",
        r"\udc00",
        pytest.param(r"x\uDBFF\ud83d\ude00", marks=pytest.mark.slow),
        pytest.param(r"\\\ud83d!", marks=pytest.mark.slow),
        pytest.param(r"\ude00\ud83d", marks=pytest.mark.slow),
    ],
)
def test_kafka_half_a_character_is_refused(kafka: KafkaWorld, text: str) -> None:
    send(kafka, '{"id": 1, "v": "\\ud83d\\ude00 \\\\ud800"}')
    send(kafka, f'{{"id": 2, "v": "{text}"}}')
    source = kafka.open()
    fixed = kafka.fixed(source)
    error = refused(
        lambda: kafka.read(source, fixed, kafka.pieces(source, fixed)).collect(),
        kafka.name,
        "offset 1",
        "surrogate",
    )
    assert isinstance(error, DataError)
    kafka.close()

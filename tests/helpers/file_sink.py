"""File sinks with folders of their own, and the rows that Headrace's own source reads back from them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds
from pyspark.sql import SparkSession

from headrace.connectors.files.config import FileSinkConfig, FileSourceConfig
from headrace.connectors.files.sink_folder import COMMIT
from headrace.connectors.files.source import Files
from headrace.connectors.files.writer import CHANGE
from headrace.connectors.sink_base import Sink
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import SinkKey
from headrace.pipeline.types.arrow import is_nested
from helpers.kafka_sink import declared_type
from helpers.sink_makers import SinkMaker


def read_changes(
    spark: SparkSession, path: str, format_: str, schema: pa.Schema, *, keyed: bool = True, **node: Any
) -> list[dict[str, Any]]:
    """Return all rows of the commits in a folder, with `headrace_commit` and, if keyed, `headrace_op`."""
    if not list(Path(path).glob(f"{COMMIT}=*")):
        return []
    declared = {one.name: declared_type(one.type) for one in schema} | ({CHANGE: "string"} if keyed else {})
    source = FileSourceConfig.model_validate(
        {"path": path, "format": format_, "mode": "bounded"}
        | ({} if format_ == "parquet" else {"schema": declared})
        | node
    )
    files = Files(source, Settings(), 0, "back")
    snapshot = files.create_snapshot(spark, "")
    splits = files.splits(spark, snapshot, None, None)
    rows = files.read(spark, snapshot, splits).toArrow().to_pylist() if splits else []
    kinds_of = {one.name: one.type for one in schema}
    return [
        {name: _value(value, kinds_of.get(name, pa.string()), format_) for name, value in row.items()}
        for row in rows
    ]


def _value(value: Any, kind: Any, format_: str) -> Any:
    if value is None:
        return None
    if is_nested(kind) and format_ != "parquet":
        return json.loads(value, parse_float=Decimal)
    if kinds.is_timestamp(kind):
        return value.replace(tzinfo=None) if kind.tz is None else value.astimezone(UTC)
    if kinds.is_date(kind) and isinstance(value, str):
        return __import__("datetime").date.fromisoformat(value)
    return value


def fold(rows: list[dict[str, Any]], key: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """Return the rows that the documented rule leaves: the last commit of each key, without deletes."""
    if not key:
        return list(rows)
    result: dict[str, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row[COMMIT]):
        at = repr([row[name] for name in key])
        assert at not in result or result[at][COMMIT] < row[COMMIT], "two rows of a key in one commit"
        result[at] = row
    return [row for row in result.values() if row[CHANGE] != "d"]


@dataclass
class FileSinkMaker(SinkMaker):
    """Creates sinks of one folder."""

    path: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    """Schema and key of the last sink."""

    def open(self, schema: pa.Schema, columns: tuple[str, ...] = ("id",)) -> Sink:
        """See `SinkMaker.open`."""
        self.last |= {"schema": schema, "key": columns}
        return super().open(schema, columns)


def file_sink_maker(
    spark: SparkSession, folder: Path, format_: str = "parquet", path: str = "", **node: Any
) -> FileSinkMaker:
    """Return the maker of sinks into a folder that they create. `node` are further keys of the node."""
    path = path or str(folder / "out")
    last: dict[str, Any] = {}

    def rows(names: list[str]) -> list[tuple[Any, ...]]:
        result = read_changes(spark, path, format_, last["schema"], keyed=bool(last["key"]))
        return [tuple(row[column] for column in names) for row in fold(result, last["key"])]

    def make_node(columns: tuple[str, ...]) -> FileSinkConfig:
        return FileSinkConfig.model_validate(
            {"path": path, "format": format_, "primary_key": columns, "from": "x"} | node
        )

    return FileSinkMaker(
        f"file-{format_}",
        make_node,
        Settings(home=folder),
        spark,
        rows,
        SinkKey(secrets.token_hex(16), "contract", "main", f"s{secrets.token_hex(3)}"),
        path=path,
        last=last,
    )

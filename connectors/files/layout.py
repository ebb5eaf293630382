"""What the files of one target have in common: format, folders and columns, in `.headrace/layout.json`."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pyarrow as pa
from pyarrow import types as kinds

from headrace.connectors.files.config import FileSinkConfig
from headrace.connectors.files.sink_folder import COMMIT, HOME, is_commit
from headrace.connectors.files.writer import CHANGE
from headrace.connectors.json_text import check_keys
from headrace.connectors.kafka.json_decoder import arrives_as
from headrace.pipeline.errors import SchemaError, TargetError, UserError
from headrace.pipeline.protocol.epochs import Json

_LAYOUT = "layout.json"


def check_schema(node: FileSinkConfig, schema: pa.Schema, name: str) -> None:
    """Raise an error for columns that the files cannot have."""
    for field in schema:
        if field.name.lower() in (COMMIT, CHANGE):
            msg = f"column `{field.name}` has a name that the files of this sink use themselves"
            raise SchemaError(msg, hint="Rename it in a transform.", node=name)
        if arrives_as(field.type) is None:
            msg = f"column `{field.name}`: files cannot carry {field.type}"
            raise SchemaError(msg, hint="Convert it in a transform.", node=name)
        if node.format != "parquet":
            check_keys(name, field)
    for column in node.partition_by:
        at = schema.get_field_index(column)
        if at < 0:
            msg = f"`partition_by` names `{column}`, which is not among the columns {', '.join(schema.names)}"
            raise UserError(msg, node=name, keys=("partition_by",))
        kind = schema.field(at).type
        if not (kinds.is_string(kind) or kinds.is_integer(kind) or kinds.is_date(kind)):
            msg = f"`partition_by` names `{column}`, which is {kind}"
            hint = "Use strings, integers or dates. Example: a column `day` with `cast(placed_at as date)`."
            raise UserError(msg, hint=hint, node=name, keys=("partition_by",))
    if not set(schema.names) - set(node.partition_by):
        msg = "`partition_by` names all columns, so the files would have none"
        raise UserError(msg, node=name, keys=("partition_by",))


def check_layout(
    path: str, node: FileSinkConfig, schema: pa.Schema, key: tuple[str, ...], name: str, *, store: bool
) -> None:
    """Compare the sink with the files that are in the target, and with `store` note new columns.

    Raise TargetError for a folder with other files or of another layout, and SchemaError for other columns.
    """
    result = _read(path)
    if result is None:
        _check_free(path, name)
    mine = {
        "format": node.format,
        "partition_by": list(node.partition_by),
        "primary_key": bool(key),
        "columns": {field.name: str(field.type) for field in schema},
    }
    if result is not None:
        _compare(path, result, mine, name)
        mine["columns"] = result["columns"] | mine["columns"]
    if store and mine != result:
        home = Path(path) / HOME
        home.mkdir(parents=True, exist_ok=True)
        new = home / f".{uuid.uuid4().hex}"
        new.write_text(json.dumps(mine), encoding="utf-8")
        new.rename(home / _LAYOUT)


def _read(path: str) -> Json | None:
    try:
        return json.loads((Path(path) / HOME / _LAYOUT).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_free(path: str, name: str) -> None:
    """Raise TargetError unless the folder is missing or empty, or has only what a sink left."""
    try:
        others = [one for one in sorted(os.listdir(path)) if one != HOME and not is_commit(one)]
    except FileNotFoundError:
        return
    except OSError as error:
        msg = f"`{path}` cannot be used as a folder: {error.strerror}"
        raise TargetError(msg, hint="Choose another `path`, or correct its rights.", node=name) from None
    if others:
        msg = f"`{path}` has files of other programs: {', '.join(others[:3])}{'…' if others[3:] else ''}"
        raise TargetError(msg, hint="Choose a `path` that is empty or missing.", node=name)


def _compare(path: str, stored: Json, mine: Json, name: str) -> None:
    hint = "Choose another `path`, or the former value."
    for what in ("format", "partition_by", "primary_key"):
        if stored[what] != mine[what]:
            was, now = (_describe(what, one[what]) for one in (stored, mine))
            msg = f"the files in `{path}` are {was}, and the sink writes {now}"
            raise TargetError(msg, hint=hint, node=name, keys=(what,))
    for column, kind in mine["columns"].items():
        if (was := stored["columns"].get(column, kind)) != kind:
            msg = f"column `{column}` is {was} in the files in `{path}`, and {kind} in the rows"
            raise SchemaError(msg, hint="Convert it in a transform, or choose another `path`.", node=name)
    if mine["format"] == "csv" and list(stored["columns"]) != list(mine["columns"]):
        was, now = (", ".join(one["columns"]) for one in (stored, mine))
        msg = f"the csv files in `{path}` have the columns {was}, and the rows have {now}"
        raise SchemaError(msg, hint="Columns of csv files cannot change. Choose another `path`.", node=name)


def _describe(what: str, value: object) -> str:
    if what == "primary_key":
        return "changes of keys" if value else "rows without a key"
    if what == "format":
        return f"{value} files"
    return f"partitioned by {', '.join(map(str, value))}" if value else "without partitions"  # type: ignore[call-overload]

"""The rows of a test as the files have them: in the test itself, or in a CSV, JSON lines or Parquet file."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.pipeline.errors import FileLocation, PipelineFileError, UserError
from headrace.pipeline.model.testcases import RowsConfig
from headrace.pipeline.testcases.values import as_written
from headrace.pipeline.yaml.reader import nearest_location, shorten

Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows without types. `places` are the locations of rows and cells.

    `schema` has the types if the file has them.
    """

    records: list[dict[str, Any]]
    start: FileLocation
    places: Mapping[Path_, FileLocation] = field(default_factory=dict)
    schema: pa.Schema | None = None

    @property
    def columns(self) -> list[str]:
        """All columns of the rows, in order of appearance."""
        named = dict.fromkeys(column for record in self.records for column in record)
        return list(named) or (self.schema.names if self.schema else [])

    def place(self, row: int, column: str = "") -> FileLocation:
        """Return the location of a cell, or of its row."""
        return nearest_location(self.places, (row, column) if column else (row,)) or self.start


def read_rows(
    node: RowsConfig,
    folder: Path,
    path: Path_,
    places: Mapping[Path_, FileLocation],
    texts: Mapping[Path_, str],
) -> Rows:
    """Return the rows of an input or expected node at `path` of a file in `folder`.

    Raise PipelineFileError for a missing or invalid file.
    """
    form = node.forms[0]
    here = nearest_location(places, (*path, form)) or FileLocation(str(folder))
    if node.rows is None:
        return _from_file(form, folder / str(node.path), here)
    at = (*path, "rows")
    result = {
        key[len(at) :]: place for key, place in places.items() if key[: len(at)] == at and len(key) > len(at)
    }
    records = [_spell_value(record, (*at, index), texts) for index, record in enumerate(node.rows)]
    return Rows(records, here, result)


def _spell_value(value: Any, path: Path_, texts: Mapping[Path_, str]) -> Any:
    if isinstance(value, dict):
        return {key: _spell_value(inner, (*path, key), texts) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spell_value(inner, (*path, index), texts) for index, inner in enumerate(value)]
    return as_written(value, texts.get(path))


def _from_file(form: str, path: Path, here: FileLocation) -> Rows:
    try:
        return {"csv": _csv, "json": _json, "parquet": _parquet}[form](path)
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        reason = getattr(error, "strerror", None) or (
            "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "it is no Parquet file"
        )
        msg = f"`{path}` cannot be read: {reason}"
        raise PipelineFileError(
            [UserError(msg, hint="The path is relative to this file.", place=here)]
        ) from None


def _csv(path: Path) -> Rows:
    """Read a CSV file. Each cell is a string. An empty one is null."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if doubled := next((name for name in header if header.count(name) > 1), None):
            _refuse(
                f"the column `{shorten(doubled)}` stands twice in the header",
                "Give one of them another name.",
                FileLocation(str(path), 1),
            )
        records, places = [], {}
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                msg = f"the line has {len(cells)} cells, and the header {len(header)}"
                _refuse(
                    msg,
                    "Put a cell with a comma into double quotes.",
                    FileLocation(str(path), reader.line_num),
                )
            places[len(records),] = FileLocation(str(path), reader.line_num)
            records.append({name: cell or None for name, cell in zip(header, cells, strict=True)})
    return Rows(
        records,
        FileLocation(str(path), 1),
        places,
        pa.schema([(name, pa.string()) for name in header]) if not records else None,
    )


def _json(path: Path) -> Rows:
    """Read one JSON object per line. Numbers keep their digits."""
    records, places = [], {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            result = json.loads(line, parse_float=Decimal)
        except ValueError as error:
            _refuse(
                f"not JSON: {error}", "One JSON object per line is expected.", FileLocation(str(path), number)
            )
        if not isinstance(result, dict):
            _refuse(
                f"`{shorten(line)}` is no JSON object",
                "One JSON object per line is expected.",
                FileLocation(str(path), number),
            )
        places[len(records),] = FileLocation(str(path), number)
        records.append(result)
    return Rows(records, FileLocation(str(path), 1), places)


def _parquet(path: Path) -> Rows:
    table = pq.read_table(path)
    return Rows(table.to_pylist(maps_as_pydicts="strict"), FileLocation(str(path)), {}, table.schema)


def _refuse(msg: str, hint: str, place: FileLocation) -> NoReturn:
    raise PipelineFileError([UserError(msg, hint=hint, place=place)])

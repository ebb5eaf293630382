"""Answers of an API as rows: an array at a path, and where the next page is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.http.decode import (
    AnswerError,
    DecodedResponse,
    ResponseDecoder,
    clean_body,
    describe_kind,
    parse_exact,
    read_document,
)

Path = tuple[str, ...]
_ROOT = "r"
_CURSORS = (pa.string(), pa.int64())


@dataclass(frozen=True, slots=True)
class Page:
    """The rows of an answer, and its cursor or address of the next page; "" if there is none."""

    rows: DecodedResponse
    next: str


class PageDecoder:
    """Reads answers of one node by Arrow's JSON reader, or by Python if that fails."""

    def __init__(self, schema: pa.Schema, records: Path, cursor: Path | None) -> None:
        """Store the path of the array of rows, and that of the cursor or address of the next page."""
        self._decoder = ResponseDecoder(schema, 0, single=False)
        self._records = (_ROOT, *records)
        self._cursor = None if cursor is None else (_ROOT, *cursor)

    def read(self, body: bytes) -> Page:
        """Return the rows of an answer. Raise AnswerError for a body that is not what was declared."""
        text = clean_body(body)
        for kind in _CURSORS if self._cursor is not None else (None,):
            if (result := self._read_with_arrow(text, kind)) is not None:
                return result
        return self._read_with_python(text)

    def _read_with_arrow(self, text: bytes, cursor: pa.DataType | None) -> Page | None:
        """Return the page, or None if Arrow's reader fails for it. `cursor` is the cursor's type."""
        row = self._decoder.wire_row()
        if row is None:
            return None
        leaves: dict[Path, pa.DataType] = {self._records: pa.list_(row)}
        if self._cursor is not None and cursor is not None:
            leaves[self._cursor] = cursor
        try:
            table = read_document(b'{"r":' + text + b"}", pa.schema(_fields(leaves)))
        except pa.ArrowException:
            return None
        records = _value_at(table, self._records)
        if table.num_rows != 1 or records is None or records.null_count:
            return None
        rows = self._decoder.read_arrays(records.flatten())
        if rows is None:
            return None
        following = None if self._cursor is None else _value_at(table, self._cursor)
        result = None if following is None else following[0].as_py()
        return Page(rows, "" if result is None else str(result))

    def _read_with_python(self, text: bytes) -> Page:
        try:
            document = parse_exact(text)
        except ValueError as error:
            msg = f"the answer is no JSON: {error}"
            raise AnswerError(msg) from None
        records: Any = document
        for depth, key in enumerate(self._records[1:], 1):
            if not isinstance(records, dict) or key not in records:
                msg = f"the answer has no `{'.'.join(self._records[1 : depth + 1])}`"
                raise AnswerError(msg)
            records = records[key]
        if not isinstance(records, list):
            where = f"`{'.'.join(self._records[1:])}`" if len(self._records) > 1 else "the answer"
            msg = f"{where} is {describe_kind(records)}, an array of objects is expected"
            raise AnswerError(msg)
        return Page(self._decoder.read_values(records), self._find_cursor(document))

    def _find_cursor(self, document: Any) -> str:
        result = document
        for key in (self._cursor or (_ROOT,))[1:]:
            result = result.get(key) if isinstance(result, dict) else None
        if self._cursor is None or result is None:
            return ""
        if isinstance(result, bool) or not isinstance(result, str | int):
            msg = (
                f"`{'.'.join(self._cursor[1:])}` is {describe_kind(result)}, a text or an integer is expected"
            )
            raise AnswerError(msg)
        return str(result)


def _fields(leaves: dict[Path, pa.DataType]) -> list[pa.Field]:
    """Return the columns that contain these leaves, by path."""
    result: list[pa.Field] = []
    for name in dict.fromkeys(path[0] for path in leaves):
        below = {path[1:]: kind for path, kind in leaves.items() if path[0] == name}
        result.append(pa.field(name, below[()] if () in below else pa.struct(_fields(below))))
    return result


def _value_at(table: pa.Table, path: Path) -> Any:
    """Return the array at a path, or None if an object on the way to it is missing."""
    result: Any = table[path[0]].combine_chunks()
    for key in path[1:]:
        if result.null_count:
            return None
        result = result.field(key)
    return result

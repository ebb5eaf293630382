"""Reads one file of a format: its row counts and columns, and its rows as Arrow."""

from __future__ import annotations

import lzma
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.avro.columns import record_columns
from headrace.connectors.avro.schema import parse_record
from headrace.connectors.files import avro_file
from headrace.pipeline.errors import SchemaError

pc: Any = pyarrow.compute
"""Its functions are made at import, so type checkers do not see them."""

LINE, BLOCK = "_headrace_line", "_headrace_block"
TEXT_COLUMN = "value"
"""The column of text files."""
UNREADABLE = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    KeyError,
    OSError,
    EOFError,
    ValueError,
    SchemaError,
    lzma.LZMAError,
    zlib.error,
)
"""What reading a broken file, or one of another format, may raise."""
_BATCH_ROWS = 20_000
_CHUNK_BYTES = 16 << 20
"""A record of a csv or json file must fit into one."""
_BATCH_BYTES = 4 << 20
"""Of Avro blocks that are one batch."""
_BLOCKS = 512
"""Avro blocks of one group."""
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_NO_JSON = "\x01"
"""A byte that no JSON line can contain: the csv reader reads lines as one column."""

Rows = Iterator[tuple[int, int | pa.Array, pa.RecordBatch]]
"""Of each batch: its row group, the number of its first row in the file or of all rows, and its rows."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How csv files are written. `names` are all columns of a file without a header."""

    names: tuple[str, ...] = ()
    header: bool = True
    delimiter: str = ","
    null_value: str = ""


@dataclass(frozen=True, slots=True)
class FileContents:
    """What the file itself says about its rows. A format without row groups has none."""

    groups: tuple[int, ...] | None
    columns: pa.Schema


class FormatReader(ABC):
    """Reads files of one format."""

    has_columns: bool = True
    """Whether files have their own columns. Others have those of `schema`."""
    has_counts: bool = True
    """Whether a file tells its rows without reading them. Others are one row group of unknown size."""

    @abstractmethod
    def contents(self, file: IO[bytes]) -> FileContents:
        """Return row groups and columns. Called once per file, when it is listed, if it `has_columns`."""

    @abstractmethod
    def rows(
        self, file: IO[bytes], path: str, groups: Sequence[int], span: range, columns: pa.Schema
    ) -> Rows:
        """Return the rows of the row groups in `span`. `groups` are the rows of all of them.

        Called once per range of a file, in a task.
        """


class ParquetReader(FormatReader):
    """Row groups are those of the file."""

    def contents(self, file: IO[bytes]) -> FileContents:
        """See `FormatReader.contents`."""
        with open_parquet(file) as source:
            about = source.metadata
            groups = tuple(about.row_group(at).num_rows for at in range(about.num_row_groups))
            return FileContents(groups, source.schema_arrow)

    def rows(
        self, file: IO[bytes], path: str, groups: Sequence[int], span: range, columns: pa.Schema
    ) -> Rows:
        """See `FormatReader.rows`."""
        del path
        source, starts = open_parquet(file), _starts(groups)
        for group in span:
            seen = starts[group]
            for batch in source.iter_batches(_BATCH_ROWS, [group], columns=columns.names, use_threads=False):
                yield group, seen, batch
                seen += batch.num_rows


class OrcReader(FormatReader):
    """A file is one group: its footer has no row counts of stripes."""

    def contents(self, file: IO[bytes]) -> FileContents:
        """See `FormatReader.contents`."""
        source = _open_orc(file)
        return FileContents((source.nrows,), source.schema)

    def rows(
        self, file: IO[bytes], path: str, groups: Sequence[int], span: range, columns: pa.Schema
    ) -> Rows:
        """See `FormatReader.rows`."""
        del path, groups, span
        source, seen = _open_orc(file), 0
        for stripe in range(source.nstripes):
            # Without a column, a stripe has no rows.
            result = source.read_stripe(stripe, columns=columns.names or source.schema.names[:1])
            for at in range(0, result.num_rows, _BATCH_ROWS):
                batch = result.slice(at, _BATCH_ROWS)
                yield 0, seen, batch
                seen += batch.num_rows


class AvroReader(FormatReader):
    """A row of a batch is a block of the file, which Spark decodes. Groups are runs of blocks."""

    def contents(self, file: IO[bytes]) -> FileContents:
        """See `FormatReader.contents`."""
        schema = avro_file.read_header(file).schema
        file.seek(0)
        counts = avro_file.count_rows(file)
        groups = tuple(sum(counts[at : at + _BLOCKS]) for at in range(0, len(counts), _BLOCKS))
        return FileContents(groups, record_columns(parse_record(schema)))

    def rows(
        self, file: IO[bytes], path: str, groups: Sequence[int], span: range, columns: pa.Schema
    ) -> Rows:
        """See `FormatReader.rows`."""
        del path, columns
        seen, size, number = _starts(groups)[span.start], 0, 0
        first: list[int] = []
        payloads: list[bytes] = []
        blocks = range(span.start * _BLOCKS, span.stop * _BLOCKS)
        for number, count, payload in avro_file.read_blocks(file, blocks):
            first.append(seen)
            payloads.append(payload)
            seen, size = seen + count, size + len(payload)
            if size > _BATCH_BYTES or (number + 1) % _BLOCKS == 0:
                yield number // _BLOCKS, pa.array(first, pa.int64()), _block_batch(payloads)
                first, payloads, size = [], [], 0
        if payloads:
            yield number // _BLOCKS, pa.array(first, pa.int64()), _block_batch(payloads)


class LineReader(FormatReader):
    """Lines of a text file as bytes. An empty line is a row."""

    has_counts = False

    def contents(self, file: IO[bytes]) -> FileContents:
        """Return the one column of text files."""
        del file
        return FileContents(None, pa.schema([pa.field(TEXT_COLUMN, pa.string())]))

    def rows(
        self, file: IO[bytes], path: str, groups: Sequence[int], span: range, columns: pa.Schema
    ) -> Rows:
        """See `FormatReader.rows`."""
        del groups, span, columns
        seen = 0
        for lines in read_lines(open_plain(file, path)):
            yield 0, seen, pa.record_batch([lines], [LINE])
            seen += len(lines)


class CsvReader(FormatReader):
    """Records of a csv file as text, or lines of a json file as bytes."""

    has_columns = has_counts = False

    def __init__(self, options: TextOptions, *, of_lines: bool = False) -> None:
        self._options = options
        self._of_lines = of_lines

    def contents(self, file: IO[bytes]) -> FileContents:
        """Return no columns: the file has only text."""
        del file
        return FileContents(None, pa.schema([]))

    def rows(
        self, file: IO[bytes], path: str, groups: Sequence[int], span: range, columns: pa.Schema
    ) -> Rows:
        """See `FormatReader.rows`."""
        del groups, span
        from pyarrow import csv

        stream = open_plain(file, path)
        reading, parsing, nulls = self._settings()
        kinds = {field.name: field.type for field in columns}
        converting = csv.ConvertOptions(
            column_types=kinds, include_columns=list(kinds), check_utf8=True, **nulls
        )
        seen = 0
        with csv.open_csv(stream, reading, parsing, converting) as reader:
            for batch in reader:
                yield 0, seen, batch
                seen += batch.num_rows

    def _settings(self) -> tuple[Any, Any, Mapping[str, Any]]:
        from pyarrow import csv

        if self._of_lines:
            reading = csv.ReadOptions(use_threads=False, block_size=_CHUNK_BYTES, column_names=[LINE])
            parsing = csv.ParseOptions(
                delimiter=_NO_JSON, quote_char=False, double_quote=False, ignore_empty_lines=False
            )
            return reading, parsing, {"null_values": []}
        options = self._options
        names = None if options.header else list(options.names)
        reading = csv.ReadOptions(use_threads=False, block_size=_CHUNK_BYTES, column_names=names)
        parsing = csv.ParseOptions(delimiter=options.delimiter, newlines_in_values=True)
        nulls = {
            "null_values": [options.null_value],
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": False,
        }
        return reading, parsing, nulls


def format_reader(kind: str, options: TextOptions | None = None) -> FormatReader:
    """Return the reader of a format. `options` are those of csv."""
    if kind in ("csv", "json"):
        return CsvReader(options or TextOptions(), of_lines=kind == "json")
    return _READERS[kind]


_READERS: Mapping[str, FormatReader] = {
    "parquet": ParquetReader(),
    "orc": OrcReader(),
    "avro": AvroReader(),
    "text": LineReader(),
}


def open_parquet(file: Any) -> Any:
    """Open a file as parquet. 96-bit timestamps are read in microseconds, Spark's precision."""
    from pyarrow import parquet as pq

    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


def _open_orc(file: Any) -> Any:
    from pyarrow import orc

    return orc.ORCFile(file)


def open_plain(file: IO[bytes], path: str) -> Any:
    """Return the text of a file as a stream of Arrow. The name tells the compression."""
    codec = next((name for suffix, name in _CODECS.items() if path.endswith(suffix)), None)
    plain = pa.PythonFile(file, mode="r")
    return pa.CompressedInputStream(plain, codec) if codec else plain


def count_lines(file: IO[bytes], path: str) -> int:
    """Return how many records a text file has at most: the ends of lines, and a last line without one."""
    stream, result, last = open_plain(file, path), 0, b""
    while chunk := stream.read(_CHUNK_BYTES):
        returns, feeds, pairs = (chunk.count(end) for end in (b"\r", b"\n", b"\r\n"))
        result += returns + feeds - pairs - (last == b"\r" and chunk[:1] == b"\n")
        last = chunk[-1:]
    return result + (last not in (b"", b"\r", b"\n"))


def read_lines(stream: Any) -> Iterator[pa.Array]:
    """Yield the lines of a stream as binary arrays, without their ends (a line feed, or with a return)."""
    rest = b""
    while chunk := stream.read(_CHUNK_BYTES):
        text, end, rest = (rest + chunk).rpartition(b"\n")
        if end:
            yield _split(text)
    if rest:
        yield _split(rest)


def _split(text: bytes) -> pa.Array:
    lines = pc.split_pattern(pa.array([text], pa.binary()), b"\n").flatten()
    has_return = pc.ends_with(lines, pattern=b"\r")
    return (
        pc.if_else(has_return, pc.binary_slice(lines, 0, -1), lines) if pc.any(has_return).as_py() else lines
    )


def _starts(groups: Sequence[int]) -> list[int]:
    """Return the number of the first row of each group."""
    return [0, *accumulate(groups)]


def _block_batch(payloads: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(payloads, pa.binary())], [BLOCK])

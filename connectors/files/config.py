"""The `file` source and sink of a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PositiveInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from headrace.pipeline.model.base import PARALLELISM
from headrace.pipeline.model.capabilities import SourceCapabilities
from headrace.pipeline.model.connectors import stream_entries
from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.sinks import SinkConfig
from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Columns

POLL_INTERVAL, MIN_FILE_AGE = timedelta(seconds=5), timedelta(seconds=2)
MAX_ERROR_RATE = 0.1
_MODE = {"type": "mode"}
_FORMATS = {"ndjson": "json", "jsonl": "json"}


def _format(value: object) -> object:
    return _FORMATS.get(value, value) if isinstance(value, str) else value


_MODE_SCHEMA = {
    "anyOf": [
        {"enum": ["continuous", "bounded"]},
        {"type": "object", "properties": {"type": {"enum": ["continuous", "bounded"]}}},
    ]
}
"""`_unfold_mode` takes an object too."""
FileFormat = Annotated[Literal["parquet", "orc", "avro", "csv", "json", "text"], BeforeValidator(_format)]
FileSinkFormat = Annotated[Literal["parquet", "csv", "json"], BeforeValidator(_format)]


class FileSourceConfig(SourceConfig):
    """Files of one format: those that are there at the start, or new ones as they come."""

    identity_keys: ClassVar[frozenset[str]] = frozenset(
        {"path", "format", "mode", "schema", "filter", "header", "delimiter", "null_value"}
    )
    metric_labels: ClassVar[tuple[str, ...]] = ("path",)
    phase_constants: ClassVar[Mapping[str, Any]] = {
        "mode": "bounded",
        "poll_interval": POLL_INTERVAL,
        "min_file_age": MIN_FILE_AGE,
        "on_error": "fail",
        "max_error_rate": MAX_ERROR_RATE,
        "parallelism": None,
    }
    error_columns: ClassVar[Mapping[str, str]] = {
        "__file": "string",
        "__row": "int64",
        "__value": "binary",
    }
    error_key: ClassVar[tuple[str, ...]] = ("__file", "__row")

    type: Literal["file"] = "file"
    path: str = Field(
        description="A file, a folder that is read with all below it, or a pattern such as /data/*.csv;"
        " local."
    )
    format: FileFormat = Field(
        description="parquet, orc, avro, csv, json with one object per line (also ndjson, jsonl), or text: a"
        " column `value` with the line."
    )
    mode: Annotated[Literal["continuous", "bounded"], WithJsonSchema(_MODE_SCHEMA)] = Field(
        default="continuous",
        description="`continuous`: all files, and new ones as they come. `bounded`: the files that are there"
        " at the first start.",
    )
    poll_interval: Duration = Field(
        default=POLL_INTERVAL, description="continuous: time between two listings of the files."
    )
    min_file_age: Duration = Field(
        default=MIN_FILE_AGE,
        description="continuous: a csv, json, text or avro file is read once nothing was written to it for"
        " this long. Other formats, and buckets, show whether a file is complete.",
    )
    schema_: dict[str, str] = Field(
        default_factory=dict,
        alias="schema",
        description="Column names and types; needed for csv and json, a check for files with columns.",
    )
    columns: Columns = Field(default=(), description="Columns to read. Defaults to all.")
    filter: str | None = Field(default=None, description="A predicate in Spark SQL.")
    header: bool = Field(
        default=True, description="csv: whether the first line of each file names its columns."
    )
    delimiter: str = Field(default=",", description="csv: one character.")
    null_value: str = Field(default="", description="csv: the unquoted field that means null.")
    on_error: Literal["fail", "dead_letter"] = Field(
        default="fail",
        description="continuous csv, json and text: what happens with a row that cannot be decoded: it fails"
        " the epoch, or it goes to the sinks with `from: <source>.errors`.",
    )
    max_error_rate: float = Field(
        default=MAX_ERROR_RATE,
        ge=0,
        le=1,
        description="With `on_error: dead_letter`: the largest fraction of rejected rows in an epoch of at"
        " least 100 rows. More fail the epoch before anything is written.",
    )
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    @property
    def capabilities(self) -> SourceCapabilities:
        """See `SourceConfig.capabilities`."""
        is_stream = self.mode == "continuous"
        return stream_entries()["file"].capabilities if is_stream else super().capabilities

    @model_validator(mode="before")
    @classmethod
    def _unfold_mode(cls, values: Any) -> Any:
        """Take `mode: {type: continuous, poll_interval: 5s}` as keys of the node."""
        mode = values.get("mode") if isinstance(values, dict) else None
        if not isinstance(mode, dict):
            return values
        if unknown := sorted(mode.keys() - {"type", "poll_interval", "min_file_age"}, key=str):
            msg = f"`mode` has no key `{unknown[0]}`; it has type, poll_interval and min_file_age"
            raise ValueError(msg)
        return values | {"mode": "continuous"} | {_MODE.get(key, key): value for key, value in mode.items()}


class FileSinkConfig(SinkConfig):
    """A folder of files, created if missing: one folder for each epoch, which appears in one step."""

    target_keys: ClassVar[tuple[str, ...]] = ("path",)
    upserts_by_key: ClassVar[bool] = True
    metric_labels: ClassVar[tuple[str, ...]] = ("path",)

    type: Literal["file"] = "file"
    path: str = Field(description="The folder, which this sink owns; local.")
    format: FileSinkFormat = Field(
        description="parquet, csv, or json with one object per line (also ndjson, jsonl)."
    )
    partition_by: Columns = Field(
        default=(),
        description="Columns whose values become folders (`day=2025-01-31`) and are left out of the files:"
        " strings, integers, dates.",
    )
    compression: Literal["none", "snappy", "zstd", "gzip"] | None = Field(
        default=None,
        description="Compression of the files. parquet: defaults to `zstd`. csv and json: `none`, the"
        " default, or `gzip`.",
    )
    header: bool = Field(
        default=True, description="csv: whether the first line of each file names its columns."
    )
    delimiter: str = Field(default=",", description="csv: one character.")

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        scheme, separator, _ = value.partition("://")
        if separator and scheme != "file":
            msg = f"must be a local folder, `{scheme}://` is not supported"
            raise ValueError(msg)
        return value

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, value: str) -> str:
        if len(value.encode()) != 1 or value in '"\r\n':
            msg = "must be one ASCII character, and no quote or line break"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _check_compression(self) -> Self:
        if self.format != "parquet" and self.compression not in (None, "none", "gzip"):
            msg = (
                f"`compression` of {self.format} files must be `none` or `gzip`, and is `{self.compression}`"
            )
            raise ValueError(msg)
        return self

    @property
    def codec(self) -> str:
        """The compression of the files."""
        return self.compression or ("zstd" if self.format == "parquet" else "none")

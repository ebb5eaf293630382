"""The `file` source and sink of a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, field_validator, model_validator

from headrace.pipeline.compat import streamling
from headrace.pipeline.model.base import PARALLELISM
from headrace.pipeline.model.sinks import SinkConfig
from headrace.pipeline.model.sources import SourceConfig
from headrace.pipeline.model.strict import Columns

_FORMATS = {"ndjson": "json", "jsonl": "json"}


def _format(value: object) -> object:
    return _FORMATS.get(value, value) if isinstance(value, str) else value


def _mode(value: object) -> object:
    """Accept `bounded` and `{type: bounded}`. Raise ValueError for other modes."""
    if not isinstance(value, dict) or value == {"type": "bounded"}:
        return "bounded" if isinstance(value, dict) else value
    instead = streamling.VALUES["mode", "continuous"]
    msg = f"only `bounded` is available yet; {instead[:1].lower()}{instead[1:].rstrip('.')}"
    raise ValueError(msg)


FileFormat = Annotated[Literal["parquet", "csv", "json"], BeforeValidator(_format)]


class FileSourceConfig(SourceConfig):
    """Files of one format, read once: pinned by size and modification time, split by file or row group."""

    identity_keys: ClassVar[frozenset[str]] = frozenset(
        {"path", "format", "mode", "schema", "filter", "header", "delimiter", "null_value"}
    )
    metric_labels: ClassVar[tuple[str, ...]] = ("path",)
    phase_constants: ClassVar[Mapping[str, Any]] = {"mode": "bounded", "parallelism": None}

    type: Literal["file"] = "file"
    path: str = Field(
        description="A file, a folder that is read with all below it, or a pattern such as /data/*.csv;"
        " local."
    )
    format: FileFormat = Field(
        description="parquet, csv, or json with one object per line (also ndjson, jsonl)."
    )
    mode: Annotated[Literal["bounded"], BeforeValidator(_mode)] = Field(
        description="`bounded`: the files that are there at the first start. Files that come later are not"
        " watched for yet."
    )
    schema_: dict[str, str] = Field(
        default_factory=dict,
        alias="schema",
        description="Column names and types; needed for csv and json, a check for parquet.",
    )
    columns: Columns = Field(default=(), description="Columns to read. Defaults to all.")
    filter: str | None = Field(default=None, description="A predicate in Spark SQL.")
    header: bool = Field(
        default=True, description="csv: whether the first line of each file names its columns."
    )
    delimiter: str = Field(default=",", description="csv: one character.")
    null_value: str = Field(default="", description="csv: the unquoted field that means null.")
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)


class FileSinkConfig(SinkConfig):
    """A folder of files, created if missing: one folder for each epoch, which appears in one step."""

    target_keys: ClassVar[tuple[str, ...]] = ("path",)
    upserts_by_key: ClassVar[bool] = True
    metric_labels: ClassVar[tuple[str, ...]] = ("path",)

    type: Literal["file"] = "file"
    path: str = Field(description="The folder, which this sink owns; local.")
    format: FileFormat = Field(
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
        scheme, found, _ = value.partition("://")
        if found and scheme != "file":
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

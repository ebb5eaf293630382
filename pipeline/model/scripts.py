"""Transforms that are programs: a script in the file, or a function of the user's own package."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, WithJsonSchema

from headrace.pipeline.model.base import FLUSH, PARALLELISM, RejectingConfig
from headrace.pipeline.model.run_options import Duration, parse_size

_LANGUAGES = {"js": "javascript", "ts": "typescript"}
_FUNCTION = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
_LEAST, _MOST = 8 << 20, 2 << 30


def _language(value: object) -> object:
    return _LANGUAGES.get(value.lower(), value.lower()) if isinstance(value, str) else value


def _bytes(value: object) -> object:
    """Return a number of bytes, from a number or a string with a unit, between 8MiB and 2GiB."""
    size = parse_size(value)
    if not _LEAST <= size <= _MOST:
        msg = f"`{value}` is not between 8MiB and 2GiB"
        raise ValueError(msg)
    return size


Bytes = Annotated[int, BeforeValidator(_bytes), WithJsonSchema({"type": ["integer", "string"]})]


def _function(value: str) -> str:
    if not re.match(_FUNCTION, value):
        msg = f"`{value}` names no function; write it as `package.module:name`"
        raise ValueError(msg)
    return value


FunctionName = Annotated[
    str, AfterValidator(_function), WithJsonSchema({"type": "string", "pattern": _FUNCTION})
]


class ScriptTransformConfig(RejectingConfig):
    """A JavaScript or TypeScript function, called per row in a sandbox without files, network or clock."""

    type: Literal["script"] = "script"
    from_: str = Field(alias="from", description="The node whose rows it gets.")
    language: Annotated[Literal["javascript", "typescript"], BeforeValidator(_language)] = Field(
        description="`javascript` (`js`) or `typescript` (`ts`)."
    )
    script: str = Field(
        description="The program. It defines `process(input)` or `invoke(data)`, or is one function of any"
        " name, which returns a row, an array"
        " of rows, or null for none."
    )
    schema_: dict[str, str] | None = Field(
        default=None,
        alias="schema",
        description="Columns of the result and their types. Defaults to those of `from`.",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=60), description="Processor time that one call may take."
    )
    memory_limit: Bytes = Field(
        default=128 << 20,
        description="Memory of the script in each Spark task, 8MiB to 2GiB, in bytes or with a unit."
        " Defaults to 128MiB. Example: `64MiB`.",
    )
    deterministic: bool = Field(
        default=True,
        description="The same row gives the same result whenever it is processed: `Date` is the time of the"
        " epoch, and Math.random is"
        " refused. `false` gives the real ones, and the rows are staged before any sink sees them.",
    )
    batch_size: PositiveInt = Field(
        default=4096, description="Rows that are handed to the script's process at a time."
    )
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    def inputs(self, node: str) -> tuple[str, ...]:
        """Return the node that the transform reads."""
        del node
        return (self.from_,)


class PythonTransformConfig(RejectingConfig):
    """A function of your own Python package over Arrow batches, in Spark's workers.

    Trusted only by the settings.
    """

    type: Literal["python"] = "python"
    from_: str = Field(alias="from", description="The node whose rows it gets.")
    function: FunctionName = Field(
        description="`package.module:name`. It takes a pyarrow RecordBatch, and the options where there are"
        " any, and returns one, or a Table."
    )
    schema_: dict[str, str] | None = Field(
        default=None,
        alias="schema",
        description="Columns of the result and their types. Defaults to those of `from`.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for the function.")
    deterministic: bool = Field(
        default=False,
        description="`true` promises the same rows for the same input whenever it runs. Without it they are"
        " staged before any sink sees them.",
    )
    batch_size: PositiveInt | None = Field(
        default=None, description="Maximum number of rows per call. Defaults to Spark's batches."
    )
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)
    parallelism: PositiveInt | None = Field(default=None, description=PARALLELISM)

    def inputs(self, node: str) -> tuple[str, ...]:
        """Return the node that the transform reads."""
        del node
        return (self.from_,)

"""The handler transform of a pipeline file: sends rows to a service over HTTP, and outputs its responses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from headrace.pipeline.errors import SchemaError, UserError
from headrace.pipeline.model.base import FLUSH
from headrace.pipeline.model.http import RequestConfig, find_request_errors
from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.strict import Strict
from headrace.pipeline.types.arrow import parse_type


def _override(value: object) -> object:
    """Return the columns with Arrow's type names replaced by the file's."""
    return {column: _ours(kind) for column, kind in value.items()} if isinstance(value, dict) else value


def _ours(kind: object) -> object:
    if not isinstance(kind, str):
        return kind
    plain = re.sub(r"\s+", "", kind.lower())
    if plain in ("largeutf8", "utf8view"):
        return "utf8"
    if plain in ("largebinary", "binaryview"):
        return "binary"
    zoned = re.fullmatch(
        r"timestamp\((?:second|millisecond|microsecond|nanosecond),(?:some\(.+\)|\".+\")\)", plain
    )
    return "timestamp" if zoned else kind


class CircuitBreakerConfig(Strict):
    """When a task stops sending to a service that fails."""

    failures: NonNegativeInt = Field(
        default=10,
        description="Failures in a row after which a task sends one probe at a time, each after"
        " `reset_after`; 0: never.",
    )
    reset_after: Duration = Field(
        default=timedelta(seconds=10), description="How long a task waits before such a probe."
    )


class HandlerTransformConfig(RequestConfig):
    """Rows are sent to a service over HTTP as JSON; the rows of its answers go on, and are staged first."""

    type: Literal["handler"] = "handler"
    from_: str = Field(alias="from", description="The node whose rows are sent.")
    schema_override: Annotated[dict[str, str | None], BeforeValidator(_override)] = Field(
        default_factory=dict,
        description="Columns of the answer that differ from those of `from`: `column: type`, or `column:"
        " null` for none.",
    )
    batch_size: PositiveInt = Field(default=1000, description="Rows in one request, at most.")
    concurrency: PositiveInt = Field(default=4, description="Requests that one task has under way at a time.")
    parallelism: PositiveInt = Field(
        default=4,
        description="Tasks that send, at most; a small epoch takes fewer. Another number cuts other"
        " requests.",
    )
    circuit_breaker: CircuitBreakerConfig = Field(
        default_factory=CircuitBreakerConfig, description="When a task stops sending to a service that fails."
    )
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)

    def inputs(self, node: str) -> tuple[str, ...]:
        """Return the node that the transform reads."""
        del node
        return (self.from_,)


def handler_problems(node: HandlerTransformConfig) -> Iterator[tuple[tuple[str, ...], UserError]]:
    """Yield the invalid values of a handler, each with the path of its keys."""
    yield from find_request_errors(node)
    for column, kind in node.schema_override.items():
        if column in ("_gs_op", "_gs_pos"):
            yield (
                ("schema_override", column),
                UserError(f"`{column}` cannot be overridden", hint="Every row has it as it is."),
            )
        elif kind is not None and (problem := _type_problem(kind)):
            problem_text, _, supported = problem.message.partition("supported: ")
            msg = f"column `{column}`: {problem_text.replace(chr(39), '`').rstrip('; ')}"
            yield (
                ("schema_override", column),
                SchemaError(msg, hint=f"Supported: {supported}." if supported else ""),
            )


def _type_problem(kind: str) -> SchemaError | None:
    try:
        parse_type(kind)
    except SchemaError as error:
        return error
    return None


def override_types(node: Any) -> dict[str, Any]:
    """Return the Arrow types of `schema_override`, or None for a removed column."""
    return {
        column: None if kind is None else parse_type(kind) for column, kind in node.schema_override.items()
    }

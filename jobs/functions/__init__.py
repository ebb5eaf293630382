"""Functions of SQL that are no SQL: Arrow arrays in, an Arrow array out.

A session knows those that its statements use.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.connectors.row_errors import task_error
from headrace.pipeline.errors import SchemaError, UserError
from headrace.pipeline.functions.registry import ARROW, Function, functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CALLED = re.compile(rf"\b{ARROW}(\w+)\s*\(", re.IGNORECASE)
_NEEDS = "pip install 'headrace[transforms]'"


def provide(spark: SparkSession, text: str, node: str = "") -> None:
    """Register the Arrow functions that an expanded statement calls.

    Raises UserError if a package for one is missing.
    """
    for name in dict.fromkeys(result.lower() for result in _CALLED.findall(text)):
        if function := functions().get(name):
            _register(spark, function, node)


def _register(spark: SparkSession, function: Function, node: str) -> None:
    from pyspark.sql.functions import arrow_udf

    module, _, name = function.arrow.partition(":")
    try:
        result = getattr(import_module(module), name)
    except ImportError as error:
        msg = f"function `{function.name}` needs the package `{error.name}`"
        raise UserError(msg, hint=_NEEDS, node=node) from error
    spark.udf.register(
        ARROW + function.name,
        cast("Any", arrow_udf)(
            with_argument_errors(function.name, function.signature, result, node), function.returns
        ),
    )


def with_argument_errors(
    name: str, signature: str, function: Callable[..., pa.Array], node: str = ""
) -> Callable[..., pa.Array]:
    """Wrap a function to raise SchemaError for argument types that only Spark's analyzer accepts."""

    def run(*arrays: pa.Array) -> pa.Array:
        try:
            return function(*arrays)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            msg = (
                f"`{name}` cannot take {', '.join(str(array.type) for array in arrays)}:"
                f" {str(error).splitlines()[0]}"
            )
            hint = f"It is called as {signature}; cast what is given to it, such as CAST(x AS STRING)."
            raise task_error(SchemaError(msg, hint=hint, node=node)) from error

    return run

"""Functions of SQL that are no SQL: Arrow arrays in, an Arrow array out. A session knows those that its statements use."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from headrace.pipeline.errors import UserError
from headrace.pipeline.functions.registry import ARROW, Function, functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CALLED = re.compile(rf"\b{ARROW}(\w+)\s*\(", re.IGNORECASE)
_NEEDS = "pip install 'headrace[transforms]'"


def provide(spark: SparkSession, text: str, node: str = "") -> None:
    """Registers the Arrow functions that an expanded statement calls. Raises UserError where a package for one is missing."""
    for name in dict.fromkeys(found.lower() for found in _CALLED.findall(text)):
        if function := functions().get(name):
            _register(spark, function, node)


def _register(spark: SparkSession, function: Function, node: str) -> None:
    from pyspark.sql.functions import arrow_udf

    module, _, name = function.arrow.partition(":")
    try:
        found = getattr(import_module(module), name)
    except ImportError as error:
        msg = f"function `{function.name}` needs the package `{error.name}`"
        raise UserError(msg, hint=_NEEDS, node=node) from error
    spark.udf.register(ARROW + function.name, cast("Any", arrow_udf)(found, function.returns))

"""Functions of plugins, registered in a Spark session by their names in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from headrace.connectors.plugins.pickling import PickledPlugin, contract_error
from headrace.connectors.row_errors import task_error
from headrace.connectors.spark_types import spark_schema
from headrace.pipeline.errors import HeadraceError, PluginError, SchemaError
from headrace.pipeline.plugins.api import Options, Plugin, PluginType, sql_name
from headrace.pipeline.plugins.discovery import InstalledPlugin, functions, load
from headrace.pipeline.plugins.preprocessors import options_of
from headrace.pipeline.plugins.runtime import PluginContext, plugin_error
from headrace.pipeline.sql import statements
from headrace.pipeline.types.arrow import parse_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def find_called_functions(texts: Iterable[str]) -> dict[str, InstalledPlugin]:
    """Return the function plugins that these statements may call, by their names in SQL.

    Packages are searched only for unknown names.
    """
    unknown = {call.name.lower() for text in texts for call in statements.parse(text).find_all(exp.Anonymous)}
    return {sql_name(result.id): result for result in functions(frozenset(unknown))} if unknown else {}


def register_functions(spark: SparkSession, texts: Iterable[str]) -> None:
    """Register the functions of plugins in a session.

    Raises PluginError for a function that cannot be loaded, or sent to workers.
    """
    from pyspark.sql import functions as F  # noqa: N812

    arrow_udf: Any = F.arrow_udf  # its stubs know no function of several arrays
    for name, result in find_called_functions(texts).items():
        plugin = load(result)
        if plugin.kind != PluginType.FUNCTION:
            continue
        returns = _type(result, plugin.returns)
        arguments = [_type(result, argument) for argument in plugin.arguments]
        (wanted,) = spark_schema(pa.schema([pa.field("x", returns)])).fields
        work = _work(PickledPlugin(_function(result, plugin), result, ""), name, arguments, returns)
        spark.udf.register(name, arrow_udf(work, wanted.dataType))


def _function(installed_plugin: InstalledPlugin, plugin: Plugin) -> Callable[..., Any]:
    """Return the function of a plugin. A plugin with options creates it from its context."""
    if plugin.options is Options:
        return plugin.make
    function = plugin.make(
        PluginContext(plugin.id, options_of(installed_plugin, plugin, {}, "<name>"), installed_plugin)
    )
    if not callable(function):
        raise contract_error(installed_plugin, f"it made {type(function).__name__}, and no function", "")
    return function


def _type(installed_plugin: InstalledPlugin, text: str) -> pa.DataType:
    try:
        return parse_type(text)
    except SchemaError as error:
        raise contract_error(
            installed_plugin, f"it declares the type `{text}`: {error.message}", ""
        ) from None


def _work(
    shipped: PickledPlugin, name: str, arguments: Sequence[pa.DataType], returns: pa.DataType
) -> Callable[..., pa.Array]:
    wanted = list(arguments)

    def run(*arrays: pa.Array) -> pa.Array:
        if wanted and len(arrays) != len(wanted):
            msg = f"the function `{name}` takes {len(wanted)} arguments, and got {len(arrays)}"
            raise task_error(PluginError(msg))
        try:
            arguments_of_batch = (
                [array.cast(kind) for array, kind in zip(arrays, wanted, strict=True)]
                if wanted
                else list(arrays)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            msg = f"the function `{name}` takes {', '.join(map(str, wanted))}: {error}"
            raise task_error(PluginError(msg, hint="Cast the argument in the SQL.")) from error
        try:
            result = shipped.open()(*arguments_of_batch)
        except HeadraceError as error:
            raise task_error(error) from error
        except Exception as error:
            raise task_error(plugin_error(error, shipped.found, doing=f"the function `{name}`")) from error
        return _check_result(shipped, name, result, len(arrays[0]), returns)

    return run


def _check_result(shipped: PickledPlugin, name: str, value: Any, rows: int, returns: pa.DataType) -> pa.Array:
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if not isinstance(value, pa.Array):
        shipped.refuse(f"the function `{name}` returned {type(value).__name__}, and not pyarrow.Array")
    if len(value) != rows:
        shipped.refuse(f"the function `{name}` returned {len(value)} values for {rows} rows")
    if value.type != returns:
        shipped.refuse(f"the function `{name}` returned {value.type}, and declares {returns}")
    return value

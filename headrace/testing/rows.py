"""The contracts of transforms, functions, preprocessors and side outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors.spark_types import spark_schema
from headrace.jobs.functions.plugins import register_functions
from headrace.jobs.sources.pipeline_source import SourceBatch
from headrace.jobs.sources.side_outputs import SideOutputs
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.transforms.base import TransformContext
from headrace.jobs.transforms.registry import open_transform
from headrace.pipeline.config.plugins import PluginSettings
from headrace.pipeline.model.plugins import PluginTransformConfig
from headrace.pipeline.plugins.api import Plugin, sql_name
from headrace.pipeline.plugins.discovery import temporary_plugin
from headrace.pipeline.plugins.preprocessors import PreprocessedText, rewrite
from headrace.testing.harness import (
    Row,
    collect_rows,
    create_frame,
    create_plan,
    drop_system_columns,
    row_position,
    session,
    temporary_settings,
)


def check_transform(
    plugin: Plugin, options: Mapping[str, Any], schema: pa.Schema, rows: Sequence[Mapping[str, Any]]
) -> list[Row]:
    """Check the contract of a transform over rows that are all inserts.

    Return its rows in order, without the system columns.
    """
    with temporary_plugin(plugin), temporary_settings() as settings:
        node = PluginTransformConfig.model_validate({"type": plugin.id, "from": "src", **options})
        spark = session()

        def out(input_rows: Sequence[Mapping[str, Any]], parts: int) -> list[Row]:
            transform = open_transform(TransformContext("transform", node, settings, schema, spark))
            output = transform.rows(
                create_frame(schema, input_rows, "i" * len(input_rows)).repartition(parts), create_plan(1)
            )
            announced = transform.rows(create_frame(schema, [], ""), None).schema
            assert output.schema == announced, "without a plan other columns are announced than come with one"
            return collect_rows(output)

        result = out(rows, 1)
        if plugin.deterministic:
            assert out(rows, 4) == result, (
                "the rows depend on which of them come together in a batch, or are others a second time"
            )
        assert not out([], 1), "rows come out where none go in"
        _check_positions_unique(result)
        return drop_system_columns(result)


def _check_positions_unique(rows: list[Row]) -> None:
    assert len({row_position(row) for row in rows}) == len(rows), (
        "two rows have the same `_gs_pos`; several rows of one are made by fan_out"
    )


def check_function(plugin: Plugin, *arguments: pa.Array) -> list[Any]:
    """Return what SQL gets from a function for these arrays.

    A value must not depend on the other rows of its batch, so other batches must give the same values.
    """
    names = [f"a{at}" for at in range(len(arguments))]
    call = f"{sql_name(plugin.id)}({', '.join(names)})"
    with temporary_plugin(plugin):
        spark = session().newSession()
        register_functions(spark, [f"SELECT {call} AS x FROM given"])  # noqa: S608  names of our own
        table = pa.table([pa.array(range(len(arguments[0]))), *arguments], names=["n", *names])
        arguments_frame = spark.createDataFrame(table, spark_schema(table.schema))

        def out(parts: int) -> list[Any]:
            try:
                output_rows: list[Row] = (
                    arguments_frame.repartition(parts).selectExpr("n", f"{call} AS x").toArrow().to_pylist()
                )
            except Exception as error:
                raise as_headrace_error(error) from error
            return [row["x"] for row in sorted(output_rows, key=lambda row: row["n"])]

        result = out(1)
        assert out(4) == result, "a value depends on the rows that are computed with it"
        return result


def check_preprocessor(plugin: Plugin, options: Mapping[str, Any], text: str) -> str:
    """Return a preprocessor's result for a text. A second run on the same text must give the same result."""
    with temporary_plugin(plugin):
        result = rewrite(PreprocessedText(text), plugin.id, {plugin.id: options}, "<text>")
        assert (
            rewrite(PreprocessedText(text), plugin.id, {plugin.id: options}, "<text>").text == result.text
        ), "the same text comes out differently"
        return result.text


def check_side_output(
    plugin: Plugin,
    options: Mapping[str, Any],
    schema: pa.Schema,
    rows: Sequence[Mapping[str, Any]],
    source: str = "src",
) -> None:
    """Pass the rows as epochs 1 and 2. Epoch 2 comes again from a second object, as after a crash."""
    with temporary_plugin(plugin), temporary_settings() as result:
        plugin_settings = PluginSettings(
            side_output_ids=(plugin.id,), side_output_options={plugin.id: dict(options)}
        )
        side_output_settings = result.model_copy(update={"plugin": plugin_settings})
        for numbers in ((1, 2), (2,)):
            outputs = SideOutputs("contract", side_output_settings)
            for number in numbers:
                outputs.see(
                    create_plan(number),
                    {source: SourceBatch(create_frame(schema, rows, "i" * len(rows)), len(rows))},
                    lambda _, frame: frame,
                )
            outputs.close()

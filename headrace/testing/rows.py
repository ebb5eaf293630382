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
from headrace.testing.bench import Row, collected, frame, payload, place, plan, session, settings


def check_transform(plugin: Plugin, options: Mapping[str, Any], schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The contract of a transform, over rows that are all inserts. Returns what comes out, in order, without the hidden columns."""
    with temporary_plugin(plugin), settings() as found:
        node = PluginTransformConfig.model_validate({"type": plugin.id, "from": "src", **options})
        spark = session()

        def out(given: Sequence[Mapping[str, Any]], parts: int) -> list[Row]:
            transform = open_transform(TransformContext("transform", node, found, schema, spark))
            made = transform.rows(frame(schema, given, "i" * len(given)).repartition(parts), plan(1))
            announced = transform.rows(frame(schema, [], ""), None).schema
            assert made.schema == announced, "without a plan other columns are announced than come with one"
            return collected(made)

        came = out(rows, 1)
        if plugin.deterministic:
            assert out(rows, 4) == came, "the rows depend on which of them come together in a batch, or are others a second time"
        assert not out([], 1), "rows come out where none go in"
        _unique(came)
        return payload(came)


def _unique(rows: list[Row]) -> None:
    assert len({place(row) for row in rows}) == len(rows), "two rows have the same `_gs_pos`; several rows of one are made by fan_out"


def check_function(plugin: Plugin, *arguments: pa.Array) -> list[Any]:
    """What SQL gets from a function for these arrays, each value of its own call as well: they must not depend on each other."""
    names = [f"a{at}" for at in range(len(arguments))]
    call = f"{sql_name(plugin.id)}({', '.join(names)})"
    with temporary_plugin(plugin):
        spark = session().newSession()
        register_functions(spark, [f"SELECT {call} AS x FROM given"])  # noqa: S608  names of our own
        table = pa.table([pa.array(range(len(arguments[0]))), *arguments], names=["n", *names])
        given = spark.createDataFrame(table, spark_schema(table.schema))

        def out(parts: int) -> list[Any]:
            try:
                made: list[Row] = given.repartition(parts).selectExpr("n", f"{call} AS x").toArrow().to_pylist()
            except Exception as error:
                raise as_headrace_error(error) from error
            return [row["x"] for row in sorted(made, key=lambda row: row["n"])]

        found = out(1)
        assert out(4) == found, "a value depends on the rows that are computed with it"
        return found


def check_preprocessor(plugin: Plugin, options: Mapping[str, Any], text: str) -> str:
    """What a preprocessor makes of a text; the same again where it works on what it made."""
    with temporary_plugin(plugin):
        once = rewrite(PreprocessedText(text), plugin.id, {plugin.id: options}, "<text>")
        assert rewrite(PreprocessedText(text), plugin.id, {plugin.id: options}, "<text>").text == once.text, (
            "the same text comes out differently"
        )
        return once.text


def check_side_output(
    plugin: Plugin, options: Mapping[str, Any], schema: pa.Schema, rows: Sequence[Mapping[str, Any]], source: str = "src"
) -> None:
    """Shows the rows as epochs 1 and 2, the latter twice by two processes' objects, as after a crash."""
    with temporary_plugin(plugin), settings() as found:
        named = PluginSettings(side_output_ids=(plugin.id,), side_output_options={plugin.id: dict(options)})
        given = found.model_copy(update={"plugin": named})
        for numbers in ((1, 2), (2,)):
            outputs = SideOutputs("contract", given)
            for number in numbers:
                outputs.see(plan(number), {source: SourceBatch(frame(schema, rows, "i" * len(rows)), len(rows))})
            outputs.close()

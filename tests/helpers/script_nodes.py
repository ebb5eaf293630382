"""Runs scripts and functions over small tables without Spark, as a task does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.connectors.spark_types import POS_ARROW
from headrace.jobs.transforms.output_schema import final_schema, with_hidden
from headrace.jobs.transforms.script.executor import Script
from headrace.jobs.transforms.script.transform import script_of
from headrace.pipeline.errors import FileLocation
from headrace.pipeline.model.transforms import ScriptTransformConfig
from headrace.pipeline.sql.system_columns import OP, POS

Row = dict[str, Any]


def hidden(table: pa.Table, ops: str = "", sub: int = 0) -> pa.Table:
    """The table as rows travel: with an operation each (`i` if not given) and positions 0, 1, 2, ...

    Of partition 7.
    """
    count = table.num_rows
    pos = [{"source": 9, "part": 7, "off": index, "sub": sub} for index in range(count)]
    columns = [column.combine_chunks() for column in table.columns]
    plain = [column.storage if isinstance(column, pa.ExtensionArray) else column for column in columns]
    arrays = [*plain, pa.array(list(ops or "i" * count), pa.string()), pa.array(pos, POS_ARROW)]
    return pa.table(arrays, schema=with_hidden(table.schema))


def script(
    source: str,
    columns: pa.Schema,
    schema: dict[str, str] | None = None,
    at: FileLocation | None = None,
    **options: Any,
) -> Script:
    """A script node over these columns, not loaded yet."""
    keys = {
        "type": "script",
        "from": "s",
        "language": "js",
        "script": source,
        "timeout": "300ms",
        "memory_limit": "32MiB",
    }
    node = ScriptTransformConfig.model_validate(keys | options | ({"schema": schema} if schema else {}))
    payload = final_schema("n", node.schema_, columns)
    return script_of("n", node, columns, payload, key=("id",) if "id" in columns.names else (), text_at=at)


def run(
    source: str,
    table: pa.Table,
    schema: dict[str, str] | None = None,
    ops: str = "",
    sub: int = 0,
    **options: Any,
) -> pa.Table:
    """What becomes of the table, with the hidden columns."""
    made = script(source, table.schema, schema, **options)
    made.check()
    payload = final_schema("n", schema, table.schema)
    batches = hidden(table, ops, sub).to_batches()
    return pa.Table.from_batches(made.rows(batches, with_hidden(payload)), with_hidden(payload))


def rows(
    source: str, inputs: list[Row], schema: dict[str, str] | None = None, ops: str = "", **options: Any
) -> list[Row]:
    """The same for rows of Python, whose types Arrow finds; positions are left out."""
    columns = run(source, pa.Table.from_pylist(inputs), schema, ops, **options).drop_columns([POS])
    return columns.to_pylist()


def bare(source: str, inputs: list[Row], schema: dict[str, str] | None = None, **options: Any) -> list[Row]:
    """The payload alone."""
    return [
        {name: value for name, value in row.items() if name != OP}
        for row in rows(source, inputs, schema, **options)
    ]

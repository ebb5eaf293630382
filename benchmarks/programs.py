"""Rows through a script's process, without Spark: the speed of one core by processor time."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from benchmarks.kit import BenchmarkRunner, format_rate
from headrace.connectors.spark_types import POS_ARROW
from headrace.jobs.transforms.output_schema import with_hidden
from headrace.jobs.transforms.script.process import end_idle
from headrace.jobs.transforms.script.transform import script_of
from headrace.pipeline.model.transforms import ScriptTransformConfig

_MAX_ROWS = 1_000_000
CHANGE_ROWS = "function process(r) { r.name = r.name.toUpperCase(); r.amount *= 2; return r }"
CREATE_ROWS = "const process = (r) => ({...r, amount: r.amount * 2})"
DROP_ROWS = "const process = (r) => r.id % 10 ? null : r"


def script(runner: BenchmarkRunner, rows: int) -> list[str]:
    """Run four columns in batches of 10,000, as Spark passes them."""
    rows = min(rows, _MAX_ROWS)
    batches = _batches(rows)
    bare = _cpu_seconds(lambda: [_run_python(batch) for batch in batches])
    runner.add_figure(
        "script",
        f"bare: Python, a dictionary per row, {rows:,} rows of four columns",
        format_rate(rows, bare),
        "1.00",
    )
    for label, source in (
        ("two columns changed", CHANGE_ROWS),
        ("a new object per row", CREATE_ROWS),
        ("nine rows of ten dropped", DROP_ROWS),
    ):
        seconds = _cpu_seconds(lambda source=source: _run_script(source, batches))
        runner.add_figure("script", f"script, {label}", format_rate(rows, seconds), f"{bare / seconds:.2f}")
    return []


def _batches(rows: int) -> list[pa.RecordBatch]:
    batches = []
    for start in range(0, rows, 10_000):
        ids = range(start, min(start + 10_000, rows))
        columns = {
            "id": pa.array(ids),
            "at": pa.array([1_700_000_000_000_000 + n for n in ids], pa.timestamp("us", tz="UTC")),
            "name": pa.array([f"customer-{n % 100_003}" for n in ids]),
            "amount": pa.array([n / 7 for n in ids]),
        }
        system_columns = [
            pa.array(["i"] * len(ids)),
            pa.array([{"source": 0, "part": 0, "off": n, "sub": 0} for n in ids], POS_ARROW),
        ]
        table = pa.table(columns)
        batches.append(
            pa.RecordBatch.from_arrays(
                [*(column.chunk(0) for column in table.columns), *system_columns],
                schema=with_hidden(table.schema),
            )
        )
    return batches


def _run_python(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        row | {"name": row["name"].upper(), "amount": row["amount"] * 2} for row in batch.to_pylist()
    ]
    return pa.RecordBatch.from_pylist(rows, batch.schema)


def _run_script(source: str, batches: list[pa.RecordBatch]) -> None:
    schema = batches[0].schema
    payload = pa.schema([field for field in schema if not field.name.startswith("_gs_")])
    node = ScriptTransformConfig.model_validate(
        {"type": "script", "from": "s", "language": "js", "script": source}
    )
    for _ in script_of("script", node, payload, payload).rows(batches, schema):
        continue
    end_idle()


def _cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the seconds of processor time, including children that have ended."""

    def now() -> float:
        return sum(
            used.ru_utime + used.ru_stime
            for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )

    before = now()
    work()
    return now() - before

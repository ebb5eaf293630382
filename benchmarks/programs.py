"""Rows through a script's process, without Spark: what one core does, by processor time of all processes."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from benchmarks.kit import Bench, rate
from headrace.connectors.spark_types import POS_ARROW
from headrace.jobs.transforms.output_schema import with_hidden
from headrace.jobs.transforms.script.process import end_idle
from headrace.jobs.transforms.script.transform import script_of
from headrace.pipeline.model.transforms import ScriptTransformConfig

_MOST = 1_000_000
CHANGED = "function process(r) { r.name = r.name.toUpperCase(); r.amount *= 2; return r }"
MADE = "const process = (r) => ({...r, amount: r.amount * 2})"
DROPPED = "const process = (r) => r.id % 10 ? null : r"


def script(bench: Bench, rows: int) -> list[str]:
    """Four columns, in batches of 10,000 as Spark gives them."""
    rows = min(rows, _MOST)
    batches = _batches(rows)
    bare = _spent(lambda: [_in_python(batch) for batch in batches])
    bench.add("script", f"bare: Python, a dictionary per row, {rows:,} rows of four columns", rate(rows, bare), "1.00")
    for what, source in (("two columns changed", CHANGED), ("a new object per row", MADE), ("nine rows of ten dropped", DROPPED)):
        seconds = _spent(lambda source=source: _in_script(source, batches))
        bench.add("script", f"script, {what}", rate(rows, seconds), f"{bare / seconds:.2f}")
    return []


def _batches(rows: int) -> list[pa.RecordBatch]:
    found = []
    for start in range(0, rows, 10_000):
        ids = range(start, min(start + 10_000, rows))
        columns = {
            "id": pa.array(ids),
            "at": pa.array([1_700_000_000_000_000 + n for n in ids], pa.timestamp("us", tz="UTC")),
            "name": pa.array([f"customer-{n % 100_003}" for n in ids]),
            "amount": pa.array([n / 7 for n in ids]),
        }
        hidden = [pa.array(["i"] * len(ids)), pa.array([{"source": 0, "part": 0, "off": n, "sub": 0} for n in ids], POS_ARROW)]
        table = pa.table(columns)
        found.append(
            pa.RecordBatch.from_arrays([*(column.chunk(0) for column in table.columns), *hidden], schema=with_hidden(table.schema))
        )
    return found


def _in_python(batch: pa.RecordBatch) -> pa.RecordBatch:
    made: list[dict[str, Any]] = [row | {"name": row["name"].upper(), "amount": row["amount"] * 2} for row in batch.to_pylist()]
    return pa.RecordBatch.from_pylist(made, batch.schema)


def _in_script(source: str, batches: list[pa.RecordBatch]) -> None:
    schema = batches[0].schema
    payload = pa.schema([field for field in schema if not field.name.startswith("_gs_")])
    node = ScriptTransformConfig.model_validate({"type": "script", "from": "s", "language": "js", "script": source})
    for _ in script_of("script", node, payload, payload).rows(batches, schema):
        continue
    end_idle()


def _spent(act: Callable[[], Any]) -> float:
    """Seconds of processor time, of children too that have ended by then."""

    def now() -> float:
        return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))

    before = now()
    act()
    return now() - before

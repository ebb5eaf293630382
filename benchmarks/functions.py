"""Rows per second of each function on one core.

`python -m benchmarks.functions [ROWS] [TEXT]` prints a line of JSON per function whose name contains TEXT.

One cached table, one Spark task, a sink that discards rows. The figure is the processor time of the JVM,
including collector and compiler, and of its Python workers, so that other work on the machine has less
influence. A call and the bare reading of its columns alternate until the call gets no faster, because the JVM
compiles frequent code. The best pass of each counts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import psutil
import sqlglot
from sqlglot import exp

from headrace.jobs.functions import provide
from headrace.jobs.spark.session import jvm_process, start_session, stop_session
from headrace.pipeline.config.sections import SparkSettings
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.functions import DialectScope, functions, parsed_names
from headrace.pipeline.sql import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 250_000
ARROW_DIVISOR = 3
"""The divisor of the rows for Arrow functions. They need no compiler warm-up, and take longer."""
PASSES = 7
"""The largest number of passes."""
STEADY, IDLE = 0.97, 3
"""A pass is no faster if it takes more than `STEADY` of the best one.

`IDLE` such passes in a row are enough.
"""
GOALS = {"expression": 1.0, "Spark's own": 1.0, "Arrow": 0.15}
"""Millions of rows per second."""
MAX_RATE = 10
"""Millions of rows per second above which a call cannot be distinguished from reading its columns."""
COLUMNS = {
    "t": "concat('customer-', id % 1009, '@example.com')",
    "csv": "concat(id % 7, ',abc,', id, ',', id % 100)",
    "url": "concat('https://user@example.com:80/path/', id, '?q=', id % 10, '&r=x#top')",
    "doc": 'concat(\'{"id": \', id, \', "user": {"name": "n\', id % 97, \'", "tags": ["a", "b"]}, "amount":'
    " ', id % 1000, '.5}')",
    "word": "concat('\"a', id, '\"')",
    "a": "concat(1 + id, '000000000000000000')",
    "b": "CAST(1 + id % 100003 AS STRING)",
    "h": "concat('0x', sha2(CAST(id AS STRING), 256))",
    "y": "unhex(sha2(CAST(id AS STRING), 256))",
    "b58": "concat(substr(translate(md5(CAST(id AS STRING)), '0', 'Z'), 1, 32), 'Hx7')",
    "xs": "array(named_struct('k', 'a', 'n', id), named_struct('k', 'b', 'n', id + 1), named_struct('k',"
    " 'c', 'n', id + 2))",
    "ns": "array(id, id + 1, id + 2)",
    "m": "map('a', id, 'b', id + 1)",
    "objects": 'concat(\'[{"a": \', id, \', "b": "x"}, {"a": 2, "b": null}]\')',
    "n": "id",
}
CALLS = """
charlength(t), lowercase(t), uppercase(t), startswith(t, 'cust'), endswith(t, '.com'), locate('@', t), instr(t, 'e', -1, 2),
translate(t, 'abc', 'xyz'), split(csv, ','), split_index(csv, ',', 2), elt(2, t, csv), parse_url(url, 'HOST'), url_encode(url),
url_decode(url), similar(t, '^customer-[0-9]+@'), regexp_like(t, 'r-1'), regexp_extract(t, '([a-z]+)-([0-9]+)', 2),
regexp_extract_all(t, '([a-z]+)', 1), regexp_substr(t, '[0-9]+'), regexp_count(t, '[a-z]+'), regexp_instr(t, '@'), regexp_replace(t,
'[0-9]+', '#'), json_value(doc, '$.user.name'), json_query(doc, '$.user'), json_exists(doc, '$.user.tags[1]'), is_json(doc, 'OBJECT'),
try_parse_json(doc), json_object('id', n, 't', t), json_array(n, t), json_string(t), json_quote(t), json_unquote(word),
_gs_json_objects_to_clickhouse_tuples(objects, array('a', 'b')), array_filter(xs, 'k', 'b'), array_filter_first(xs, 'k', 'b'),
array_filter_in(xs, 'k', array('a', 'c')), array_struct_field(xs, 'n'), array_enumerate(ns), _gs_zip_arrays(ns, ns),
_gs_generate_series(n, n + 3), _gs_map_to_array_struct(m), _gs_split_string_to_array(csv, ','), _gs_hex_to_byte(h), _gs_byte_to_hex(y),
reverse_bytes32(y), to_hex(n), bin(n), unhex(b), _gs_keccak256(t), _gs_keccak256(h), _gs_xxhash(t), to_base58(y), _gs_from_base58(b58),
_gs_conv_base(b, '10', '36'), to_u256(a), to_u256(y), u256_add(a, b), u256_sub(a, b), u256_mul(a, b), u256_div(a, b), u256_mod(a, b),
i256_add(a, b), i256_mul(a, b), i256_div(a, b), i256_neg(a), u256_compare(a, b), i256_compare(a, b), u256_to_string(a), to_int64(b),
u256_add(u256_mul(a, b), b), uuid7()
"""
NEAREST = {
    "split_index": "split_part(csv, ',', 3)",
    "parse_url": "try_parse_url(url, 'HOST')",
    "url_decode": "try_url_decode(url)",
    "regexp_extract": "regexp_extract(t, '([a-z]+)-([0-9]+)', 2)",
    "json_value": "get_json_object(doc, '$.user.name')",
    "json_query": "get_json_object(doc, '$.user')",
    "json_exists": "get_json_object(doc, '$.user.tags[1]')",
    "is_json": "try_parse_json(doc) IS NOT NULL",
    "try_parse_json": "try_parse_json(doc) IS NOT NULL",
    "json_object": "to_json(named_struct('id', n, 't', t))",
    "json_array": "to_json(array(CAST(n AS STRING), t))",
    "json_string": "to_json(array(t))",
    "json_quote": "to_json(array(t))",
    "json_unquote": "get_json_object(word, '$')",
}
"""Spark's nearest function, without our additional rules. Its speed is the possible maximum."""


class _FunctionNames(statements.DIALECT):
    """Spark's syntax with the function names of the reference page."""

    class Parser(statements.DIALECT.Parser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            **statements.DIALECT.Parser.FUNCTIONS,
            **parsed_names("datafusion"),
        }


def measure(spark: SparkSession, rows: int, text: str = "") -> list[dict[str, Any]]:
    """Return the results of all calls.

    A result is the rate in millions of rows per second, the type, and the share of Spark's nearest function.
    """
    meter = _FunctionMeter(spark, rows)
    parsed = cast("exp.Select", sqlglot.parse_one(f"SELECT {CALLS}", dialect=_FunctionNames))
    results = []
    for call in parsed.selects:
        call_text = call.sql(dialect="spark").replace("HR_DF_", "").replace("hr_df_", "")
        name = call_text.partition("(")[0].lower()
        if text not in name:
            continue
        function = functions().get(name) or functions()[f"hr_df_{name}"]
        rate = meter.rate(call, arrow=bool(function.arrow))
        function_type = "Spark's own" if function.where is DialectScope.SPARK else function.kind
        results.append({"call": call_text, "kind": function_type, "rate": rate})
        if nearest := NEAREST.get(name):
            results[-1] |= {
                "nearest": nearest,
                "part": rate / meter.rate(sqlglot.parse_one(nearest, dialect=statements.DIALECT)),
            }
        print(json.dumps(results[-1]), flush=True)
    return results


class _FunctionMeter:
    """Two cached tables, and the time to read columns of them."""

    def __init__(self, spark: SparkSession, rows: int) -> None:
        self._spark = spark
        self._jvm = psutil.Process((jvm_process(spark) or {})["pid"])
        self._rows = {"many": rows, "few": rows // ARROW_DIVISOR}
        self._read: dict[tuple[str, str], float] = {}
        for name, count in self._rows.items():
            table = spark.range(0, count, 1, 1).selectExpr(
                *[f"{text} AS {name}" for name, text in COLUMNS.items()]
            )
            position = "named_struct('source', 0, 'part', 0, 'off', n, 'sub', 0L) AS _gs_pos"
            table.selectExpr("*", position).persist().createOrReplaceTempView(name)
            spark.sql(f"SELECT count(*) FROM {name}").collect()

    def rate(self, call: exp.Expr, *, arrow: bool = False) -> float:
        """Return millions of rows per second."""
        table = "few" if arrow else "many"
        columns = ", ".join(sorted({column.name for column in call.find_all(exp.Column)})) or "_gs_pos"
        text = statements.compile_statement(exp.select(exp.alias_(call.copy(), "v")).from_(table), ())
        provide(self._spark, text)
        best, idle = float("inf"), 0
        for _ in range(PASSES):
            reading = self._measure_once(f"SELECT {columns} FROM {table}")
            self._read[table, columns] = min(reading, self._read.get((table, columns), reading))
            seconds = self._measure_once(text)
            idle = idle + 1 if seconds > best * STEADY else 0
            best = min(best, seconds)
            if idle == IDLE:
                break
        return self._rows[table] / max(best - self._read[table, columns], 1e-3) / 1e6

    def _measure_once(self, text: str) -> float:
        began = self._cpu_seconds()
        self._spark.sql(text).write.format("noop").mode("overwrite").save()
        return self._cpu_seconds() - began

    def _cpu_seconds(self) -> float:
        """Return the processor seconds of the JVM and its descendants so far."""
        return sum(map(_processor_time, (self._jvm, *self._jvm.children(recursive=True))))


def _processor_time(process: psutil.Process) -> float:
    """Return seconds by Linux's clock of the process, if there is one. psutil counts in hundredths."""
    try:
        return time.clock_gettime(~process.pid << 3 | 2)
    except (AttributeError, OSError):
        times = process.cpu_times()
        return times.user + times.system


def format_call(result: dict[str, Any]) -> str:
    """Return the call, how it runs, and how it compares."""
    comparison = (
        f"; {result['part']:.2f} of Spark's `{result['nearest']}`"
        if "nearest" in result and result["rate"] < MAX_RATE
        else ""
    )
    return f"`{result['call']}`, {result['kind']}{comparison}"


def format_capped_rate(rate: float) -> str:
    """Return the rate. Calls that take almost no time in addition to reading have only a lower bound."""
    return f"{rate:.2f} M rows/s" if rate < MAX_RATE else f"over {MAX_RATE} M rows/s"


def format_ratio(result: dict[str, Any]) -> str:
    """Return the ratio to the goal."""
    return f"{result['rate'] / GOALS[result['kind']]:.2f}" if result["rate"] < MAX_RATE else ""


def main() -> None:
    """Measure in one session on one core."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    text = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        spark = start_session(
            Settings(home=Path(folder), spark=SparkSettings(master="local[1]", driver_memory="2g")), ()
        )
        try:
            measure(spark, rows, text)
        finally:
            stop_session(spark)


if __name__ == "__main__":
    main()

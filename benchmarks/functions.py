"""Rows per second of each function on one core: `python -m benchmarks.functions [ROWS] [TEXT]` prints a line of JSON per function,
of those alone whose name holds TEXT.

One cached table, one Spark task, a sink that throws rows away. What counts is the processor time of the JVM, its collector and
compiler among it, and of its Python workers, so that other work on the machine changes less. A call and the bare reading of its
columns take turns until the call gets no faster, for the JVM compiles what it has seen often; the best pass of each counts.
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
from headrace.pipeline.config.settings import Settings, SparkSettings
from headrace.pipeline.functions import DialectScope, functions, parsed_names
from headrace.pipeline.sql import statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 250_000
FEWER = 3
"""Arrow functions get this part of the rows: they have no compiler to wait for, and take longer."""
PASSES = 7
"""At most."""
STEADY, IDLE = 0.97, 3
"""A pass that takes more than this part of the best one is no faster; so many of them in a row are enough."""
GOALS = {"expression": 1.0, "Spark's own": 1.0, "Arrow": 0.15}
"""Millions of rows per second."""
MOST = 10
"""Millions of rows per second above which nothing is told apart from reading the columns."""
COLUMNS = {
    "t": "concat('customer-', id % 1009, '@example.com')",
    "csv": "concat(id % 7, ',abc,', id, ',', id % 100)",
    "url": "concat('https://user@example.com:80/path/', id, '?q=', id % 10, '&r=x#top')",
    "doc": 'concat(\'{"id": \', id, \', "user": {"name": "n\', id % 97, \'", "tags": ["a", "b"]}, "amount": \', id % 1000, \'.5}\')',
    "word": "concat('\"a', id, '\"')",
    "a": "concat(1 + id, '000000000000000000')",
    "b": "CAST(1 + id % 100003 AS STRING)",
    "h": "concat('0x', sha2(CAST(id AS STRING), 256))",
    "y": "unhex(sha2(CAST(id AS STRING), 256))",
    "b58": "concat(substr(translate(md5(CAST(id AS STRING)), '0', 'Z'), 1, 32), 'Hx7')",
    "xs": "array(named_struct('k', 'a', 'n', id), named_struct('k', 'b', 'n', id + 1), named_struct('k', 'c', 'n', id + 2))",
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
"""What Spark has that does nearly the same, without the rules of ours: how fast that is, is what can be had."""


class _Names(statements.DIALECT):
    """Spark's syntax with the names as the page of functions has them."""

    class Parser(statements.DIALECT.Parser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {**statements.DIALECT.Parser.FUNCTIONS, **parsed_names("datafusion")}


def measure(spark: SparkSession, rows: int, text: str = "") -> list[dict[str, Any]]:
    """What each call reaches, in millions of rows per second, how it runs, and which part that is of what Spark's nearest reaches."""
    meter = _Meter(spark, rows)
    parsed = cast("exp.Select", sqlglot.parse_one(f"SELECT {CALLS}", dialect=_Names))
    found = []
    for call in parsed.selects:
        shown = call.sql(dialect="spark").replace("HR_DF_", "").replace("hr_df_", "")
        name = shown.partition("(")[0].lower()
        if text not in name:
            continue
        known = functions().get(name) or functions()[f"hr_df_{name}"]
        rate = meter.rate(call, arrow=bool(known.arrow))
        kind = "Spark's own" if known.where is DialectScope.SPARK else known.kind
        found.append({"call": shown, "kind": kind, "rate": rate})
        if nearest := NEAREST.get(name):
            found[-1] |= {"nearest": nearest, "part": rate / meter.rate(sqlglot.parse_one(nearest, dialect=statements.DIALECT))}
        print(json.dumps(found[-1]), flush=True)
    return found


class _Meter:
    """Two cached tables, and what reading columns of them takes."""

    def __init__(self, spark: SparkSession, rows: int) -> None:
        self._spark = spark
        self._jvm = psutil.Process((jvm_process(spark) or {})["pid"])
        self._rows = {"many": rows, "few": rows // FEWER}
        self._read: dict[tuple[str, str], float] = {}
        for name, count in self._rows.items():
            table = spark.range(0, count, 1, 1).selectExpr(*[f"{text} AS {name}" for name, text in COLUMNS.items()])
            position = "named_struct('source', 0, 'part', 0, 'off', n, 'sub', 0L) AS _gs_pos"
            table.selectExpr("*", position).persist().createOrReplaceTempView(name)
            spark.sql(f"SELECT count(*) FROM {name}").collect()

    def rate(self, call: exp.Expr, *, arrow: bool = False) -> float:
        """Millions of rows per second."""
        table = "few" if arrow else "many"
        columns = ", ".join(sorted({column.name for column in call.find_all(exp.Column)})) or "_gs_pos"
        text = statements.compile_statement(exp.select(exp.alias_(call.copy(), "v")).from_(table), ())
        provide(self._spark, text)
        best, idle = float("inf"), 0
        for _ in range(PASSES):
            reading = self._once(f"SELECT {columns} FROM {table}")
            self._read[table, columns] = min(reading, self._read.get((table, columns), reading))
            took = self._once(text)
            idle = idle + 1 if took > best * STEADY else 0
            best = min(best, took)
            if idle == IDLE:
                break
        return self._rows[table] / max(best - self._read[table, columns], 1e-3) / 1e6

    def _once(self, text: str) -> float:
        began = self._spent()
        self._spark.sql(text).write.format("noop").mode("overwrite").save()
        return self._spent() - began

    def _spent(self) -> float:
        """Seconds that the JVM and all below it have computed so far."""
        return sum(map(_processor_time, (self._jvm, *self._jvm.children(recursive=True))))


def _processor_time(process: psutil.Process) -> float:
    """In seconds, by Linux's own clock of a process where there is one: psutil counts in hundredths."""
    try:
        return time.clock_gettime(~process.pid << 3 | 2)
    except (AttributeError, OSError):
        times = process.cpu_times()
        return times.user + times.system


def shown_what(one: dict[str, Any]) -> str:
    """The call, how it runs, and how it compares."""
    beside = f"; {one['part']:.2f} of Spark's `{one['nearest']}`" if "nearest" in one and one["rate"] < MOST else ""
    return f"`{one['call']}`, {one['kind']}{beside}"


def shown_rate(rate: float) -> str:
    """For people; what takes next to nothing beside reading the columns has no figure of its own."""
    return f"{rate:.2f} M rows/s" if rate < MOST else f"over {MOST} M rows/s"


def shown_ratio(one: dict[str, Any]) -> str:
    """Of the goal."""
    return f"{one['rate'] / GOALS[one['kind']]:.2f}" if one["rate"] < MOST else ""


def main() -> None:
    """One session on one core."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    text = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        spark = start_session(Settings(home=Path(folder), spark=SparkSettings(master="local[1]", driver_memory="2g")), ())
        try:
            measure(spark, rows, text)
        finally:
            stop_session(spark)


if __name__ == "__main__":
    main()

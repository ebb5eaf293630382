"""Rows per second of each function on one core: `python -m benchmarks.functions [ROWS]` prints a line of JSON per function.

One cached table, one Spark task, a sink that throws rows away. What counts is the processor time of the JVM and of its Python workers,
so that other work on the machine changes little, in the third of three runs, without what reading the same columns takes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import psutil
import sqlglot

from headrace.jobs.functions import provide
from headrace.jobs.session import jvm_process, start_session, stop_session
from headrace.pipeline import sql
from headrace.pipeline.functions import functions, parsed_names
from headrace.pipeline.settings import Settings, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlglot import exp

ROWS = 300_000
GOALS = {"expression": 1.0, "Arrow": 0.15}
"""Millions of rows per second."""
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


class _Names(sql.DIALECT):
    """Spark's syntax with the names as the page of functions has them."""

    class Parser(sql.DIALECT.Parser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {**sql.DIALECT.Parser.FUNCTIONS, **parsed_names("datafusion")}


def measure(spark: SparkSession, rows: int) -> list[dict[str, Any]]:
    """What each call reaches, in millions of rows per second, and how it runs."""
    table = spark.range(0, rows, 1, 1).selectExpr(*[f"{text} AS {name}" for name, text in COLUMNS.items()])
    position = "named_struct('source', 0, 'part', 0, 'off', n, 'sub', 0L) AS _gs_pos"
    table.selectExpr("*", position).persist().createOrReplaceTempView("one")
    spark.sql("SELECT count(*) FROM one").collect()
    parsed = cast("exp.Select", sqlglot.parse_one(f"SELECT {CALLS}", dialect=_Names))
    bare: dict[str, float] = {}
    found = []
    for call in parsed.selects:
        columns = ", ".join(sorted({column.name for column in call.find_all(sqlglot.exp.Column)})) or "_gs_pos"
        if columns not in bare:
            bare[columns] = _seconds(spark, f"SELECT {columns} FROM one")
        query = sqlglot.exp.select(sqlglot.exp.alias_(call.copy(), "v")).from_("one")
        text = sql.with_hidden(query, ())
        provide(spark, text)
        took = max(_seconds(spark, text) - bare[columns], 0.01)
        name = call.name.removeprefix("hr_df_") if isinstance(call, sqlglot.exp.Anonymous) else call.sql_name()
        known = functions().get(name.lower()) or functions().get(f"hr_df_{name.lower()}")
        shown = call.sql(dialect="spark").replace("HR_DF_", "").replace("hr_df_", "")
        found.append({"call": shown, "kind": known.kind if known else "expression", "rate": rows / took / 1e6})
        print(json.dumps(found[-1]), flush=True)
    return found


def shown_rate(rate: float) -> str:
    """For people; what takes next to nothing beside reading the columns has no figure of its own."""
    return f"{rate:.2f} M rows/s" if rate < 10 else "over 10 M rows/s"


def shown_ratio(one: dict[str, Any]) -> str:
    """Of the goal."""
    ratio = one["rate"] / GOALS[one["kind"]]
    return f"{ratio:.2f}" if one["rate"] < 10 else ""


def _seconds(spark: SparkSession, text: str) -> float:
    """Processor time of the third run: in those before, Spark and the JVM compile."""
    took = 0.0
    for _ in range(3):
        began = _spent(spark)
        spark.sql(text).write.format("noop").mode("overwrite").save()
        took = _spent(spark) - began
    return took


def _spent(spark: SparkSession) -> float:
    """Seconds that the JVM and all below it have computed so far."""
    jvm = psutil.Process((jvm_process(spark) or {})["pid"])
    times = [one.cpu_times() for one in (jvm, *jvm.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def main() -> None:
    """One session on one core."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        spark = start_session(Settings(home=Path(folder), spark=SparkSettings(master="local[1]", driver_memory="2g")), ())
        try:
            measure(spark, rows)
        finally:
            stop_session(spark)


if __name__ == "__main__":
    main()

"""Loading of test files: the tests, and all mistakes with their locations."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.pipeline_cases import ORDERS, case, write

from headrace.pipeline.errors import PipelineFileError
from headrace.pipeline.file.loader import parse_pipeline
from headrace.pipeline.testcases.loader import case_files, load_cases
from headrace.pipeline.testcases.values import Timestamp

GOOD = """\
  cents_become_an_amount:
    description: a price
    now: 2025-01-01T00:00:00Z
    given:
      orders:
        rows:
          - {id: 1, cents: 2.50, placed_at: 2025-01-01T10:00:00Z}
          - {id: 8, _gs_op: d}
    expect:
      priced:
        rows: [{id: 1, amount: 2.50}]
        columns: id, amount
        ordered: true
        tolerance: 0.001
"""


def problems(path: Path) -> list[str]:
    with pytest.raises(PipelineFileError) as caught:
        load_cases(path)
    return [
        f"{problem.place.line}:{problem.place.column} {problem.message}" if problem.place else problem.message
        for problem in caught.value.problems
    ]


def test_a_test_is_read_with_numbers_and_times_as_they_are_written(tmp_path: Path) -> None:
    result = case(tmp_path, GOOD)
    rows = result.input_rows("orders")
    assert rows.records == [
        {"id": 1, "cents": Decimal("2.50"), "placed_at": "2025-01-01T10:00:00Z"},
        {"id": 8, "_gs_op": "d"},
    ]
    assert str(rows.records[0]["cents"]) == "2.50"
    assert isinstance(rows.records[0]["placed_at"], Timestamp)
    assert (rows.place(1, "_gs_op").line, rows.place(1, "_gs_op").column) == (10, 21)
    assert result.node.now == datetime(2025, 1, 1, tzinfo=UTC)
    assert result.node.expect["priced"].columns == ("id", "amount")


def test_the_same_section_in_the_pipeline_file_changes_neither_its_hash_nor_what_the_ledger_stores(
    tmp_path: Path,
) -> None:
    (tmp_path / "orders.yaml").write_text(f"{ORDERS}tests:\n{GOOD}")
    (result,) = load_cases(tmp_path / "orders.yaml")
    assert result.name == "cents_become_an_amount"
    assert str(result.input_rows("orders").records[0]["cents"]) == "2.50"
    plain = parse_pipeline(ORDERS)
    assert result.file.hash == plain.hash
    assert result.file.compiled() == plain.compiled()


MISTAKES = """\
  one:
    nwo: 1
    given:
      ordrs: {rows: [{id: 1}]}
      orders:
        rows: [{idd: 1, _gs_op: x}, 5]
        csv: a.csv
    expect:
      priced: {rowss: []}
      priced2: {rows: [], tolerance: many}
  two: {}
  three: 5
  given:
    now: soon
    given: {orders_pg: {rows: []}, orders: {rows: [], schema: {a: int63}}}
    expect_error: x
    expect: {priced: {}}
"""


def test_all_mistakes_come_at_once_each_with_its_place(tmp_path: Path) -> None:
    assert problems(write(tmp_path, MISTAKES)) == [
        "4:5 unknown key `nwo`; did you mean `now`?",
        "6:7 test `one`: `ordrs` is no source or transform of this pipeline; did you mean `orders`?",
        "8:17 test `one`: `orders` has no column `idd`; did you mean `id`?",
        "8:25 test `one`: `_gs_op` cannot be `x`",
        "8:37 `given.orders.rows[1]` must be a map of keys and values, and is `5`",
        "9:9 test `one`: `given.orders` says `rows` and `csv`",
        "11:16 unknown key `rowss`; did you mean `rows`?",
        "12:7 test `one`: `priced2` is no source, transform or sink of this pipeline; did you mean `priced`?",
        "12:27 `expect.priced2.tolerance` must be a number, and is `many`",
        "13:3 test `two`: a test must expect rows or an error, and this one expects nothing",
        "14:3 this test must be a map of keys and values, and is `5`",
        "16:5 `now`: `soon` is no moment; write one such as 2025-01-31T12:00:00Z",
        "17:13 test `given`: `orders_pg` is a sink, and rows are given to sources and transforms",
        "17:55 test `given`: `orders` has its columns from the pipeline file",
        "17:64 test `given`: column `a`: unsupported data type `int63` in schema; did you mean `int64`?",
        "18:5 test `given`: a test expects rows or an error, and this one says both",
        "19:14 test `given`: `expect.priced` needs one of rows, csv, json, parquet",
    ]


def test_the_same_mistakes_are_told_where_the_tests_are_in_the_pipeline_file(tmp_path: Path) -> None:
    alone = problems(write(tmp_path, MISTAKES))
    (tmp_path / "orders.yaml").write_text(f"{ORDERS}tests:\n{MISTAKES}")
    shift = ORDERS.count("\n") - 1
    moved = [f"{int(line) + shift}:{rest}" for line, _, rest in (message.partition(":") for message in alone)]
    assert problems(tmp_path / "orders.yaml") == moved


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "pipeline: orders.yaml\ntest: {}\n",
            ["1:1 `tests` is missing", "2:1 unknown key `test`; did you mean `tests`?"],
        ),
        ("tests: {}\n", ["1:1 `pipeline` is missing"]),
        ("- a\n", ["1:1 a file of tests is a map with `pipeline` and `tests`"]),
        (
            "pipeline: nowhere.yaml\ntests: {}\n",
            ["1:1 `{folder}/nowhere.yaml` cannot be read: No such file or directory"],
        ),
        (
            "pipeline: bad.yaml\ntests: {a: {}}\n",
            ["5:5 source type `kafkaa` is not known; did you mean `kafka`?"],
        ),
    ],
)
def test_a_file_that_is_wrong_as_a_whole(text: str, messages: list[str], tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(ORDERS)
    (tmp_path / "bad.yaml").write_text(ORDERS.replace("kafka", "kafkaa"))
    (tmp_path / "x.test.yaml").write_text(text)
    result = problems(tmp_path / "x.test.yaml")
    assert len(result) == len(messages)
    for one, other in zip(result, messages, strict=True):
        assert one == other.format(folder=tmp_path)


def test_rows_from_other_files(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "a.csv").write_text('id,note,_gs_op\n1,"a, b",\n2,,d\n')
    (tmp_path / "given" / "a.ndjson").write_text('{"id": 1, "cents": 2.50}\n\n{"id": 2, "note": null}\n')
    pq.write_table(
        pa.table(
            {"id": pa.array([1], pa.int32()), "at": pa.array([datetime(2025, 1, 1)], pa.timestamp("us"))}
        ),
        tmp_path / "a.parquet",
    )
    form = "  t:\n    given: {{orders: {{{}}}}}\n    expect_error: x\n"
    csv = case(tmp_path, form.format("csv: given/a.csv")).input_rows("orders")
    assert csv.records == [
        {"id": "1", "note": "a, b", "_gs_op": None},
        {"id": "2", "note": None, "_gs_op": "d"},
    ]
    assert str(csv.place(1, "id")) == f"{tmp_path}/given/a.csv:3"
    json = case(tmp_path, form.format("json: given/a.ndjson")).input_rows("orders")
    assert [str(json.records[0]["cents"]), json.records[1]] == ["2.50", {"id": 2, "note": None}]
    assert str(json.place(1)) == f"{tmp_path}/given/a.ndjson:3"
    parquet = case(tmp_path, form.format("parquet: a.parquet")).input_rows("orders")
    assert parquet.records == [{"id": 1, "at": datetime(2025, 1, 1)}]
    assert parquet.schema == pa.schema({"id": pa.int32(), "at": pa.timestamp("us")})


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("csv", None, "5:9 `{path}` cannot be read: No such file or directory"),
        ("csv", "id,id\n1,2\n", "1:None the column `id` stands twice in the header"),
        ("csv", "id,cents\n1,2\n3\n", "3:None the line has 1 cells, and the header 2"),
        ("json", '{"id": 1}\n[1]\n', "2:None `[1]` is no JSON object"),
        (
            "json",
            "{id: 1}\n",
            "1:None not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("parquet", "id\n", "5:9 `{path}` cannot be read: it is no Parquet file"),
    ],
)
def test_other_files_that_are_wrong(form: str, content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    if content is not None:
        path.write_text(content)
    result = case(
        tmp_path,
        f"  t:\n    given:\n      orders: {{ {form}: rows }}\n    expect_error: x\n".replace(
            "{ ", "\n        "
        ).replace(" }", ""),
    )
    with pytest.raises(PipelineFileError) as caught:
        result.input_rows("orders")
    (problem,) = caught.value.problems
    assert problem.place is not None
    assert f"{problem.place.line}:{problem.place.column} {problem.message}" == message.format(
        path=path
    ).replace("5:9", "6:9")


def test_what_is_found_by_a_path(tmp_path: Path) -> None:
    for name in (
        "orders.test.yaml",
        "orders.prices.test.yaml",
        "orders2.test.yaml",
        "deep/er/a.test.yml",
        ".hidden/b.test.yaml",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("pipeline: x\ntests: {}\n")
    (tmp_path / "orders.yaml").write_text(ORDERS)
    (tmp_path / "with.yaml").write_text(f"{ORDERS}tests: {{}}\n")
    (tmp_path / "other.yaml").write_text("tests: {}\n")

    def list_files(path: Path) -> list[str]:
        return [str(file.relative_to(tmp_path)) for file in case_files(path)]

    assert list_files(tmp_path / "orders.yaml") == ["orders.prices.test.yaml", "orders.test.yaml"]
    assert list_files(tmp_path / "with.yaml") == ["with.yaml"]
    assert list_files(tmp_path / "orders2.test.yaml") == ["orders2.test.yaml"]
    assert list_files(tmp_path) == [
        "deep/er/a.test.yml",
        "orders.prices.test.yaml",
        "orders.test.yaml",
        "orders2.test.yaml",
        "with.yaml",
    ]

"""Pages of an API: their addresses, their rows, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from helpers.web_server import WebRequest, served
from pydantic import ValidationError

from headrace.connectors import splitting
from headrace.connectors.http_source.config import HttpSourceConfig
from headrace.connectors.http_source.source import HttpPages
from headrace.connectors.staged.folder import drop_folder, drop_folders, store_rows
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import DataError, HeadraceError, TargetError, TransientError, UserError
from headrace.pipeline.file.loader import parse_pipeline

ROWS = [{"id": number, "v": None if number % 7 == 0 else f"é{number}"} for number in range(25)]
SCHEMA = {"id": "int64", "v": "string"}
PATIENT = {"timeout": "60s", "max_attempts": 10}


def source(url: str, **node: Any) -> HttpPages:
    retry = {"timeout": "20s", "max_attempts": 3}
    made = {"url": url, "schema": SCHEMA, "retry": retry, "timeout": "20s"} | node
    settings = {"http_secret_header": {"key": "X-Token"}, "http_secret_value": {"key": "hunter2-secret"}}
    return HttpPages(HttpSourceConfig.model_validate(made), Settings.model_validate(settings), 3, "src")


def read(url: str, **node: Any) -> list[dict[str, Any]]:
    return [row for page in source(url, **node).read_batches() for row in page.to_pylist()]


def refused(url: str, kind: type[HeadraceError] = DataError, **node: Any) -> HeadraceError:
    with pytest.raises(kind) as caught:
        read(url, **node)
    assert caught.value.node == "src"
    assert caught.value.hint
    return caught.value


def query(request: WebRequest) -> dict[str, str]:
    return {name: result[0] for name, result in parse_qs(urlsplit(request.path).query).items()}


def by_number(request: WebRequest) -> Any:
    first = (int(query(request)["page"]) - 1) * 10
    return ROWS[first : first + 10]


def by_offset(request: WebRequest) -> Any:
    asked_for = query(request)
    first = int(asked_for["offset"])
    return {"data": {"items": ROWS[first : first + min(7, int(asked_for["limit"]))]}}


def by_cursor(last: Any, kind: Callable[[int], Any]) -> Callable[[WebRequest], Any]:
    def answer(request: WebRequest) -> Any:
        first = int(query(request).get("after", 0))
        following = kind(first + 10) if first + 10 < 25 else last
        return {"items": ROWS[first : first + 10], "meta": {"next": following}}

    return answer


def by_link(request: WebRequest) -> Any:
    first = int(query(request).get("from", 0))
    headers = {"Link": f'</rows?from={first + 10}>; rel="next"'} if first + 10 < 25 else {}
    return 200, json.dumps(ROWS[first : first + 10]).encode(), headers


def by_address(request: WebRequest) -> Any:
    first = int(query(request).get("from", 0))
    return {"items": ROWS[first : first + 10], "next": f"?from={first + 10}" if first + 10 < 25 else None}


OFFSETS = {"by": "offset", "size": 1000}
WAYS: dict[str, tuple[Callable[[WebRequest], Any], dict[str, Any], int]] = {
    "one answer": (lambda _: ROWS, {}, 1),
    "page": (by_number, {"pagination": {"by": "page"}}, 4),
    "offset of a service with small pages": (by_offset, {"records": "data.items", "pagination": OFFSETS}, 5),
    "text cursor": (by_cursor(None, str), {}, 3),
    "number cursor": (by_cursor("", int), {}, 3),
    "link header": (by_link, {"pagination": {"by": "link"}}, 3),
    "address": (by_address, {"records": "items", "pagination": {"by": "link", "path": "next"}}, 3),
}
CURSOR = {"records": "items", "pagination": {"by": "cursor", "parameter": "after", "path": "meta.next"}}


@pytest.mark.parametrize("way", WAYS)
def test_all_pages_are_read_once_and_in_order(way: str) -> None:
    answer, node, requests = WAYS[way]
    with served(answer) as service:
        assert read(service.url, **(node or (CURSOR if "cursor" in way else {}))) == ROWS
        assert len(service.requests) == requests


def test_parameters_of_the_address_stay() -> None:
    with served(by_number) as service:
        pages = {"by": "page", "size_parameter": "per_page", "size": 10}
        read(service.url + "?sort=id&tag=a&tag=b&page=7", pagination=pages)
        for number, requests in enumerate(service.requests, 1):
            result = parse_qs(urlsplit(requests.path).query)
            wanted = {"sort": ["id"], "tag": ["a", "b"], "per_page": ["10"], "page": [str(number)]}
            assert result == wanted


def test_an_api_without_rows_gives_none() -> None:
    with served(lambda _: []) as service:
        assert read(service.url, pagination={"by": "page"}) == []
        assert len(service.requests) == 1


def test_secrets_go_to_the_service_and_into_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "very-secret-token")

    def answer(request: WebRequest) -> Any:
        return 403, request.headers["authorization"].encode() + b" hunter2-secret", {}

    headers = {"Authorization": "Bearer ${API_TOKEN}"}
    with served(answer) as service:
        url = service.url + "?token=${API_TOKEN}"
        error = refused(url, TargetError, headers=headers, secret_name="key")
        (requests,) = service.requests
        assert requests.headers["authorization"] == "Bearer very-secret-token"
        assert requests.headers["x-token"] == "hunter2-secret"
        assert query(requests) == {"token": "very-secret-token"}
        made = source(url, headers=headers, secret_name="key")
        for text in (str(error), repr(error), str(error.hint), json.dumps(made.describe())):
            assert "secret" not in text.replace("secret_name", "")
    assert "page 1: GET " in str(error)
    assert "HTTP 403" in str(error)


def test_a_variable_that_is_not_set_is_named_before_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("API_TOKEN", raising=False)
    with served() as service, pytest.raises(UserError, match="API_TOKEN"):
        read(service.url, headers={"Authorization": "Bearer ${API_TOKEN}"})
    assert service.requests == []


def test_the_file_keeps_variables_of_the_source_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "very-secret-token")
    text = (
        "version: 1\nname: x\nsources:\n  a: {type: http, url: 'https://h/${API_TOKEN}', schema: {id: int64},"
        " headers: {Authorization: '${API_TOKEN}'}}\nsinks:\n  b: {type: blackhole, from: a}\n"
    )
    file = parse_pipeline(text)
    assert "very-secret-token" not in json.dumps(file.model.model_dump(mode="json"))
    warned = parse_pipeline(text.replace("'${API_TOKEN}'}}", "'Bearer abc'}}")).warnings
    assert [str(one.message) for one in warned if "Authorization" in one.message]


@pytest.mark.parametrize("fault", [503, "reset", "torn", "hang"])
def test_a_failed_request_is_tried_again(fault: Any) -> None:
    # A short timeout fails on a busy machine: only the fault that needs one has it, and its further requests count.
    timeout = "1s" if fault == "hang" else "20s"
    with served(by_number, faults=[None, fault, fault]) as service:
        assert read(service.url, pagination={"by": "page"}, timeout=timeout, retry=PATIENT) == ROWS
        assert len(service.requests) >= 6 if fault == "hang" else len(service.requests) == 6


def test_attempts_have_a_limit() -> None:
    with served(by_number, faults=[503] * 3) as service:
        error = refused(service.url, TransientError, pagination={"by": "page"})
        assert len(service.requests) == 3
    assert "given up after 3 attempts" in str(error)


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no JSON": (b"<html>", {}, "the answer is no JSON"),
    "nothing": (b"", {}, "the body is empty"),
    "not UTF-8": (b'[{"id": 1, "v": "\xff"}]', {}, "not UTF-8"),
    "an object": ({"id": 1}, {}, "the answer is an object, an array of objects is expected"),
    "no array there": ({"data": {"rows": []}}, {"records": "data.items"}, "the answer has no `data.items`"),
    "not an array": ({"data": 5}, {"records": "data"}, "`data` is a number"),
    "null for the array": ({"data": None}, {"records": "data"}, "`data` is null"),
    "a row that is none": ([{"id": 1}, 2], {}, "row 1 is a number, an object is expected"),
    "a wrong type": ([{"id": 1}, {"id": "x"}], {}, "row 1, column `id` is declared as int64, found a text"),
    "a number with a fraction": ([{"id": 1.5}], {}, "row 0, column `id`"),
    "too large": ([{"id": 2**63}], {}, "row 0, column `id`"),
    "a text that is a number": ([{"v": 5}], {}, "row 0, column `v`"),
    "half a character": (b'[{"id": 1, "v": "\\ud800"}]', {}, "half of a surrogate pair"),
    "a cursor that is none": ({"items": [], "meta": {"next": True}}, CURSOR, "`meta.next` is a boolean"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_answer_that_does_not_fit_is_an_error_with_its_page(case: str) -> None:
    answer, node, text = WRONG[case]
    with served(lambda _: answer) as service:
        error = refused(service.url, **node)
    assert "page 1 of http://127.0.0.1" in str(error)
    assert text in str(error)


def test_pages_that_repeat_or_never_end_are_an_error() -> None:
    with served(lambda _: {"items": ROWS[:1], "meta": {"next": "x"}}) as service:
        assert "was read before" in str(refused(service.url, **CURSOR))
        assert len(service.requests) == 2
    with served(lambda _: ROWS[:1]) as service:
        error = refused(service.url, pagination={"by": "page"}, max_pages=3)
        assert "more pages than `max_pages` (3)" in str(error)
        assert len(service.requests) == 3


def test_headers_go_to_no_other_server() -> None:
    def answer(request: WebRequest) -> Any:
        del request
        return {"items": ROWS[:1], "next": f"{other.url}?from=1"}

    with served() as other, served(answer) as service:
        error = refused(service.url, records="items", pagination={"by": "link", "path": "next"})
        assert other.requests == []
    assert "another server: 127.0.0.1" in str(error)


def test_a_redirect_is_not_followed() -> None:
    def answer(request: WebRequest) -> Any:
        del request
        return 302, b"", {"Location": other.url}

    with served() as other, served(answer) as service:
        assert "HTTP 302" in str(refused(service.url, TargetError))
        assert other.requests == []


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"schema": {}}, "schema"),
        ({"pagination": {"by": "cursor", "path": "next"}}, "`pagination.path` needs `records`"),
        ({"pagination": {"by": "page", "size": 5}}, "belong together"),
        ({"pagination": {"by": "pages"}}, "page"),
        ({"records": "a..b"}, "records"),
        ({"max_pages": 0}, "max_pages"),
    ],
)
def test_a_node_that_cannot_work_is_refused(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        source("http://h/", **node)


def test_values_of_all_types_arrive_exactly() -> None:
    schema = {"n": "uint64", "d": "decimal(38, 10)", "t": "timestamp", "b": "boolean", "x": "binary"}
    body = (
        b'[{"n": 18446744073709551615, "d": 1234567890123456789012345678.0123456789,'
        b' "t": "2024-02-29T23:59:59.999999+02:00", "b": true, "x": "00ff"}]'
    )
    with served(lambda _: body) as service:
        (row,) = read(service.url, schema=schema)
    assert [str(value) for value in row.values()] == [
        "18446744073709551615",
        "1234567890123456789012345678.0123456789",
        "2024-02-29 21:59:59.999999+00:00",
        "True",
        r"b'\x00\xff'",
    ]


def rows_of(folder: Path) -> list[Any]:
    import pyarrow.parquet as pq

    return pq.read_table(folder)["id"].to_pylist()


def test_a_folder_of_rows_is_complete_or_does_not_exist(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])

    def tables(count: int, *, fails: bool = False) -> Any:
        for number in range(count):
            yield pa.table([[number]], schema=schema)
        if fails:
            raise DataError("no more", node="src")

    with pytest.raises(DataError):
        store_rows(tmp_path, "0ab_1_x", schema, tables(2, fails=True), "src")
    assert list(tmp_path.iterdir()) == []
    folder = store_rows(tmp_path, "0ab_1_x", schema, tables(3), "src")
    assert rows_of(folder) == [0, 1, 2]
    assert store_rows(tmp_path, "0ab_1_x", schema, tables(9), "src") == folder
    assert rows_of(folder) == [0, 1, 2]
    (tmp_path / ".0ab_1_y_left").mkdir()
    for token in ("0ab_1_y", "0ab_2_x", "0cd_1_x"):
        store_rows(tmp_path, token, schema, tables(1), "src")
    drop_folders(tmp_path, "0ab", 1, [str(folder)])
    assert sorted(os.listdir(tmp_path)) == ["0ab_1_x", "0ab_2_x", "0cd_1_x"]
    drop_folder(tmp_path, str(tmp_path.parent))
    drop_folder(tmp_path, "")
    for _ in range(2):
        drop_folder(tmp_path, str(folder))
    assert not folder.exists()


def test_files_of_stored_rows_are_as_large_as_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(splitting, "SPLIT_ROWS", 10)
    monkeypatch.setattr(splitting, "SPLIT_BYTES", 1_000)
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    sizes = [(n, 400 if n in (33, 34, 35) else 1) for n in range(40)]
    rows = pa.table([[n for n, _ in sizes], ["x" * size for _, size in sizes]], schema=schema)
    tables = [
        rows.slice(0, 3),
        rows.slice(3, 0),
        rows.slice(3, 22),
        *(rows.slice(n, 1) for n in range(25, 40)),
    ]
    folder = store_rows(tmp_path, "0ab_1_x", schema, tables, "src")
    files = [pq.ParquetFile(path) for path in sorted(folder.iterdir())]
    assert [file.metadata.num_rows for file in files] == [3, 10, 10, 10, 2, 5]
    assert all(file.metadata.num_row_groups == 1 for file in files)
    assert [n for file in files for n in file.read()["id"].to_pylist()] == list(range(40))
    empty = store_rows(tmp_path, "0ab_2_x", schema, [], "src")
    assert pq.read_table(empty).schema.names == ["id", "v"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be stored") as caught:
        store_rows(tmp_path / "file", "0ab_1_x", pa.schema([]), [], "src")
    assert "staging.path" in caught.value.hint

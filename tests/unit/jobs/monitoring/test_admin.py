"""The admin endpoint, without a run."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from headrace.commands import tail as tail_command
from headrace.commands.tail import RowPrinter, tail
from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.monitoring.admin import Admin, EndpointData
from headrace.jobs.monitoring.sample_buffer import SampleBuffer
from headrace.pipeline.config.sections import SqliteBackend, StateBackend
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineStateError, UserError

FILE = """
version: 1
name: seen
sources:
  src: {type: clickhouse, table_name: here}
sinks:
  out: {type: blackhole, from: src}
"""
TABLE = """
transforms:
  known: {type: dynamic_table, backend_type: InMemory, backend_entity_name: k, sql: SELECT name FROM src}
"""
Opened = Callable[..., Admin]


@pytest.fixture
def samples() -> SampleBuffer:
    return SampleBuffer(["src", "out"], 15, 30.0)


@pytest.fixture
def opened(samples: SampleBuffer) -> Iterator[Opened]:
    made: list[Admin] = []

    def make(
        port: int = 0,
        *,
        inspect: bool = True,
        error: dict[str, object] | None = None,
        keep_alive: float = 15.0,
    ) -> Admin:
        looks = EndpointData(
            lambda: (b"a_metric 1\n", "text/plain"),
            lambda: {"status": "failing" if error else "ok"},
            lambda: error,
            samples if inspect else None,
        )
        made.append(Admin("127.0.0.1", port, looks, keep_alive=keep_alive))
        return made[-1]

    yield make
    for one in made:
        one.close()


def get(admin: Admin, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(admin.address.removeprefix("http://"), timeout=30)
    connection.request("GET", path)
    return connection.getresponse()


def events(answer: http.client.HTTPResponse, count: int) -> list[dict[str, object]]:
    result = []
    while len(result) < count:
        line = answer.readline()
        assert line, "the answer ended early"
        if line.startswith(b"data: "):
            result.append(json.loads(line[6:]))
    return result


def test_metrics_health_and_error(opened: Opened) -> None:
    well = opened()
    metrics = get(well, "/metrics")
    assert (metrics.status, metrics.read(), metrics.headers["Content-Type"]) == (
        200,
        b"a_metric 1\n",
        "text/plain",
    )
    assert (get(well, "/health").status, get(well, "/admin/error").status) == (200, 204)
    ill = opened(error={"node": "src", "message": "away", "internal": False, "retriable": True})
    assert get(ill, "/health").status == 503
    answer = get(ill, "/admin/error")
    assert (answer.status, json.loads(answer.read())["message"]) == (200, "away")


def test_rows_as_server_sent_events_newest_first_then_live_then_the_end(
    opened: Opened, samples: SampleBuffer
) -> None:
    admin = opened()
    samples.put("src", [{"id": 1}, {"id": 2}])
    answer = get(admin, "/admin/live-data")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.readline() == b'data: {"topology_node_key":"src","data":{"id":2}}\n'
    assert answer.readline() == b"\n"
    assert events(answer, 1) == [{"topology_node_key": "src", "data": {"id": 1}}]
    samples.put("out", [{"id": 3, "name": "é"}])
    assert events(answer, 1) == [{"topology_node_key": "out", "data": {"id": 3, "name": "é"}}]
    admin.close()
    assert answer.read() == b"\n"


def test_only_the_nodes_that_were_asked_for(opened: Opened, samples: SampleBuffer) -> None:
    admin = opened()
    answer = get(admin, "/admin/live-data?topology_node_keys=out")
    samples.put("src", [{"id": 1}])
    samples.put("out", [{"id": 2}])
    assert events(answer, 1) == [{"topology_node_key": "out", "data": {"id": 2}}]
    unknown = get(admin, "/admin/live-data?topology_node_keys=out,nope")
    assert (unknown.status, json.loads(unknown.read())) == (
        404,
        {"message": "no node `nope`", "nodes": ["src", "out"]},
    )
    assert get(opened(inspect=False), "/admin/live-data").status == 404


def test_a_silent_pipeline_sends_a_sign_of_life(opened: Opened) -> None:
    assert get(opened(keep_alive=0.05), "/admin/live-data").readline() == b": keep-alive\n"


def test_a_page_in_a_browser_cannot_ask_by_a_name_of_its_own(opened: Opened) -> None:
    connection = http.client.HTTPConnection(opened().address.removeprefix("http://"), timeout=30)
    connection.request("GET", "/admin/live-data", headers={"Host": "rows.example:80"})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (400, None)
    connection = http.client.HTTPConnection(f"localhost:{opened().address.rpartition(':')[2]}", timeout=30)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200


def test_nor_where_the_endpoint_listens_on_the_other_loopback(samples: SampleBuffer) -> None:
    try:
        admin = Admin("::1", 0, EndpointData(lambda: (b"", ""), dict, lambda: None, samples))
    except OSError:
        pytest.skip("this host has no IPv6")
    try:
        for host, status in ((None, 204), ("rows.example", 400)):
            connection = http.client.HTTPConnection("::1", int(admin.address.rpartition(":")[2]), timeout=30)
            connection.request("GET", "/admin/error", headers={"Host": host} if host else {})
            assert connection.getresponse().status == status
    finally:
        admin.close()


def test_a_port_that_is_taken_is_replaced(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other, caplog.at_level(logging.WARNING):
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        admin = opened(taken)
    assert not admin.address.endswith(f":{taken}")
    assert get(admin, "/health").status == 200
    assert f"event=admin_port_in_use port={taken} " in caplog.text


# --- headrace tail


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """The ledger says that the pipeline runs, and where it answers; returns the pipeline's file."""
    ledger_path = tmp_path / "ledger.db"
    settings = Settings(home=tmp_path, state_backend=StateBackend(sqlite=SqliteBackend(path=ledger_path)))
    monkeypatch.setattr(tail_command, "load_settings", lambda: settings)
    path = tmp_path / "seen.yaml"
    path.write_text(FILE)
    ledger = open_ledger(settings)

    def say(**holder: object) -> Path:
        ledger.acquire(
            "seen",
            "main",
            {"host": socket.gethostname(), "pid": 1, "launched_by": "cli", "jvm": None} | holder,
            60.0,
        )
        return path

    yield say
    ledger.close()


def test_tail_prints_rows_of_the_run_that_the_ledger_names(
    running: Callable[..., Path], opened: Opened, samples: SampleBuffer, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = opened()
    path = running(admin=admin.address, inspect=True)
    samples.put("src", [{"id": 1, "name": None}, {"id": 22, "name": "a [bold] name"}])
    tail(path, "src", as_json=False, rows=2)
    assert capsys.readouterr().out == "id  name\n22  a [bold] name\n1   ∅\n"
    tail(path, None, as_json=True, rows=1)
    assert json.loads(capsys.readouterr().out) == {
        "topology_node_key": "src",
        "data": {"id": 22, "name": "a [bold] name"},
    }


def test_tail_ends_with_the_run(
    running: Callable[..., Path], opened: Opened, samples: SampleBuffer, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = opened()
    path = running(admin=admin.address, inspect=True)
    samples.put("out", [{"id": 1}])
    ended = threading.Thread(target=tail, args=(path, None), kwargs={"as_json": False, "rows": None})
    ended.start()
    admin.close()
    ended.join(30)
    assert not ended.is_alive()
    assert "seen has ended" in capsys.readouterr().err


@pytest.mark.usefixtures("running")
def test_tail_waits_for_a_run_that_starts(
    opened: Opened,
    samples: SampleBuffer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    samples.put("out", [{"id": 7}])
    here = {"host": socket.gethostname(), "pid": 1}
    ledger = open_ledger(tail_command.load_settings())
    lease = ledger.acquire("seen", "main", here, 60.0)
    ready = here | {"jvm": None, "admin": opened().address, "inspect": True}
    monkeypatch.setattr(
        tail_command, "time", SimpleNamespace(sleep=lambda _: ledger.set_holder(lease, ready))
    )
    tail(tmp_path / "seen.yaml", "out", as_json=True, rows=1)
    output = capsys.readouterr()
    assert (output.err, json.loads(output.out)["data"]) == ("seen is starting; waiting for rows\n", {"id": 7})
    ledger.set_holder(lease, here)
    monkeypatch.setattr(tail_command, "time", SimpleNamespace(sleep=lambda _: ledger.release(lease)))
    with pytest.raises(PipelineStateError, match="`seen` is not running"):
        tail(tmp_path / "seen.yaml", "out", as_json=True, rows=1)
    ledger.close()


def test_tail_says_why_it_cannot(running: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "seen.yaml"
    with pytest.raises(PipelineStateError, match="`seen` is not running"):
        tail(path, None, as_json=False, rows=1)
    with pytest.raises(UserError, match=r"no node `sr` .*did you mean `src`") as raised:
        tail(path, "sr", as_json=False, rows=1)
    assert raised.value.hint == "There are src, out."
    path.write_text(FILE.replace("sinks:", TABLE + "sinks:"))
    with pytest.raises(UserError, match="`known` is a dynamic table, which has no output rows") as raised:
        tail(path, "known", as_json=False, rows=1)
    assert raised.value.hint == "Use the node that fills it: src."


@pytest.mark.parametrize(
    ("holder", "message", "hint"),
    [
        ({}, "does not serve its rows", "HEADRACE__LIVE_DATA_INSPECT_ENABLED=true"),
        (
            {"admin": "http://127.0.0.1:9", "inspect": False},
            "does not serve its rows",
            "live_data_inspect_enabled: true",
        ),
        (
            {"admin": "http://127.0.0.1:9", "inspect": True, "host": "elsewhere"},
            "runs on host elsewhere",
            "admin_api_host",
        ),
        ({"admin": "http://127.0.0.1:1", "inspect": True}, "does not answer at http://127.0.0.1:1", "status"),
    ],
)
def test_tail_names_the_setting_or_the_place(
    running: Callable[..., Path], holder: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(PipelineStateError, match=message) as raised:
        tail(running(**holder), None, as_json=False, rows=1)
    assert hint in (raised.value.hint or "")


def test_lines_fit_the_screen_and_say_what_does_not() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"), highlight=False)  # noqa: SIM115
    lines = RowPrinter(console, names=True)
    row: dict[str, object] = {f"column_{number}": "x" * 40 for number in range(6)}
    lines.show("src", row)
    lines.show("src", {**row, "column_0": "a\nb"})
    lines.show("out", {"id": 1})
    text = console.export_text().splitlines()
    assert max(map(len, text)) <= 80
    assert text[0] == "== src"
    assert text[1].split() == ["column_0", "column_1", "column_2", "+3"]
    assert text[2].split() == ["x" * 23 + "…"] * 3 + ["+3"]
    assert text[3].startswith("a⏎b ")
    assert text[4:] == ["== out", "id", "1"]

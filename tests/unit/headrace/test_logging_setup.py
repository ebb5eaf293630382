"""Log lines of the command line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import stamina
from stamina.instrumentation import get_on_retry_hooks, set_on_retry_hooks

from headrace import logging_setup
from headrace.orchestration.execution import _log_to_stderr
from headrace.pipeline.protocol.log_context import FIELDS, log_context, with_log_context


@pytest.fixture(autouse=True)
def kept_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_are_flat_and_carry_extras(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure_logging(level=logging.INFO)
    logging_setup.set_log_format("json")
    logging.getLogger("headrace.x").info("epoch=%d", 3, extra={"sink": "out"})
    line = json.loads(capsys.readouterr().err)
    assert {key: line[key] for key in ("level", "logger", "message", "sink")} == {
        "level": "info",
        "logger": "headrace.x",
        "message": "epoch=3",
        "sink": "out",
    }


def test_quiet_by_default_and_the_report_knows_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logging_setup.configure_logging(level=logging.WARNING)
    logging.getLogger("headrace.x").info("what led to it")
    logging.getLogger("headrace.x").warning("seen")
    shown = capsys.readouterr().err
    assert "seen" in shown
    assert "what led to it" not in shown
    with pytest.raises(ValueError, match="odd") as raised:
        int("odd")
    text = logging_setup.write_error_report(raised.value, tmp_path).read_text()
    assert "ValueError: invalid literal" in text
    assert "what led to it" in text


def test_what_py4j_says_about_a_dead_jvm_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure_logging(level=logging.INFO)
    record = logging.LogRecord(
        "root", logging.ERROR, "/x/py4j/java_gateway.py", 1, "Exception while sending command.", (), None
    )
    logging.getLogger().handle(record)
    assert capsys.readouterr().err == ""


def test_retries_of_the_http_client_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """clickhouse_connect lowers urllib3's own level when it is imported, which is after this."""
    logging_setup.configure_logging(level=logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").warning("Retrying")
    assert capsys.readouterr().err == ""


def log_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_lines_say_where_they_belong_in_threads_too(capsys: pytest.CaptureFixture[str]) -> None:
    """As a lane writes them: the sinks' pool takes along what its starter is about.

    Another thread knows nothing of it.
    """
    logging_setup.configure_logging(level=logging.INFO, log_format="json")
    log = logging.getLogger("headrace.x")

    def write(sink: str) -> None:
        with log_context(node=sink):
            log.info("write")

    with log_context(pipeline="shop", run_id="", epoch=None), log_context(epoch=3):
        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(with_log_context(write), sink) for sink in ("pg", "lake")]:
                future.result()
        log.info("commit", extra={"node": "all"})
        with ThreadPoolExecutor(1) as pool:
            pool.submit(log.info, "elsewhere").result()
    log.info("after")
    lines = log_lines(capsys.readouterr().err)
    fields = [{key: line.get(key) for key in FIELDS if key in line} for line in lines]
    assert sorted(str(result) for result in fields[:2]) == [
        str({"pipeline": "shop", "epoch": 3, "node": sink}) for sink in ("lake", "pg")
    ]
    assert fields[2:] == [{"pipeline": "shop", "epoch": 3, "node": "all"}, {}, {}]


def test_text_has_the_same_at_the_end_of_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    logging_setup.configure_logging(level=logging.INFO)
    with log_context(pipeline="shop", run_id="r1", epoch=3, node="pg"):
        logging.getLogger("headrace.x").info("rows=%d", 4)
    logging.getLogger("headrace.x").info("plain")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("headrace.x rows=4 [pipeline=shop run_id=r1 epoch=3 node=pg]")
    assert second.endswith("headrace.x plain")


def test_a_dagster_run_writes_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("headrace")
    kept, level, passed_on = logger.handlers[:], logger.level, logger.propagate
    logger.handlers, logger.propagate = [], False
    try:
        _log_to_stderr("json")
        _log_to_stderr("json")
        with log_context(pipeline="shop", run_id="r1", epoch=7):
            logging.getLogger("headrace.jobs.x").info("rows=%d", 4)
    finally:
        logger.handlers, logger.propagate = kept, passed_on
        logger.setLevel(level)
    (line,) = log_lines(capsys.readouterr().err)
    assert {key: line[key] for key in ("message", *FIELDS[:3])} == {
        "message": "rows=4",
        "pipeline": "shop",
        "run_id": "r1",
        "epoch": 7,
    }


def test_a_retry_is_a_log_line_without_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """By default stamina logs them, and prints to standard output if structlog is installed."""
    before = get_on_retry_hooks()
    logging_setup.configure_logging(level=logging.INFO, log_format="json")
    calls: list[str] = []

    @stamina.retry(on=OSError, wait_initial=0, wait_max=0, wait_jitter=0)
    def connect(password: str) -> str:
        calls.append(password)
        if len(calls) == 1:
            raise OSError(password)
        return "connected"

    try:
        assert connect("a-secret-word") == "connected"
    finally:
        set_on_retry_hooks(before)
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["message"] == "event=retry_scheduled attempt=1 seconds=0.00 error=OSError"
    assert "a-secret-word" not in err

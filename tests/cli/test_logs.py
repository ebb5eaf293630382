"""Log lines of the front door."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import logs


@pytest.fixture(autouse=True)
def kept_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_are_flat_and_carry_extras(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(level=logging.INFO)
    logs.use_format("json")
    logging.getLogger("headrace.x").info("epoch=%d", 3, extra={"sink": "out"})
    line = json.loads(capsys.readouterr().err)
    assert {key: line[key] for key in ("level", "logger", "message", "sink")} == {
        "level": "info",
        "logger": "headrace.x",
        "message": "epoch=3",
        "sink": "out",
    }


def test_quiet_by_default_and_the_report_knows_more(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logs.set_up(level=logging.WARNING)
    logging.getLogger("headrace.x").info("what led to it")
    logging.getLogger("headrace.x").warning("seen")
    shown = capsys.readouterr().err
    assert "seen" in shown
    assert "what led to it" not in shown
    with pytest.raises(ValueError, match="odd") as raised:
        int("odd")
    text = logs.report(raised.value, tmp_path).read_text()
    assert "ValueError: invalid literal" in text
    assert "what led to it" in text


def test_what_py4j_says_about_a_dead_jvm_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(level=logging.INFO)
    record = logging.LogRecord("root", logging.ERROR, "/x/py4j/java_gateway.py", 1, "Exception while sending command.", (), None)
    logging.getLogger().handle(record)
    assert capsys.readouterr().err == ""


def test_retries_of_the_http_client_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """clickhouse_connect lowers urllib3's own level when it is imported, which is after this."""
    logs.set_up(level=logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").warning("Retrying")
    assert capsys.readouterr().err == ""

"""Signals: the run is asked to stop, and no process is left if it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

HEAD = """
import subprocess, sys, time
from pathlib import Path
from headrace import shutdown as processes
processes.LIMIT_SECONDS = 1.0
child = subprocess.Popen(["sleep", "600"], process_group=0)
pid_file = Path(sys.argv[1])
pid_file.write_text(str(child.pid))
ready_file = pid_file.with_suffix(".ready")
"""
WILLING = """
with processes.GracefulShutdown(lambda name: print("heard", name, flush=True)) as stopper:
    ready_file.touch()
    print(stopper.run(lambda: stopper.event.wait(60) and "ended"))
"""
STUCK = """
with processes.GracefulShutdown() as stopper:
    ready_file.touch()
    stopper.run(lambda: time.sleep(600))
"""
FAILING = """
with processes.GracefulShutdown() as stopper:
    stopper.run(lambda: 1 / 0)
"""


def _started(body: str, tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    """The process and the pid of the child that it made, once that is there."""
    note = tmp_path / "child"
    script = textwrap.dedent(HEAD + body)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(note)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process, int(note.read_text())


def _has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("body", [WILLING, STUCK])
def test_a_signal_ends_the_process_with_exit_code_0_and_no_child_left(
    body: str, number: int, tmp_path: Path
) -> None:
    process, child = _started(body, tmp_path)
    _wait_for_handlers(process, tmp_path)
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert _has_ended(child)
    assert out == (f"heard {signal.Signals(number).name}\nended\n" if body is WILLING else "")


def test_an_error_in_the_work_is_raised_and_no_child_left(tmp_path: Path) -> None:
    process, child = _started(FAILING, tmp_path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "ZeroDivisionError" in err
    assert _has_ended(child)


def _wait_for_handlers(process: subprocess.Popen[str], tmp_path: Path) -> None:
    """Wait until the script is inside its `GracefulShutdown`.

    The kernel cannot tell: Python itself catches SIGINT from its start.
    """
    deadline = time.monotonic() + 60
    while not (tmp_path / "child.ready").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""The process of a script, as the worker sees it: it is started, called, waited for, and ended.

One process serves one stream of batches at a time and is reused for the next one. Any failure in it ends it.
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_CHILD = Path(__file__).with_name("sandbox.py")
_RUNTIME = Path(__file__).with_name("runtime.js")
_PATIENCE_S = 30.0
"""Added to twice a limit of processor time: how long a process may be silent by the clock on the wall."""
MOST_TEXT = 16 << 20
"""The maximum number of characters in the output of one row."""
_MOST_BYTES = 16 * MOST_TEXT


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """The limits of one call: seconds of processor time, bytes of engine memory, output rows per row."""

    seconds: float
    memory: int
    rows: int


@dataclass(frozen=True, slots=True)
class Program:
    """A script in plain JavaScript and its options. `shape` is JSON text, `fixed` milliseconds since 1970."""

    script: str
    shape: str
    deterministic: bool
    fixed: int | None


class StoppedError(Exception):
    """A script failed.

    `kind`: failed, threw, time, memory, died. `row` counts in the batch, -1 if unknown.
    """

    def __init__(self, kind: str, row: int, text: str, stack: str = "") -> None:
        super().__init__(text)
        self.kind, self.row, self.text, self.stack = kind, row, text, stack


class ScriptProcess:
    """One process. Not shared between threads."""

    def __init__(self, limits: ScriptLimits) -> None:
        self._limits = limits
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Nothing of the worker's environment, where secrets may be; times of day are UTC everywhere.
            env={"TZ": "UTC", "LC_ALL": "C.UTF-8"},
            cwd="/",
        )

    def open(self, program: Program) -> None:
        """Load a script into a fresh engine. Raises StoppedError if it does not load."""
        settings = {
            "fixed": program.fixed or 0,
            "deterministic": program.deterministic,
            "mostRows": self._limits.rows,
            "mostText": MOST_TEXT,
        }
        request = {
            "engine": _engine(),
            "runtime": _runtime(),
            "script": program.script,
            "shape": program.shape,
            "settings": json.dumps(settings),
            "memory": self._limits.memory,
            "seconds": self._limits.seconds,
        }
        self._ask(b"o", request)
        self._answer()

    def rows(self, text: str, *, one: bool = False) -> Iterator[bytes]:
        """Yield the output of a batch in parts.

        Raises StoppedError. With `one`, rows run one by one, so the row is known.
        """
        self._ask(b"b", {"text": text, "one": one})
        while (piece := self._answer()) is not None:
            yield piece

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with _broken_is_fine():
                    pipe.close()

    def _ask(self, tag: bytes, request: dict[str, object]) -> None:
        content = marshal.dumps(request)
        assert self._process.stdin is not None  # noqa: S101  asked for above
        try:
            self._process.stdin.write(tag + len(content).to_bytes(4, "little") + content)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death(-1) from None

    def _answer(self) -> bytes | None:
        """Return the next part, or None after the last one."""
        row = -1
        while True:
            head = self._read(5, row)
            size = int.from_bytes(head[1:], "little")
            if size > _MOST_BYTES:
                kind, reason = "died", "an answer of an impossible length"
                raise StoppedError(kind, row, reason)
            tag, content = head[:1], self._read(size, row)
            match tag:
                case b"r":
                    return content
                case b"o" | b"d":
                    return None
                case b"p":
                    row = int(content)
                case b"a":
                    continue
                case b"f":
                    result = json.loads(content)
                    raise StoppedError(*_describe_failure(result))
                case _:
                    raise _parse_stop(tag, content)

    def _read(self, size: int, row: int) -> bytes:
        assert self._process.stdout is not None  # noqa: S101  asked for above
        pipe = self._process.stdout.fileno()
        ready = select.poll()
        ready.register(pipe, select.POLLIN)
        parts: list[bytes] = []
        until = time.monotonic() + 2 * self._limits.seconds + _PATIENCE_S
        while size:
            if not ready.poll(max(0.0, until - time.monotonic()) * 1000):
                self._process.kill()
                kind, reason = "time", "it gave no sign of life"
                raise StoppedError(kind, row, reason)
            part = os.read(pipe, min(size, 1 << 20))
            if not part:
                raise self._death(row)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _death(self, row: int) -> StoppedError:
        code = self._process.wait()
        if code == -signal.SIGPROF:
            return StoppedError("time", row, "it was in native code, which only the kernel can stop")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return StoppedError("died", row, name)


def _describe_failure(answer: dict[str, object]) -> tuple[str, int, str, str]:
    return "failed", int(str(answer["row"])), str(answer["text"]), str(answer["stack"])


def _parse_stop(tag: bytes, content: bytes) -> StoppedError:
    row, _, text = content.decode("utf-8", "replace").partition("\n")
    message, _, stack = text.partition("\n")
    return StoppedError({b"t": "time", b"m": "memory"}.get(tag, "threw"), int(row), message, stack)


@contextmanager
def _broken_is_fine() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        return


@cache
def _engine() -> str:
    """Return the path of the engine's library.

    Raises ImportError with the package's name if it is not installed.
    """
    result = find_spec("_quickjs")
    if result is None or result.origin is None:
        msg = "quickjs"
        raise ImportError(msg, name="quickjs-ng")
    return result.origin


@cache
def _runtime() -> str:
    return _RUNTIME.read_text(encoding="utf-8")


_idle: dict[ScriptLimits, ScriptProcess] = {}


@contextmanager
def borrow_process(limits: ScriptLimits) -> Iterator[ScriptProcess]:
    """Yield a process for one stream. It is reused only if the block raises nothing."""
    vm = _idle.pop(limits, None) or ScriptProcess(limits)
    try:
        yield vm
    except BaseException:
        vm.end()
        raise
    if _idle.setdefault(limits, vm) is not vm:
        vm.end()


@atexit.register
def end_idle() -> None:
    """End the idle processes."""
    while _idle:
        _idle.popitem()[1].end()

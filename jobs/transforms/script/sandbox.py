"""The process that runs a script. Started by path with `python -I -S`, it imports nothing of Headrace.

It has one engine at a time, reads frames from standard input and answers on standard output. Before it loads
a script it gives up what a fault of the engine could be used for: it can open no file, write none and start
no process. The kernel bounds its memory and the time of one step (SIGPROF ends the process, even in a loop of
native code).

Frames are a tag, four bytes of length, and the content. Input is `marshal` from the parent; output is text.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec

TYPE_CHECKING = False  # `typing` is slow to import, and nothing here needs it at run time
if TYPE_CHECKING:
    from typing import Any

STACK = 1 << 20  # bytes of native stack that a script may use; the thread has 8 MiB
SLICE_MS = 20
GRACE_S = 0.5
"""How much later than the engine the kernel ends a step."""
_ROOM = 256 << 20  # bytes in addition to the engine's: the interpreter and copies of texts in transit
_ALL_ROWS = 1 << 30


class ScriptEngine:
    """One script in one virtual machine."""

    def __init__(self, quickjs: Any, request: dict[str, Any]) -> None:
        self._seconds = request["seconds"]
        self._context = quickjs.Context()
        self._error = quickjs.JSException
        self._context.set_memory_limit(request["memory"])
        self._context.set_max_stack_size(STACK)
        runtime = self._run_timed(lambda: self._context.eval(request["runtime"]))
        self._command = self._run_timed(lambda: runtime(request["settings"]))
        function = self._function(request["script"])
        self._run_timed(lambda: self._command("start", function))
        self._run_timed(lambda: self._command("shape", request["shape"]))

    def _function(self, script: str) -> Any:
        """Return `process` or `invoke` of the script, the script itself if it is a function, or None."""
        wrong = result = None
        try:
            # The line before the script keeps its own line numbers readable: they are one too high.
            self._run_timed(lambda: self._context.eval('"use strict";\n' + script + "\n;undefined"))
            find = (
                "typeof process === 'function' ? process : typeof invoke === 'function' ? invoke : undefined"
            )
            result = self._run_timed(lambda: self._context.eval(find))
            if result is not None:
                return result
        except self._error as error:
            wrong = error
        if wrong is None or str(wrong).startswith("SyntaxError"):
            alone = (
                '"use strict";((one) => typeof one === "function" ? one : undefined)(\n'
                + script.rstrip().rstrip(";")
                + "\n)"
            )
            try:
                result = self._run_timed(lambda: self._context.eval(alone))
            except self._error as error:
                if not str(error).startswith("SyntaxError"):
                    raise
                result = None
        if result is None and wrong is not None:
            raise wrong
        return result

    def rows(self, text: str, one: bool) -> None:
        """Send the output of a batch, and signs of life in between, because many rows may take long.

        With `one`, send the number of each row before it runs.
        """
        self._run_timed(lambda: self._command("load", text))
        state = "more"
        while state in ("more", "full"):
            if one:
                send(b"p", str(self._command("at")).encode())
            state = self._run_timed(lambda: self._command("step", SLICE_MS, 1 if one else _ALL_ROWS))
            if state == "failed":
                send(b"f", self._command("failure").encode())
                return
            if state == "more":
                send(b"a", b"")
            else:
                send(b"r", self._run_timed(lambda: self._command("take")).encode())
        send(b"d", b"")

    def _run_timed(self, act: Any) -> Any:
        # A step may begin late in its slice, and no row is to be cut short for that.
        limit = self._seconds + SLICE_MS / 1000
        self._context.set_time_limit(limit)
        signal.setitimer(signal.ITIMER_PROF, limit + GRACE_S)
        try:
            return act()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def where(self) -> int:
        """Return the number of the current row."""
        self._context.set_memory_limit(_ROOM)
        return int(self._command("at"))


def read(size: int) -> bytes:
    """Exactly so many bytes; the process ends with its parent."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def send(tag: bytes, content: bytes) -> None:
    """One frame to the parent."""
    view = memoryview(tag + len(content).to_bytes(4, "little") + content)
    while view:
        view = view[os.write(1, view) :]


def confine(memory: int) -> None:
    """Give up files, processes, and memory beyond what the engine may use."""
    with (
        open("/proc/self/statm", "rb")
        if os.path.exists("/proc/self/statm")
        else open(os.devnull, "rb") as source
    ):
        pages = int((source.read().split() or [b"0"])[0])
    room = pages * resource.getpagesize() + memory + _ROOM
    for what, limit in (
        ("RLIMIT_AS", room if pages else -1),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NPROC", 0),
        ("RLIMIT_NOFILE", 0),
    ):
        if limit >= 0:
            try:
                resource.setrlimit(getattr(resource, what), (limit, limit))
            except (ValueError, OSError):
                continue  # a limit that this system does not have is not the only one


def report_failure(error: BaseException, engine: ScriptEngine | None) -> None:
    """Send why a step failed, with the row if it is known.

    The tag is `t` for time, `m` for memory, `x` for an exception of the script.
    """
    text = str(error)
    first = text.split("\n", 1)[0]
    if "InternalError: interrupted" in first:
        tag = b"t"
    elif isinstance(error, MemoryError) or "out of memory" in first or first in ("null", ""):
        tag = b"m"
    else:
        tag = b"x"
    try:
        row = engine.where() if engine is not None else -1
    except BaseException:  # noqa: BLE001  the engine is spent; the parent finds the row by itself
        row = -1
    send(tag, f"{row}\n{text[:4000]}".encode("utf-8", "replace"))


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quickjs = None
    engine: ScriptEngine | None = None
    while True:
        tag, size = read(1), int.from_bytes(read(4), "little")
        request = marshal.loads(read(size))  # noqa: S302  from the parent, which started this process
        try:
            if tag == b"o":
                engine = None
                if quickjs is None:
                    loader = ExtensionFileLoader("_quickjs", request["engine"])
                    quickjs = module_from_spec(ModuleSpec("_quickjs", loader, origin=request["engine"]))
                    loader.exec_module(quickjs)
                    confine(request["memory"])
                engine = ScriptEngine(quickjs, request)
                send(b"o", b"")
            elif engine is not None:
                engine.rows(request["text"], request["one"])
        except BaseException as error:  # noqa: BLE001  the parent is report_failure, and ends this process
            report_failure(error, engine)


main()

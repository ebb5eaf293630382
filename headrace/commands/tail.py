"""`headrace tail`: rows of a running pipeline as they pass, asked from the run itself; its address is in the ledger."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

from rich.console import Console

from headrace.connectors.ledger_factory import open_ledger
from headrace.console import WIDTH, err, out
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import PipelineStateError, UserError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.model import graph
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.protocol.ledger import Ledger
from headrace.pipeline.protocol.ledger.owner import format_owner
from headrace.pipeline.suggestions import suggest_closest

_ANSWER_SECONDS = 10.0
_SILENCE_SECONDS = 60.0
"""The run sends a sign of life every 15 s: one that is silent for so long is gone."""
_LOOK_SECONDS = 0.5
_CELL = 24


def tail(path: Path, node: str | None, *, as_json: bool, rows: int | None) -> None:
    """Prints rows until `rows` have come, the pipeline ends, or Ctrl-C.

    Raises PipelineStateError where the pipeline does not run here or does not show its rows, UserError for a node that it does not have,
    or that gives no rows.
    """
    file = load_pipeline(path)
    names = list(file.model.nodes())
    if node is not None and node not in names:
        msg = f"there is no node `{node}` in {path}{suggest_closest(node, names)}"
        raise UserError(msg, hint=f"There are {', '.join(names)}.")
    if node in graph.dynamic_tables(file.model):
        filled_by = ", ".join(graph.inputs_of(file.model, node))
        hint = f"Look at the node that fills it: {filled_by}." if filled_by else "Look at a node that asks it."
        msg = f"`{node}` is a dynamic table: no rows leave it"
        raise UserError(msg, hint=hint)
    console, shown = out(), 0
    printer = Lines(console, names=node is None)
    try:
        for name, row in _rows(_address(file.name, path), [node] if node else []):
            if as_json:
                console.print(json.dumps({"topology_node_key": name, "data": row}, ensure_ascii=False), markup=False, soft_wrap=True)
            else:
                printer.show(name, row)
            shown += 1
            if shown == rows:
                return
    except KeyboardInterrupt:
        return
    err().print(f"{file.name} has ended", markup=False)


def _address(name: str, path: Path) -> str:
    """Where the run answers, by its lease in the ledger."""
    ledger = open_ledger(load_settings())
    try:
        holder = _holder(ledger, name, path)
    finally:
        ledger.close()
    if not holder.get("inspect") or not holder.get("admin"):
        msg = f"`{name}` runs ({format_owner(holder)}), and does not show its rows"
        hint = "Set HEADRACE__LIVE_DATA_INSPECT_ENABLED=true, or live_data_inspect_enabled: true in config.yaml, and start it again."
        raise PipelineStateError(msg, hint=hint)
    address = holder["admin"]
    if urlsplit(address).hostname in ("127.0.0.1", "::1", "localhost") and holder.get("host") != socket.gethostname():
        msg = f"`{name}` runs on host {holder.get('host')}, and shows its rows there only ({address})"
        raise PipelineStateError(msg, hint="Run this command there, or set admin_api_host for the run to an address that others reach.")
    return address


def _holder(ledger: Ledger, name: str, path: Path) -> Json:
    """Who runs the pipeline. Waits while it starts: a run writes down its JVM and its address when it is ready."""
    told = False
    while (state := ledger.state(name)) is not None and state.holder is not None:
        if "jvm" in state.holder:
            return state.holder
        if not told:
            err().print(f"{name} is starting, rows come when it has", markup=False)
            told = True
        time.sleep(_LOOK_SECONDS)
    msg = f"`{name}` is not running"
    raise PipelineStateError(msg, hint=f"Start it with: headrace run {path}. `headrace status` shows what runs.")


def _rows(address: str, nodes: list[str]) -> Iterator[tuple[str, Json]]:
    """(node, row) as they come, until the run ends. Raises PipelineStateError where nobody answers, or answers no."""
    at = urlsplit(address)
    connection = http.client.HTTPConnection(at.hostname or "", at.port or 80, timeout=_ANSWER_SECONDS)
    try:
        try:
            connection.request("GET", f"/admin/live-data?topology_node_keys={quote(','.join(nodes))}")
            answer = connection.getresponse()
        except OSError as error:
            msg = f"the run does not answer at {address}: {error.strerror or type(error).__name__}"
            raise PipelineStateError(msg, hint="It may have ended in this moment; `headrace status` shows what runs.") from error
        if answer.status != http.HTTPStatus.OK:
            said = _said(answer)
            msg = f"the run answers {answer.status}: {said.get('message', answer.reason)}"
            raise PipelineStateError(msg, hint=f"It has the nodes {', '.join(said['nodes'])}." if said.get("nodes") else "")
        if connection.sock is not None:
            connection.sock.settimeout(_SILENCE_SECONDS)
        yield from _events(answer)
    finally:
        connection.close()


def _said(answer: http.client.HTTPResponse) -> Json:
    try:
        return json.loads(answer.read(100_000))
    except ValueError:
        return {}


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Json]]:
    try:
        for line in answer:
            if line.startswith(b"data:"):
                found = json.loads(line[5:])
                yield found["topology_node_key"], found["data"]
    except (OSError, http.client.HTTPException):
        return


class Lines:
    """Rows as lines of a table that has no end: names of columns where they change, cells cut to the width of the screen."""

    def __init__(self, console: Console, *, names: bool) -> None:
        self._console, self._names = console, names
        self._width = max(40, console.width or WIDTH)
        self._head: list[str] = []
        self._widths: list[int] = []
        self._node = ""

    def show(self, node: str, row: Json) -> None:
        """One row."""
        cells = [_cell(value) for value in row.values()]
        if list(row) != self._head or (self._names and node != self._node):
            self._head, self._node = list(row), node
            self._widths = [min(_CELL, max(len(name), len(cell))) for name, cell in zip(row, cells, strict=True)]
            if self._names:
                self._console.print(f"== {node}", markup=False, style="bold")
            self._console.print(self._line(self._head), markup=False, style="dim", overflow="crop", no_wrap=True)
        self._console.print(self._line(cells), markup=False, overflow="crop", no_wrap=True)

    def _line(self, cells: list[str]) -> str:
        """As many cells as there is room for; `+3` says that three more do not fit."""
        line = ""
        for at, (cell, width) in enumerate(zip(cells, self._widths, strict=True)):
            shown = (cell if len(cell) <= width else cell[: width - 1] + "…").ljust(width)
            left = len(cells) - at - 1
            if at and len(line) + 2 + len(shown.rstrip()) + (len(f"  +{left}") if left else 0) > self._width:
                return f"{line}  +{left + 1}"
            line += ("  " if at else "") + shown
        return line.rstrip()


def _cell(value: object) -> str:
    text = "∅" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\n", "⏎").replace("\r", "").replace("\t", " ")

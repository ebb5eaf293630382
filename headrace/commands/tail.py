"""`headrace tail`: print rows of a running pipeline. The run serves them at the address in its lease."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

from rich.console import Console

from headrace.connectors.ledger.factory import open_ledger
from headrace.console import WIDTH, stderr_console, stdout_console
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
"""The run sends a keep-alive every 15 s, so after this time without data it has ended."""
_POLL_SECONDS = 0.5
_CELL_WIDTH = 24


def tail(path: Path, node: str | None, *, as_json: bool, rows: int | None) -> None:
    """Print rows until `rows` are printed, the pipeline ends, or Ctrl-C.

    Raise PipelineStateError if the pipeline does not run or does not serve its rows. Raise UserError for an
    unknown node, and for a node without rows.
    """
    file = load_pipeline(path)
    names = list(file.model.nodes())
    if node is not None and node not in names:
        msg = f"there is no node `{node}` in {path}{suggest_closest(node, names)}"
        raise UserError(msg, hint=f"There are {', '.join(names)}.")
    if node in graph.dynamic_tables(file.model):
        filled_by = ", ".join(graph.inputs_of(file.model, node))
        hint = f"Use the node that fills it: {filled_by}." if filled_by else "Use a node that looks it up."
        msg = f"`{node}` is a dynamic table, which has no output rows"
        raise UserError(msg, hint=hint)
    console, printed = stdout_console(), 0
    printer = RowPrinter(console, names=node is None)
    try:
        for name, row in _read_rows(_find_address(file.name, path), [node] if node else []):
            if as_json:
                console.print(
                    json.dumps({"topology_node_key": name, "data": row}, ensure_ascii=False),
                    markup=False,
                    soft_wrap=True,
                )
            else:
                printer.show(name, row)
            printed += 1
            if printed == rows:
                return
    except KeyboardInterrupt:
        return
    stderr_console().print(f"{file.name} has ended", markup=False)


def _find_address(name: str, path: Path) -> str:
    """Return the address of the run's endpoint, from its lease in the ledger."""
    ledger = open_ledger(load_settings())
    try:
        owner = _find_owner(ledger, name, path)
    finally:
        ledger.close()
    if not owner.get("inspect") or not owner.get("admin"):
        msg = f"`{name}` runs ({format_owner(owner)}), but does not serve its rows"
        hint = (
            "Set HEADRACE__LIVE_DATA_INSPECT_ENABLED=true, or live_data_inspect_enabled: true in"
            " config.yaml, and restart it."
        )
        raise PipelineStateError(msg, hint=hint)
    address = owner["admin"]
    if (
        urlsplit(address).hostname in ("127.0.0.1", "::1", "localhost")
        and owner.get("host") != socket.gethostname()
    ):
        msg = f"`{name}` runs on host {owner.get('host')}, and serves its rows only there ({address})"
        raise PipelineStateError(
            msg,
            hint="Run this command there, or set admin_api_host for the run to an address that this host"
            " can reach.",
        )
    return address


def _find_owner(ledger: Ledger, name: str, path: Path) -> Json:
    """Return the owner of the lease.

    Wait while the run starts: it stores its JVM and address when it is ready.
    """
    is_reported = False
    while (state := ledger.state(name)) is not None and state.holder is not None:
        if "jvm" in state.holder:
            return state.holder
        if not is_reported:
            stderr_console().print(f"{name} is starting; waiting for rows", markup=False)
            is_reported = True
        time.sleep(_POLL_SECONDS)
    msg = f"`{name}` is not running"
    raise PipelineStateError(
        msg, hint=f"Start it with: headrace run {path}. `headrace status` lists the pipelines."
    )


def _read_rows(address: str, nodes: list[str]) -> Iterator[tuple[str, Json]]:
    """Yield (node, row) until the run ends. Raise PipelineStateError if it does not answer or refuses."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=_ANSWER_SECONDS)
    try:
        try:
            connection.request("GET", f"/admin/live-data?topology_node_keys={quote(','.join(nodes))}")
            response = connection.getresponse()
        except OSError as error:
            msg = f"the run does not answer at {address}: {error.strerror or type(error).__name__}"
            raise PipelineStateError(
                msg, hint="It may have just ended; `headrace status` lists the pipelines."
            ) from error
        if response.status != http.HTTPStatus.OK:
            error_body = _read_error(response)
            msg = f"the run answers {response.status}: {error_body.get('message', response.reason)}"
            raise PipelineStateError(
                msg,
                hint=f"It has the nodes {', '.join(error_body['nodes'])}." if error_body.get("nodes") else "",
            )
        if connection.sock is not None:
            connection.sock.settimeout(_SILENCE_SECONDS)
        yield from _read_events(response)
    finally:
        connection.close()


def _read_error(response: http.client.HTTPResponse) -> Json:
    try:
        return json.loads(response.read(100_000))
    except ValueError:
        return {}


def _read_events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Json]]:
    try:
        for line in response:
            if line.startswith(b"data:"):
                event = json.loads(line[5:])
                yield event["topology_node_key"], event["data"]
    except (OSError, http.client.HTTPException):
        return


class RowPrinter:
    """Prints rows as a table without end.

    Repeats the header if the columns change, and cuts cells to the width.
    """

    def __init__(self, console: Console, *, names: bool) -> None:
        self._console, self._names = console, names
        self._width = max(40, console.width or WIDTH)
        self._head: list[str] = []
        self._widths: list[int] = []
        self._node = ""

    def show(self, node: str, row: Json) -> None:
        """Print a row."""
        cells = [_format_cell(value) for value in row.values()]
        if list(row) != self._head or (self._names and node != self._node):
            self._head, self._node = list(row), node
            self._widths = [
                min(_CELL_WIDTH, max(len(name), len(cell))) for name, cell in zip(row, cells, strict=True)
            ]
            if self._names:
                self._console.print(f"== {node}", markup=False, style="bold")
            self._console.print(
                self._format_line(self._head), markup=False, style="dim", overflow="crop", no_wrap=True
            )
        self._console.print(self._format_line(cells), markup=False, overflow="crop", no_wrap=True)

    def _format_line(self, cells: list[str]) -> str:
        """Return as many cells as fit. `+3` means that three more do not fit."""
        line = ""
        for index, (cell, width) in enumerate(zip(cells, self._widths, strict=True)):
            text = (cell if len(cell) <= width else cell[: width - 1] + "…").ljust(width)
            remaining = len(cells) - index - 1
            if (
                index
                and len(line) + 2 + len(text.rstrip()) + (len(f"  +{remaining}") if remaining else 0)
                > self._width
            ):
                return f"{line}  +{remaining + 1}"
            line += ("  " if index else "") + text
        return line.rstrip()


def _format_cell(value: object) -> str:
    text = (
        "∅" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )
    return text.replace("\n", "⏎").replace("\r", "").replace("\t", " ")

"""A service to try the `handler` transform and the `http` source with: gives every row a score.

`python examples/scores.py`, and it is at port 8099.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PORT = 8099
ROWS, PAGE = 250, 100


class Scores(BaseHTTPRequestHandler):
    """Takes a row or an array of them, and gives an array back, each with a `score` more.

    A GET request gives a page of rows with scores, and the `offset` of the next page.
    """

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """One request."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rows = body if isinstance(body, list) else [body]
        self._answer([_scored(row) for row in rows])

    def do_GET(self) -> None:
        """One page."""
        first = int(parse_qs(urlsplit(self.path).query).get("offset", ["0"])[0])
        end = min(first + PAGE, ROWS)
        rows = [_scored({"id": number}) for number in range(first, end)]
        self._answer({"rows": rows, "next": end if end < ROWS else None})

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class calls it so
        """Says nothing."""
        del format, args


def _scored(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "score": (row["id"] % 10) / 10}


def server(port: int = PORT) -> ThreadingHTTPServer:
    """Return the service, ready to `serve_forever`. Port 0 takes a free port."""
    return ThreadingHTTPServer(("127.0.0.1", port), Scores)


if __name__ == "__main__":
    server().serve_forever()

"""A service to try the `handler` transform with: gives every row a score.

`python examples/scores.py`, and it is at port 8099.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8099


class Scores(BaseHTTPRequestHandler):
    """Takes a row or an array of them, and gives an array back, each with a `score` more."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """One request."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rows = asked if isinstance(asked, list) else [asked]
        body = json.dumps([{**row, "score": (row["id"] % 10) / 10} for row in rows]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class calls it so
        """Says nothing."""
        del format, args


def server(port: int = PORT) -> ThreadingHTTPServer:
    """Return the service, ready to `serve_forever`. Port 0 takes a free port."""
    return ThreadingHTTPServer(("127.0.0.1", port), Scores)


if __name__ == "__main__":
    server().serve_forever()

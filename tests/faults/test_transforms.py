"""kill -9 with a service, a script and a dynamic table between sources and sinks.

What was asked once is written everywhere.

The service answers otherwise every time it is asked: a running number per row. Whatever dies, both sinks must
hold the same number for the same row, next to rows that are worked out without Headrace.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
from helpers.depth import FULL
from helpers.pipeline_world import HYBRID_SOURCE, World
from pyspark.sql import SparkSession

PIPELINE = (
    HYBRID_SOURCE
    + """\
transforms:
  asked: {{type: handler, from: src, url: "{url}", schema_override: {{ticket: Int64}}, batch_size: {batch}}}
  made:
    type: script
    from: asked
    language: typescript
    script: |
      function process(row: {{id: number, name: string, amount: number, ticket: number}}) {{
        return {{...row, name: row.name === null ? null : row.name.toUpperCase(), amount: row.amount * 2}};
      }}
  even: {{type: dynamic_table, backend_type: InMemory, backend_entity_name: even, sql: "select name from made where id % 2 = 0"}}
  shaped:
    type: sql
    sql: "select id, day, name, amount, ticket, dynamic_table_check('even', name) as known from made"
sinks:
  pg: {{type: postgres, from: shaped, table: target}}
  lake: {{type: delta, from: shaped, path: {lake}}}
partitions: {{column: day, every: month, start: 2024-01, end: 2024-04, history_end: 2024-03-01}}
epoch: {{interval: 0s, stream_rows: 250, history_rows: 1000}}
"""
)


@dataclass
class Service:
    """A real HTTP server in this process. Every third answer is a failure that passes by itself."""

    url: str = ""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    requests: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    keys: dict[str, set[str]] = field(default_factory=dict)
    """By idempotency key: the bodies that came with it."""


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                made.keys.setdefault(self.headers["Idempotency-Key"], set()).add(body.decode())
                busy = next(made.requests) % 3 == 0
                rows: list[dict[str, Any]] = [
                    {**row, "ticket": next(made.numbers)} for row in json.loads(body)
                ]
            answer = b"busy" if busy else json.dumps(rows).encode()
            self.send_response(503 if busy else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
            """The test's output stays its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}/number"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


# (point, nth, who dies). Epochs of this world: 1 to 4 are history (two windows), 5 to 8 stream.
STEPS = [
    ("staging", 2, "driver"),
    ("staging", 6, "group"),
    ("staged", 3, "driver"),
    ("staged", 6, "group"),
    ("memory-filled", 2, "group"),
    ("memory-filled", 6, "driver"),
    ("postgres-only", 2, "driver"),
    ("postgres-only", 6, "group"),
    ("delta-only", 3, "group"),
    ("delta-only", 7, "jvm"),
    ("sinks-written", 6, "group"),
    ("committed", 5, "driver"),
]
SAMPLE = [("delta-only", 3, "group")]
"""With fewer epochs and requests: 1 and 2 are history."""


@pytest.mark.parametrize(("point", "nth", "who"), STEPS if FULL else SAMPLE)
def test_both_sinks_hold_what_the_service_said_once(
    world: World, service: Service, spark: SparkSession, point: str, nth: int, who: str
) -> None:
    batch = 100 if FULL else 500
    world.file.write_text(PIPELINE.format(**world.file_values, url=service.url, batch=batch))
    if not FULL:
        world.enlarge_epochs()
    assert world.crash(point, nth, who) != 0
    assert world.run_here(spark).caught_up
    world.check(spark)
    with psycopg.connect(world.conninfo) as connection:
        in_postgres = connection.execute("SELECT id, ticket, known FROM target ORDER BY id").fetchall()
    lake = spark.read.format("delta").load(str(world.lake)).select("id", "ticket", "known").toArrow()
    assert in_postgres == sorted(zip(*[column.to_pylist() for column in lake.columns], strict=True))
    tickets = [ticket for _, ticket, _ in in_postgres]
    assert len(set(tickets)) == len(tickets)
    assert all(known == (key % 2 == 0) for key, _, known in in_postgres)  # no name is two keys'
    assert all(len(bodies) == 1 for bodies in service.keys.values()), (
        "two requests with one idempotency key differ"
    )

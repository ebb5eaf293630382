"""A run in its own process: it takes the lease, prints that, and commits epochs until it is stopped.

Started by the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.protocol.coordinator import EpochCoordinator
from headrace.pipeline.protocol.epochs import CommitRecord, Phase, WriteCounts
from headrace.pipeline.protocol.ledger import describe_owner, describe_process, open_sqlite


class FileSink:
    """One JSON file as a target: the record alone, replaced in one rename."""

    supports_fencing = True
    stores_record = True
    is_idempotent = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, generation):
        pass

    def record(self):
        return CommitRecord.from_json(json.loads(self.path.read_text())) if self.path.exists() else None

    def find_conflicting_record(self):
        return None

    def refuse_rivals(self):
        pass

    def release_rivals(self):
        return []

    def register(self, record):
        self.put(record)
        return record

    def truncate(self) -> None:
        raise NotImplementedError

    def read_row_count(self):
        return None

    def put(self, record):
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(record.to_json()))
        part.replace(self.path)

    def close(self):
        pass


def main(folder: Path, ttl: float, jvm: str) -> None:
    say = lambda **words: print(json.dumps(words), flush=True)  # noqa: E731
    ledger = open_sqlite(folder / "ledger.db")
    holder = describe_owner("test", "process")
    try:
        lane = EpochCoordinator.open(
            ledger,
            "orders",
            "main",
            holder,
            lambda _, body: {name: FileSink(folder / name) for name in body["sinks"]},
            {"sinks": ["a"]},
            "h1",
            initial={"k": 0},
            ttl=ttl,
        )
        if jvm:
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            ledger.set_holder(lane.lease, holder | {"jvm": describe_process(child.pid)})
            say(jvm=child.pid)
        say(opened=lane.generation)
        while True:
            if not lane.has_open_epoch:
                lane.plan({"k": lane.position["k"] + 1}, Phase.LIVE)
            counts, sink, pending = WriteCounts(1, 1, 0, 0), lane.sinks["a"], lane.begin()
            record = sink.record()
            assert isinstance(sink, FileSink)
            assert pending is not None
            assert record is not None
            if pending.sinks:
                sink.put(record.after_epoch(pending.plan, lane.generation, counts))
            lane.commit({"a": counts} if pending.sinks else {})
            say(committed=lane.committed)
            time.sleep(
                0.2
            )  # so that a test that stops this process does not stop it inside a transaction of SQLite
    except HeadraceError as error:
        say(error=type(error).__name__, message=error.message)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")

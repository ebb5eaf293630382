"""Packages with plugins, installed as a folder on the path.

A module, and the dist-info that pip would leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.pipeline.config.sections import SparkSettings, SqliteBackend, StateBackend
from headrace.pipeline.config.settings import Settings, load_settings

ACME = '''
from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, SecretStr

from headrace import (
    ArrowSink, ArrowSource, ArrowStream, ArrowTransform, ArrowTransactionalSink, Options, Plugin, SideOutput, SourceCapabilities, fan_out,
)


class NumbersOptions(Options):
    upto: int = Field(description="The last number.")
    step: int = 4
    batch_size: int = 100


class Numbers(ArrowSource):
    capabilities = SourceCapabilities(bounded=True, stable_snapshot=True, without_spark=True)

    def columns(self):
        return pa.schema([("id", pa.int64()), ("word", pa.string())])

    def list_splits(self):
        starts = range(1, self.options.upto + 1, self.options.step)
        return [{"first": first, "last": min(first + self.options.step - 1, self.options.upto), "rows": self.options.step} for first in starts]

    def batches(self, split):
        ids = list(range(split["first"], split["last"] + 1))
        yield pa.RecordBatch.from_pydict({"id": ids, "word": [f"w{id}" for id in ids]}, schema=self.columns())


class TicksOptions(Options):
    path: str = Field(description="A file with the number of ticks that there are.")


class Ticks(ArrowStream):
    """Partition 0 has as many ticks as the file says."""

    def columns(self):
        return pa.schema([("n", pa.int64())])

    def partition_ends(self):
        return {"0": int(Path(self.options.path).read_text())}

    def batches(self, partition, start, end):
        yield pa.RecordBatch.from_pydict({"n": list(range(start, end))}, schema=self.columns())


class TwiceOptions(Options):
    times: int = 2


class Twice(ArrowTransform):
    """Every row several times, with its copy's number; ids that are divisible by 5 are left out."""

    def columns(self, payload):
        return payload.append(pa.field("copy", pa.int32()))

    def process(self, batch):
        ids = batch.column("id").to_pylist()
        rows = [row for row, id in enumerate(ids) if id % 5 for _ in range(self.options.times)]
        made = fan_out(batch, rows)
        copies = pa.array([n % self.options.times for n in range(len(rows))], pa.int32())
        return made.append_column("copy", copies)


def shout(words, marks):
    return pc.binary_join_element_wise(pc.utf8_upper(words), pc.binary_repeat(pa.array(["!"] * len(words)), marks), "")


class FolderOptions(Options):
    path: str
    token: SecretStr
    primary_key: list[str] = []


class Folder(ArrowTransactionalSink):
    """One file holds rows and note: replacing it is the atomic act."""

    @property
    def _file(self):
        return Path(self.options.path) / "target.json"

    def _read(self):
        return json.loads(self._file.read_text()) if self._file.exists() else {"notes": {}, "rows": []}

    def load_note(self):
        return self._read()["notes"].get(self.note_key)

    target_id = "rows"

    def count_rows(self):
        return len(self._read()["rows"])

    def compare_and_swap(self, expected, note, rows):
        assert self.options.token.get_secret_value() == "open sesame"
        target = self._read()
        if target["notes"].get(self.note_key) != expected:
            return False
        target["notes"][self.note_key] = note
        if rows is not None:
            for row in rows.to_pylist():
                op = row.pop("_gs_op")
                if self.key:
                    target["rows"] = [one for one in target["rows"] if any(one[key] != row[key] for key in self.key)]
                if op != "d":
                    target["rows"].append(row)
        temporary = self._file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(target))
        temporary.replace(self._file)
        return True


class LinesOptions(Options):
    path: str


class Lines(ArrowSink):
    def send(self, batch, epoch):
        with open(self.options.path, "a") as file:
            for row in batch.to_pylist():
                file.write(json.dumps({"epoch": epoch, **row}) + "\\n")


class DaysOptions(Options):
    upto: int = 9


class Days:
    """@UPTO@ in a file is a number of the settings."""

    def __init__(self, context):
        self.options = context.options

    def process(self, text):
        return text.replace("@UPTO@", str(self.options.upto))


def header(context):
    return lambda text: "# written by a tool\\n" + text


class CountOptions(Options):
    path: str


class Count(SideOutput):
    def epoch(self, plan, rows):
        self.context.metrics.counter("rows_seen", 1)
        folder = Path(self.options.path) / self.context.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{plan.number}").write_text(str(rows.count()))


numbers = Plugin("acme.numbers", "source", Numbers, NumbersOptions)
ticks = Plugin("acme.ticks", "source", Ticks, TicksOptions)
twice = Plugin("acme.twice", "transform", Twice, TwiceOptions, labels={"team": "acme"})
shouting = Plugin("acme.shout", "function", shout, arguments=("string", "int64"), returns="string")
folder = Plugin("acme.folder", "sink", Folder, FolderOptions)
lines = Plugin("acme.lines", "sink", Lines, LinesOptions)
days = Plugin("acme.days", "preprocessor", Days, DaysOptions)
heading = Plugin("acme.heading", "preprocessor", header)
count = Plugin("acme.count", "side_output", Count, CountOptions)
'''
ENTRIES = {
    "acme.numbers": "numbers",
    "acme.ticks": "ticks",
    "acme.twice": "twice",
    "acme.shout": "shouting",
    "acme.folder": "folder",
    "acme.lines": "lines",
    "acme.days": "days",
    "acme.heading": "heading",
    "acme.count": "count",
}


def install(folder: Path, module: str, text: str, entries: Mapping[str, str], version: str = "1.0") -> Path:
    """Writes a module and what pip would write beside it. `entries` are ids and names in the module."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(text)
    name = module.replace("_", "-")
    about = folder / f"{module}-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = "".join(f"{plugin} = {module}:{attribute}\n" for plugin, attribute in entries.items())
    (about / "entry_points.txt").write_text(f"[headrace.plugins]\n{points}")
    return folder


def settings(folder: Path) -> Settings:
    """Return settings with a ledger of this folder and the Spark of the tests."""
    return load_settings(
        home=folder / "home",
        state_backend=StateBackend(sqlite=SqliteBackend(path=folder / "ledger.db")),
        spark=SparkSettings(master="local[2]"),
    )

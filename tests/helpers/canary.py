"""Finds a word in all output of a program, in any encoding."""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import psutil


def forms(word: str) -> dict[str, bytes]:
    """The word as it is, in JSON, percent-encoded, and as base64 wherever it begins within three bytes."""
    raw = word.encode()
    result = {
        "raw": raw,
        "in JSON": json.dumps(word)[1:-1].encode(),
        "percent-encoded": b"".join(b"%%%02X" % byte for byte in raw),
    }
    result["in UTF-16"] = word.encode("utf-16-le")
    for shift in range(3):
        # Without the characters at both ends that hold bits of the neighbours too.
        text = base64.b64encode(b"\0" * shift + raw)
        inner = text[
            {0: 0, 1: 2, 2: 3}[shift] : len(text)
            - {0: 0, 1: 3, 2: 2}[(shift + len(raw)) % 3]
            - (4 if text.endswith(b"=") else 0)
        ]
        result[f"in base64, shifted by {shift}"] = inner
        result[f"in base64 for addresses, shifted by {shift}"] = inner.replace(b"+", b"-").replace(b"/", b"_")
    return result


def find_words_in(words: Mapping[str, str], where: Mapping[str, bytes]) -> list[str]:
    """`name (raw) in place` for every word that stands in one of the places."""
    looked_for = {name: forms(word) for name, word in words.items()}
    return sorted(
        f"{name} ({form}) in {place}"
        for place, content in where.items()
        for name, shapes in looked_for.items()
        for form, shape in shapes.items()
        if shape in content or (form == "percent-encoded" and shape.lower() in content.lower())
    )


def left_in(folder: Path, *, without: tuple[Path, ...] = ()) -> dict[str, bytes]:
    """All bytes of a folder by the file's path, packed ones unpacked too, and each blob of a SQLite file (its WAL is a file itself)."""
    result: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(path.is_relative_to(other) for other in without):
            name = str(path.relative_to(folder))
            content = path.read_bytes()
            result[name] = content
            if content.startswith(b"\x1f\x8b"):
                result[f"{name} unpacked"] = gzip.decompress(content)
            if content.startswith(b"SQLite format 3\0"):
                result[f"{name} cells"] = b"\0".join(_cells(path))
    return result


def _cells(path: Path) -> Iterator[bytes]:
    """Every text and blob of a database, blobs unpacked where they are packed."""
    with closing(sqlite3.connect(path)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                for cell in row:
                    if isinstance(cell, str):
                        yield cell.encode()
                    elif isinstance(cell, bytes):
                        yield cell
                        try:
                            yield zlib.decompress(cell)
                        except zlib.error:
                            continue


class Watched:
    """Runs commands and keeps what they say, and the command lines of all processes that they start."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, dict(env)
        self.output: dict[str, bytes] = {}
        self.lines: set[str] = set()

    def run(self, name: str, *command: str, **env: str) -> tuple[int, str]:
        """Exit code and all that was said. `name` tells this run from others."""
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.env | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(process.pid, done))
        watcher.start()
        try:
            out, _ = process.communicate(timeout=400)
        finally:
            done.set()
            watcher.join()
            if process.poll() is None:
                process.kill()
        self.output[f"output of {name}"] = out
        return process.returncode, out.decode(errors="replace")

    def _watch(self, pid: int, done: threading.Event) -> None:
        while not done.is_set():
            try:
                top = psutil.Process(pid)
                for process in [top, *top.children(recursive=True)]:
                    self.lines.add("\0".join(process.cmdline()))
            except psutil.Error:
                pass
            time.sleep(0.05)

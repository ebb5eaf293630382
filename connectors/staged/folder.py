"""Folders of stored rows: each is a snapshot, created in one step and never changed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors import splitting
from headrace.connectors.durable_files import sync_to_disk
from headrace.pipeline.errors import UserError

_FIRST = "00000.parquet"
_FOLDER = re.compile(r"\.?([0-9a-f]+)_(\d+)_.*")


def store_rows(root: Path, token: str, schema: pa.Schema, tables: Iterable[pa.Table], node: str) -> Path:
    """Return the folder of a token. If it does not exist, create it with the rows of `tables`.

    The rows are written and synced to disk under another name, which is then renamed. A process that dies
    before leaves a folder that `drop_folders` removes. Raise UserError if the folder cannot be written.
    """
    folder = root / token
    if folder.exists():
        return folder
    attempt = root / f".{token}_{secrets.token_hex(4)}"
    try:
        attempt.mkdir(parents=True)
        _write_files(attempt, schema, tables)
        try:
            attempt.rename(folder)
        except OSError:
            if not folder.exists():  # Another process was first.
                raise
        sync_to_disk(root)
    except OSError as error:
        msg = f"the rows cannot be stored in `{root}`: {error.strerror or error}"
        raise UserError(msg, hint="`staging.path` names the folder of stored rows.", node=node) from error
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    return folder


def _write_files(folder: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write the rows as files of one row group each, one at least, and sync them to disk.

    A file is about a split, so that a task reads whole files.
    """
    for number, parts in enumerate(_group_tables(tables)):
        rows = pa.concat_tables([schema.empty_table(), *parts])
        path = folder / f"{number:05d}.parquet"
        pq.write_table(rows, path, compression="zstd", row_group_size=max(1, rows.num_rows))
        sync_to_disk(path)
    sync_to_disk(folder)


def _group_tables(tables: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    """Yield the rows in lists of the size of a split. The last list is empty if there are no rows."""
    parts: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        for start in range(0, table.num_rows, splitting.SPLIT_ROWS):
            part = table.slice(start, splitting.SPLIT_ROWS)
            rows, size = rows + part.num_rows, size + part.nbytes
            if parts and (rows > splitting.SPLIT_ROWS or size > splitting.SPLIT_BYTES):
                yield parts
                parts, rows, size = [], part.num_rows, part.nbytes
            parts.append(part)
    yield parts


def read_metadata(folder: Path) -> Mapping[bytes, bytes]:
    """Return the metadata of the schema with which the rows of a folder were stored."""
    first = folder / _FIRST
    return (pq.read_schema(first).metadata or {}) if first.exists() else {}


def drop_folders(root: Path, owner: str, generation: int, keep: Collection[str]) -> None:
    """Remove the folders of an owner up to a generation, except those whose paths are in `keep`."""
    if not root.is_dir():
        return
    for folder in list(root.iterdir()):
        match = _FOLDER.fullmatch(folder.name)
        if match and match[1] == owner and int(match[2]) <= generation and str(folder) not in keep:
            drop_folder(root, str(folder))


def drop_folder(root: Path, folder: str) -> None:
    """Remove a folder of `root`. A folder that does not exist is ignored."""
    if os.path.dirname(folder) == str(root):
        shutil.rmtree(folder, ignore_errors=True)

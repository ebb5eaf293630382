"""Folders of stored rows: each is a snapshot, created in one step and never changed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.durable_files import sync_to_disk
from headrace.pipeline.errors import UserError

FILE = "rows.parquet"
_GROUP_ROWS = 50_000
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
        with pq.ParquetWriter(attempt / FILE, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table, row_group_size=_GROUP_ROWS)
        for path in (attempt / FILE, attempt):
            sync_to_disk(path)
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


def read_metadata(folder: Path) -> Mapping[bytes, bytes]:
    """Return the metadata of the schema with which the rows of a folder were stored."""
    return pq.read_schema(folder / FILE).metadata or {}


def drop_folders(root: Path, owner: str, generation: int, keep: Collection[str]) -> None:
    """Remove the folders of an owner up to a generation, except those whose paths are in `keep`."""
    if not root.is_dir():
        return
    for folder in list(root.iterdir()):
        found = _FOLDER.fullmatch(folder.name)
        if found and found[1] == owner and int(found[2]) <= generation and str(folder) not in keep:
            drop_folder(root, str(folder))


def drop_folder(root: Path, folder: str) -> None:
    """Remove a folder of `root`. A folder that does not exist is ignored."""
    if os.path.dirname(folder) == str(root):
        shutil.rmtree(folder, ignore_errors=True)

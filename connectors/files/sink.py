"""Files as a sink, exactly once.

Each epoch is a folder that appears by one rename, with rows and commit record. `sink_folder` describes the
fence. With a key, the files have the last change of each key in the epoch, with its operation in
`headrace_op`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from headrace.connectors.addresses import split_location
from headrace.connectors.fencing import fencing_error
from headrace.connectors.files.config import FileSinkConfig
from headrace.connectors.files.layout import check_layout, check_schema
from headrace.connectors.files.listing import local
from headrace.connectors.files.sink_folder import FolderSinkState, SinkFolder, find_states, folder_name
from headrace.connectors.files.writer import RowFiles, WrittenFile
from headrace.connectors.lakehouse_rows import (
    build_merge_source,
    collect_last_rows,
    collect_small_rows,
    select_append_rows,
)
from headrace.connectors.local_relation import collect_arrow
from headrace.connectors.row_errors import translate_row_errors
from headrace.connectors.sink_base import SinkContext
from headrace.connectors.transactional_sink import CommitKind, SinkCommit, SinkState, TransactionalSink
from headrace.pipeline.errors import TargetError, TransientError
from headrace.pipeline.model.capabilities import SinkCapabilities
from headrace.pipeline.model.connectors import sink_entries
from headrace.pipeline.protocol.claims import Claim
from headrace.pipeline.protocol.epochs import CommitRecord, Json, WriteCounts

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.frame import EpochFrame

_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Errors that a later attempt does not solve."""


class FileFolderSink(TransactionalSink):
    """One folder. Delivery is exactly once: rows and record of an epoch appear by one rename.

    Readers read the folders `headrace_commit=…`.
    """

    capabilities: ClassVar[SinkCapabilities] = sink_entries()["file"].capabilities

    def __init__(self, context: SinkContext) -> None:
        """Store the context without touching the folder."""
        super().__init__(context)
        self._node: FileSinkConfig = context.node
        self._path = local(self._node.path)
        self._folder = SinkFolder(self._path, folder_name(context.key))
        self._files = RowFiles(
            self._name,
            self._node.format,
            self._node.codec,
            tuple(self._node.partition_by),
            self._node.header,
            self._node.delimiter,
        )

    @property
    def target(self) -> str:
        """The folder as messages name it."""
        return f"the folder `{self._path}`"

    def prepare_target(self, schema: pa.Schema) -> None:
        """Check the rows and the files that are there, and note the layout."""
        self._check(schema, store=True)

    def validate_target(self) -> None:
        """Check the rows and the files that are there. A missing folder is fine."""
        self._check(self._context.schema, store=False)

    def read_state(self) -> SinkState | None:
        """Return generation and record of this sink."""
        with self._translate_errors():
            generation = self._folder.find_generation()
            if generation is None:
                return SinkState() if Path(self._path).exists() else None
            try:
                return SinkState(generation, self._folder.read_record(generation))
            except FileNotFoundError as error:
                if self._folder.find_generation() != generation:
                    raise self._busy_error() from error
                raise

    def commit(self, expected: SinkState, change: SinkCommit) -> SinkState | None:
        """Rename the generation, write the state, or publish a commit: each is one rename.

        Return None if the generation no longer exists. After an error the next call of `read_state` decides
        about the epoch.
        """
        folder, generation = self._folder, change.generation
        with self._translate_errors():
            if change.kind is CommitKind.FENCE:
                key = self._context.key
                is_done = folder.raise_generation(expected.generation, generation, key)
                return SinkState(generation, folder.read_record(generation)) if is_done else None
            if change.kind is CommitKind.EPOCH and change.frame is not None:
                return self._commit_epoch(change, change.frame)
            last = folder.last_commit(generation)
            state = replace(folder.read_state(generation), record=change.record, after=last)
            if change.kind is CommitKind.REGISTER and change.record is not None:
                state = replace(state, record=replace(change.record, baseline=self._count_rows()))
            elif change.kind is CommitKind.TRUNCATE:
                state = replace(state, removed=last)
            if not folder.write_state(generation, state):
                return None
            if change.kind is CommitKind.TRUNCATE:
                folder.discard_attempts(generation)
            return SinkState(generation, state.record)

    def claim_target(self) -> None:
        """Add this sink's claim, then read all claims, and withdraw if there is a rival.

        Of two sinks that claim the folder at the same time at most one stays. The writers of claims that this
        one replaces are fenced first.
        """
        owner = self._context.owner
        with self._translate_errors():
            owner.refuse(self.claims(), self.target)
            state = self._folder.read_state(self._generation)
            if not state.claims or state.share != owner.share:
                self._write_claim(replace(state, claims=True, share=owner.share))
                if owner.rivals(claims := self.claims()):
                    self._write_claim(replace(state, claims=False))
                    owner.refuse(claims, self.target)
            self.release(owner.former(self.claims()))

    def claims(self) -> Sequence[Claim]:
        """Return the claims in the folder, each with the epoch of its record."""
        result: list[Claim] = []
        for folder, generation, state in find_states(self._path):
            if state.claims:
                record = folder.read_record(generation)
                result.append(Claim(state.key, state.share, record.epoch if record is not None else None))
        return result

    def release(self, claims: Sequence[Claim]) -> None:
        """Fence each sink with the generation after its own, then remove its record and its claim."""
        keys = {claim.key for claim in claims}
        for folder, generation, state in list(find_states(self._path)):
            if state.key not in keys:
                continue
            newest = generation + 1
            if not folder.raise_generation(generation, newest, state.key):
                msg = f"sink '{state.key.sink}' of pipeline '{state.key.name}' started again"
                raise TransientError(msg, node=self._name)
            ended = replace(state, claims=False, record=None, after=folder.last_commit(newest))
            folder.write_state(newest, ended)

    def find_conflicting_record(self) -> CommitRecord | None:
        """Return the record of the same pipeline name, `lane` and sink under another UUID."""
        key = self.find_conflicting_key()
        if key is None:
            return None
        folder = SinkFolder(self._path, folder_name(key))
        generation = folder.find_generation()
        return folder.read_record(generation) if generation is not None else None

    def read_row_count(self) -> tuple[CommitRecord | None, int] | None:
        """Return the record and the rows of all files that are as they were written.

        Return None if other sinks share the folder.
        """
        if any(claim.key != self._context.key for claim in self.claims()):
            return None
        state = self.read_state()
        return (state.record if state else None), self._count_rows()

    def describe(self) -> Json:
        """Return the type, asset key and location."""
        *folders, name = split_location(self._path)
        return {
            "kind": "file",
            "asset_key": ["file", name],
            "scope": folders,
            "table_name": name,
            "location": self._path,
        }

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self._context.extra.get("key", self._node.primary_key))

    def _check(self, schema: pa.Schema, *, store: bool) -> None:
        check_schema(self._node, schema, self._name)
        with self._translate_errors():
            check_layout(self._path, self._node, schema, self._key, self._name, store=store)

    def _write_claim(self, state: FolderSinkState) -> None:
        if not self._folder.write_state(self._generation, state):
            raise self._fenced_error()

    def _commit_epoch(self, change: SinkCommit, frame: EpochFrame) -> SinkState | None:
        """Write the files of an epoch and publish them. An epoch without rows only replaces the state."""
        folder, generation = self._folder, change.generation
        attempt = folder.begin_attempt(generation)
        if attempt is None:
            return None
        files = self._write_files(frame, attempt)
        rows = sum(count for _, count, _ in files)
        record = change.complete(WriteCounts(rows, rows, 0, 0))
        if rows:
            is_done = folder.publish(generation, attempt, files, record) is not None
        else:
            state = replace(
                folder.read_state(generation), record=record, after=folder.last_commit(generation)
            )
            is_done = folder.write_state(generation, state)
            folder.discard_attempts(generation)
        return SinkState(generation, record) if is_done else None

    def _write_files(self, frame: EpochFrame, attempt: Path) -> list[WrittenFile]:
        files, keyed = self._files, bool(frame.key)
        if keyed:
            last = collect_last_rows(self._name, frame)
            rows = build_merge_source(self._name, frame, frame.spark, None, last).rows
            chosen = files.select(rows, frame.schema, keyed=True)
            few = collect_arrow(chosen) if last is not None else None
        else:
            chosen = files.select(select_append_rows(self._name, frame), frame.schema, keyed=False)
            few = collect_small_rows(frame, chosen)
        return files.write_distributed(chosen, attempt) if few is None else files.write_local(few, attempt)

    def _count_rows(self) -> int:
        """Return the rows of all files that have the size that they were written with."""
        removed = max((state.removed for _, _, state in find_states(self._path)), default=0)
        rows = 0
        for number in self._folder.commits() if Path(self._path).exists() else ():
            if number <= removed:
                continue
            at = self._folder.commit_folder(number)
            for name, count, size in self._folder.read_manifest(number).files:
                path = at / name
                rows += count if path.exists() and path.stat().st_size == size else 0
        return rows

    def _fenced_error(self) -> Exception:
        generation = self._folder.find_generation()
        return fencing_error(generation, self._generation, target=self.target, sink=self._name)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise FencedError for what a newer run caused, and errors of the file system with their reason."""
        try:
            with translate_row_errors():
                yield
        except (OSError, TransientError) as error:
            newest = self._folder.find_generation()
            if newest is not None and newest > self._generation >= 0:
                raise self._fenced_error() from error
            if isinstance(error, TransientError):
                raise
            msg = f"{self.target} cannot be used: {error.strerror or error}"
            if error.errno in _LASTING:
                hint = "Let the user that runs Headrace write it, or choose another `path`."
                raise TargetError(msg, hint=hint, node=self._name) from error
            raise TransientError(msg, node=self._name) from error

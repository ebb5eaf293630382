"""Stored results of non-deterministic nodes: computed once per epoch, before the first sink gets any of them.

    <staging.path>/<pipeline uuid>/<lane>/<epoch>-<digest>/<node>/
        g<generation>-<token>/      one attempt: Parquet files of Spark tasks
        manifest.json               names the valid attempt; created in one step: the first one wins

The digest is that of the plan and the hash of the compiled pipeline, so an epoch that was planned again never
reads the rows of a dropped plan. An attempt without the manifest is never read. A dead attempt cannot be
distinguished from one that a paused process is still writing, so attempts are swept only if the manifest
names another one, or if the epoch is past.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from headrace.connectors.buckets import find_bucket
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.staging.bucket_files import BucketFiles
from headrace.jobs.staging.folder_files import FolderFiles, ResultFiles
from headrace.jobs.staging.paths import safe_filename
from headrace.jobs.staging.task import TASK_RESULT, storage_error
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, PipelineStateError, TransientError, UserError
from headrace.pipeline.protocol.epochs import EpochPlan, Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

FORMAT = 1
_MANIFEST = "manifest.json"
_EPOCH = re.compile(r"(\d+)-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class ResultManifest:
    """The manifest of a complete stored result. `files` are (name, bytes), to detect damaged files."""

    pipeline: str
    lane: str
    epoch: int
    node: str
    digest: str
    generation: int
    attempt: str
    rows: int
    files: tuple[tuple[str, int], ...]

    def to_json(self) -> Json:
        """Return plain JSON values, with the format's number."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Json) -> ResultManifest:
        """Return the manifest for such JSON values. Raises ValueError for an unknown format."""
        known: Json = dict(data)
        if (result := known.pop("format", None)) != FORMAT:
            msg = f"it has format {result}, this Headrace knows {FORMAT}"
            raise ValueError(msg)
        known["files"] = tuple((name, size) for name, size in known["files"])
        return cls(**known)


class ResultStore:
    """All stored results of one pipeline, for the owner of its lease. Creating it touches no file."""

    def __init__(self, settings: Settings, pipeline: str, lane: str, generation: int) -> None:
        self.files = open_files(settings)
        self.pipeline = pipeline
        self.lane = lane
        self.generation = generation
        self.recompute = settings.staging.recompute
        self._keep = settings.staging.keep_epochs
        self.is_used = False
        self._folder = self.files.root / pipeline / safe_filename(lane)

    def for_epoch(self, plan: EpochPlan, pipeline_hash: str) -> EpochResultStore:
        """Return the stored results of one epoch, as computed by the compiled pipeline of this hash.

        A sink that was added later is replayed with the current pipeline.
        """
        digest = hashlib.sha256(
            json.dumps([plan.to_json(), pipeline_hash], sort_keys=True).encode()
        ).hexdigest()[:16]
        return EpochResultStore(self, plan, digest, self._folder / f"{plan.number:012}-{digest}")

    def sweep(self, committed: int) -> None:
        """Remove results of epochs before the last `staging.keep_epochs` committed ones.

        Files that cannot be removed are logged and left. Nothing is removed from a bucket before this run
        has used it.
        """
        if self.files.is_remote and not self.is_used:
            return
        try:
            past = [folder for folder, number in self._epochs() if number <= committed - self._keep]
        except (OSError, TransientError) as error:
            log.warning("event=stored_results_not_listed path=%s error=%s", self._folder, error)
            return
        for folder in past:
            self.files.remove(folder)

    def _epochs(self) -> Iterator[tuple[PurePath, int]]:
        for folder in self.files.list_folders(self._folder):
            if match := _EPOCH.fullmatch(folder.name):
                yield folder, int(match[1])


def open_files(settings: Settings) -> ResultFiles:
    """Return the folder or the bucket of `staging.path`. Connects to nothing."""
    if url := settings.staging.bucket:
        return BucketFiles(find_bucket(url, settings.staging.s3))
    return FolderFiles(settings.staging_folder)


class EpochResultStore:
    """The stored results of one epoch, by node."""

    def __init__(self, lane: ResultStore, plan: EpochPlan, digest: str, folder: PurePath) -> None:
        self.plan = plan
        self.folder = folder
        self._lane = lane
        self._files = lane.files
        self._digest = digest

    def load_manifest(self, node: str) -> ResultManifest | None:
        """Return the manifest of a node's stored results, or None if there are none.

        Raises PipelineStateError if the manifest or its files are damaged.
        """
        path = self._of(node) / _MANIFEST
        self._lane.is_used = True
        try:
            text = self._files.read_text(path)
        except OSError as error:
            raise storage_error(node, self._files.address, error) from error
        if text is None:
            return None
        try:
            result = ResultManifest.from_json(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            msg = f"the manifest of the stored results cannot be read: {path}: {error}"
            raise PipelineStateError(
                msg, hint="Another program changed it. Restore it from a backup of `staging.path`.", node=node
            ) from None
        self._check_complete(node, result)
        return result

    def read(self, node: str, like: DataFrame) -> SourceBatch:
        """Return the stored rows of a node, with the columns of `like`, from which they were computed.

        The node must have a manifest.
        """
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import StructField, StructType

        manifest = self.load_manifest(node)
        assert manifest is not None  # noqa: S101  callers ask `load_manifest` first
        fields = like.schema.fields
        stored = StructType(
            [StructField(f"c{at}", field.dataType, nullable=True) for at, field in enumerate(fields)]
        )
        folder = self._of(node) / manifest.attempt
        paths = [folder / name for name, _ in manifest.files]
        frame = (
            self._files.frame(like.sparkSession, stored, paths)
            if paths
            else like.sparkSession.createDataFrame([], stored)
        )
        columns = [
            F.col(f"c{at}").alias(field.name, metadata=field.metadata or {})
            for at, field in enumerate(fields)
        ]
        return SourceBatch(frame.select(*columns), manifest.rows)

    def make(self, node: str, rows: DataFrame) -> ResultManifest:
        """Compute a node's rows and store them. Return the valid manifest.

        It is another process's manifest if that process was first. Raises UserError if the folder cannot
        store the rows, and any error of computing them.
        """
        folder = self._of(node)
        attempt = f"g{self._lane.generation}-{secrets.token_hex(4)}"
        place = folder / attempt
        try:
            self._files.make_folder(place)
            # mapInArrow does not quote names, so columns travel by their place.
            numbered = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
            written_files = numbered.mapInArrow(self._files.write_task(node, place), TASK_RESULT).collect()
            result = self._complete(
                node, attempt, [(one.file, one.rows, one.bytes) for one in written_files if one.rows]
            )
        except Exception as error:
            first = self.load_manifest(node)
            counts = (
                first is not None and first.attempt == attempt
            )  # the failure was after the link: the next attempt reads its rows
            if not counts:
                self._files.remove(place)
            if first is None or counts:
                if isinstance(error, HeadraceError):
                    raise
                if isinstance(error, OSError):
                    raise storage_error(node, self._files.address, error) from error
                raise as_headrace_error(error, node=node) from error
            self.sync_manifest(node)  # another process was first, and has swept what this one was writing
            result = first
        log.info(
            "event=results_stored node=%s epoch=%d rows=%d attempt=%s",
            node,
            self.plan.number,
            result.rows,
            result.attempt,
        )
        return result

    def _complete(self, node: str, attempt: str, parts: Sequence[tuple[str, int, int]]) -> ResultManifest:
        """Make an attempt the valid one, unless another was first.

        `parts` are the file, rows and bytes that each winning task returned.
        """
        folder, lane = self._of(node), self._lane
        if (first := self.load_manifest(node)) is not None:  # which has swept this attempt, perhaps
            self._files.remove(folder / attempt)
            self.sync_manifest(node)
            return first
        for name, _, size in parts:
            if (result := self._files.size(folder / attempt / name)) != size:
                msg = (
                    f"a task stored {size:,} bytes in {folder / attempt / name}, and here"
                    f" {'nothing' if result is None else result} is there"
                )
                raise UserError(
                    msg,
                    hint="Say a folder in `staging.path` that this host and all of Spark's workers share.",
                    node=node,
                )
        files = tuple((name, size) for name, _, size in parts)
        rows = sum(count for _, count, _ in parts)
        manifest = ResultManifest(
            lane.pipeline,
            lane.lane,
            self.plan.number,
            node,
            self._digest,
            lane.generation,
            attempt,
            rows,
            files,
        )
        self._files.sync(folder / attempt, parents=False)
        if not self._files.create(folder / _MANIFEST, json.dumps(manifest.to_json())):
            log.warning("event=results_stored_before node=%s epoch=%d", node, self.plan.number)
        self.sync_manifest(node)
        existing = self.load_manifest(node)
        assert existing is not None  # noqa: S101  this attempt or another one wrote it
        self._sweep_other_attempts(existing)
        return existing

    def sync_manifest(self, node: str) -> None:
        """Make the manifest's name durable, even if another process created it.

        A sink must not contain rows of stored results that a power failure can undo.
        """
        self._files.sync(self._of(node))

    def _sweep_other_attempts(self, manifest: ResultManifest) -> None:
        """Remove the attempts that lost. They can never become valid once a manifest exists."""
        for path in self._files.list_folders(self._of(manifest.node)):
            if path.name != manifest.attempt:
                self._files.remove(path)

    def _check_complete(self, node: str, manifest: ResultManifest) -> None:
        wanted = (self._lane.pipeline, self._lane.lane, self.plan.number, node, self._digest)
        if (manifest.pipeline, manifest.lane, manifest.epoch, manifest.node, manifest.digest) != wanted:
            msg = f"the stored results in {self._of(node)} belong to another epoch or node than their folder"
            raise PipelineStateError(
                msg,
                hint="Another program moved them. Restore the folder from a backup of `staging.path`.",
                node=node,
            )
        for name, size in manifest.files:
            path = self._of(node) / manifest.attempt / name
            if (result := self._files.size(path)) != size:
                msg = (
                    f"stored results are damaged: {path} has {'no' if result is None else result} bytes"
                    f" instead of {size}"
                )
                hint = (
                    f"Restore it from a backup; or remove the folder {self._of(node)}, which then counts"
                    " as missing."
                )
                raise PipelineStateError(msg, hint=hint, node=node)

    def _of(self, node: str) -> PurePath:
        return self.folder / safe_filename(node)

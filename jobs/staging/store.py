"""Stored results of non-deterministic nodes: computed once per epoch, before the first sink gets any of them.

    <staging.path>/<pipeline uuid>/<lane>/<epoch>-<digest>/<node>/
        g<generation>-<token>/      one attempt: Parquet files of Spark tasks
        manifest.json               names the valid attempt; written whole to another name, then linked: the
        first one wins

The digest is that of the plan and the hash of the compiled pipeline, so an epoch that was planned again never
reads the rows of a dropped plan. An attempt without the manifest is never read. A dead attempt cannot be
distinguished from one that a paused process is still writing, so attempts are swept only if the manifest
names another one, or if the epoch is past.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.jobs.sources.pipeline_source import SourceBatch
from headrace.jobs.spark.errors import as_headrace_error
from headrace.jobs.staging.paths import safe_filename, staging_root
from headrace.jobs.staging.task import TASK_RESULT, StoreResultsTask, storage_error, sync_to_disk
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError, PipelineStateError, SinkStateError, UserError
from headrace.pipeline.model import graph
from headrace.pipeline.model.nodes import PipelineModel
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
        if (found := known.pop("format", None)) != FORMAT:
            msg = f"it has format {found}, this Headrace knows {FORMAT}"
            raise ValueError(msg)
        known["files"] = tuple((name, size) for name, size in known["files"])
        return cls(**known)


class ResultStore:
    """All stored results of one pipeline, for the owner of its lease. Creating it touches no file."""

    def __init__(self, settings: Settings, pipeline: str, lane: str, generation: int) -> None:
        self.path = staging_root(settings)
        self.pipeline = pipeline
        self.lane = lane
        self.generation = generation
        self.recompute = settings.staging.recompute
        self._keep = settings.staging.keep_epochs
        self._folder = self.path / pipeline / safe_filename(lane)

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

        Files that cannot be removed are logged and left.
        """
        try:
            past = (
                [folder for folder, number in self._epochs() if number <= committed - self._keep]
                if self._folder.is_dir()
                else []
            )
        except OSError as error:
            log.warning("stages were not swept: path=%s error=%s", self._folder, error.strerror)
            return
        for folder in past:
            _remove(folder)

    def _epochs(self) -> Iterator[tuple[Path, int]]:
        for folder in self._folder.iterdir():
            if found := _EPOCH.fullmatch(folder.name):
                yield folder, int(found[1])


class EpochResultStore:
    """The stored results of one epoch, by node."""

    def __init__(self, lane: ResultStore, plan: EpochPlan, digest: str, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self._lane = lane
        self._digest = digest

    def load_manifest(self, node: str) -> ResultManifest | None:
        """Return the manifest of a node's stored results, or None if there are none.

        Raises PipelineStateError if the manifest or its files are damaged.
        """
        path = self._of(node) / _MANIFEST
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(node, self._lane.path, error) from error
        try:
            found = ResultManifest.from_json(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            msg = f"the manifest of the stored results cannot be read: {path}: {error}"
            raise PipelineStateError(
                msg, hint="Another program changed it. Restore it from a backup of `staging.path`.", node=node
            ) from None
        self._check_complete(node, found)
        return found

    def read(self, node: str, like: DataFrame) -> SourceBatch:
        """Return the stored rows of a node, with the columns of `like`, from which they were computed.

        The node must have a manifest.
        """
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import StructField, StructType

        manifest = self.load_manifest(node)
        assert manifest is not None  # noqa: S101  callers ask `held` first
        fields = like.schema.fields
        stored = StructType(
            [StructField(f"c{at}", field.dataType, nullable=True) for at, field in enumerate(fields)]
        )
        folder = self._of(node) / manifest.attempt
        frame = (
            like.sparkSession.read.schema(stored).parquet(
                *(_pattern(folder / name) for name, _ in manifest.files)
            )
            if manifest.files
            else None
        )
        if frame is None:
            frame = like.sparkSession.createDataFrame([], stored)
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
            place.mkdir(parents=True)
            # mapInArrow does not quote names, so columns travel by their place.
            numbered = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
            written_files = numbered.mapInArrow(
                StoreResultsTask(node, str(place), str(self._lane.path)), TASK_RESULT
            ).collect()
            found = self._complete(
                node, attempt, [(one.file, one.rows, one.bytes) for one in written_files if one.rows]
            )
        except Exception as error:
            first = self.load_manifest(node)
            counts = (
                first is not None and first.attempt == attempt
            )  # the failure was after the link: the next attempt reads its rows
            if not counts:
                _remove(place)
            if first is None or counts:
                if isinstance(error, HeadraceError):
                    raise
                if isinstance(error, OSError):
                    raise storage_error(node, self._lane.path, error) from error
                raise as_headrace_error(error, node=node) from error
            self.sync_manifest(node)  # another process was first, and has swept what this one was writing
            found = first
        log.info(
            "staged node=%s epoch=%d rows=%d attempt=%s", node, self.plan.number, found.rows, found.attempt
        )
        return found

    def _complete(self, node: str, attempt: str, parts: Sequence[tuple[str, int, int]]) -> ResultManifest:
        """Make an attempt the valid one, unless another was first.

        `parts` are the file, rows and bytes that each winning task returned.
        """
        folder, lane = self._of(node), self._lane
        if (first := self.load_manifest(node)) is not None:  # which has swept this attempt, perhaps
            _remove(folder / attempt)
            self.sync_manifest(node)
            return first
        for name, _, size in parts:
            if (found := _size(folder / attempt / name)) != size:
                msg = (
                    f"a task stored {size:,} bytes in {folder / attempt / name}, and here"
                    f" {'nothing' if found is None else found} is there"
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
        sync_to_disk(folder / attempt)
        written = folder / f".{attempt}.json"
        written.write_text(json.dumps(manifest.to_json()), encoding="utf-8")
        sync_to_disk(written)
        try:
            os.link(written, folder / _MANIFEST)
        except FileExistsError:
            log.warning("staged twice node=%s epoch=%d kept=the first", node, self.plan.number)
        finally:
            written.unlink()
        self.sync_manifest(node)
        existing = self.load_manifest(node)
        assert existing is not None  # noqa: S101  this attempt or another one wrote it
        self._sweep_other_attempts(existing)
        return existing

    def sync_manifest(self, node: str) -> None:
        """Make the manifest's name durable, even if another process created it.

        A sink must not contain rows of stored results that a power failure can undo.
        """
        folder = self._of(node)
        for path in (
            folder,
            *list(folder.parents)[:5],
        ):  # up to the parent of `staging.path`: each of them may be new
            with suppress(PermissionError):  # a parent folder may belong to another user
                sync_to_disk(path)

    def _sweep_other_attempts(self, manifest: ResultManifest) -> None:
        """Remove the attempts that lost. They can never become valid once a manifest exists."""
        for path in self._of(manifest.node).iterdir():
            if path.is_dir() and path.name != manifest.attempt:
                _remove(path)

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
            if (found := _size(path)) != size:
                msg = (
                    f"stored results are damaged: {path} has {'no' if found is None else found} bytes"
                    f" instead of {size}"
                )
                hint = (
                    f"Restore it from a backup; or remove the folder {self._of(node)}, which then counts"
                    " as missing."
                )
                raise PipelineStateError(msg, hint=hint, node=node)

    def _of(self, node: str) -> Path:
        return self.folder / safe_filename(node)


@dataclass(frozen=True, slots=True)
class NodeGraph:
    """The inputs of each node, and the dynamic tables that its SQL looks up, by the name of the node."""

    inputs: Callable[[str], Sequence[str]]
    asks: Callable[[str], Sequence[str]] = lambda _: ()

    @classmethod
    def of(cls, model: PipelineModel) -> NodeGraph:
        """Return the graph of a pipeline."""
        return cls(partial(graph.inputs_of, model), partial(graph.looked_up_tables, model))


class StoredResults:
    """The stored results of one epoch that the planner needs.

    They are those of non-deterministic nodes before pending sinks. `holders` returns which sinks and dynamic
    tables have the epoch or a part of it, with a description. Their rows came from stored results, so these
    must not be recomputed. It is called only if results are missing.
    """

    def __init__(
        self,
        stages: EpochResultStore,
        who: NodeGraph,
        impure: Sequence[str],
        holders: Callable[[], Mapping[str, str]],
    ) -> None:
        self._stages = stages
        self._graph = who
        self._impure = impure
        self._holders = holders
        self.rows: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def required_nodes(self, sinks: Sequence[str]) -> set[str]:
        """Return the non-deterministic nodes whose stored results these sinks read.

        Nodes upstream of complete results are not needed again.
        """
        found: set[str] = set()
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen:
                return
            seen.add(name)
            if name in self._impure:
                found.add(name)
                if self._stages.load_manifest(name) is not None:
                    return
            for upstream in self._graph.inputs(name):
                visit(upstream)

        for sink in sinks:
            visit(sink)
        return found

    def check(self, sinks: Sequence[str], *, replayed: bool, recompute: bool) -> None:
        """Raise SinkStateError if rows would be recomputed that a sink or table already contains."""
        missing = (
            []
            if recompute
            else [
                name
                for name in sorted(self.required_nodes(sinks))
                if self._stages.load_manifest(name) is None
            ]
        )
        if not missing:
            return
        if replayed:
            raise self._missing_results_error(
                missing[0], "other sinks have this epoch", "`headrace replay … --recompute`"
            )
        for holder, description in self._holders().items():
            if lost_nodes := self._nondeterministic_upstream(holder).intersection(missing):
                raise self._missing_results_error(
                    min(lost_nodes), description, "the setting `staging.recompute: true` for one run"
                )

    def _nondeterministic_upstream(self, name: str) -> set[str]:
        """Return the non-deterministic nodes upstream of a node, also through the tables that it looks up."""
        upstream = (*self._graph.inputs(name), *self._graph.asks(name))
        return {name}.intersection(self._impure).union(
            *(self._nondeterministic_upstream(other) for other in upstream)
        )

    def _missing_results_error(self, node: str, who: str, recompute: str) -> SinkStateError:
        number = self._stages.plan.number
        msg = (
            f"the stored results of epoch {number} are missing, and {who} with these results:"
            f" {self._stages.folder}"
        )
        hint = (
            "Restore the folder; with several hosts, all must share the folder `staging.path`."
            f" To compute them again, although rows may differ from those in the targets: {recompute}."
        )
        return SinkStateError(msg, hint=hint, node=node)

    def load_or_compute(self, name: str, frame: DataFrame) -> SourceBatch:
        """Return a node's stored rows. Compute and store them first if there are none."""
        if self._stages.load_manifest(name) is None:
            started = time.monotonic()
            self._stages.make(name, frame)
            self.seconds[name] = time.monotonic() - started
        else:
            self._stages.sync_manifest(name)
        found = self._stages.read(name, frame)
        self.rows[name] = found.rows or 0
        return found


def _pattern(path: Path) -> str:
    """Return a path for Spark to read, as a file URL with glob characters escaped.

    Spark takes paths without a scheme for its default file system, and some characters for patterns.
    """
    return "file://" + re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("a stage was not removed: path=%s error=%s", folder, error.strerror)

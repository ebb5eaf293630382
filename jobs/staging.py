"""Rows of impure nodes on durable storage: computed once per epoch, before the first sink sees any of them.

    <staging.path>/<pipeline uuid>/<lane>/<epoch>-<digest>/<node>/
        g<generation>-<token>/      one attempt: parquet files by Spark
        manifest.json               which attempt counts; written whole, beside, and linked to its name: the first one wins

The digest is of the plan with the compiled pipeline's hash, so that an epoch that was planned anew never meets the rows of the
plan that was dropped. An attempt without the manifest is never read. Nobody can tell a dead attempt from one that is being
written by a process that was overtaken, so attempts are swept only where the manifest names another, or the epoch is past.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connectors.rowerrors import every_text
from headrace.jobs.failures import as_headrace_error
from headrace.jobs.sources import Reading
from headrace.pipeline.errors import HeadraceError, LaneError, RecordError, UserError
from headrace.pipeline.records import EpochPlan, Json
from headrace.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

FORMAT = 1
_MANIFEST = "manifest.json"
_EPOCH = re.compile(r"(\d+)-[0-9a-f]{16}")
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_RIGHTS = re.compile(r"Permission denied|Read-only file system|Mkdirs failed to create")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What makes a stage complete. `files` are (name, bytes), to notice a stage that somebody has torn."""

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
        """As plain JSON values, with the format's number."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Json) -> Manifest:
        """The inverse. Raises ValueError for a format that this version does not know."""
        known: Json = dict(data)
        if (found := known.pop("format", None)) != FORMAT:
            msg = f"it has format {found}, this Headrace knows {FORMAT}"
            raise ValueError(msg)
        known["files"] = tuple((name, size) for name, size in known["files"])
        return cls(**known)


class LaneStages:
    """All stages of one lane, for the process that holds it. Making it touches nothing."""

    def __init__(self, settings: Settings, pipeline: str, lane: str, generation: int) -> None:
        self.path = (settings.staging.path or settings.home / "staging").absolute()
        self.pipeline = pipeline
        self.lane = lane
        self.generation = generation
        self.recompute = settings.staging.recompute
        self._keep = settings.staging.keep_epochs
        self._folder = self.path / pipeline / _spelled(lane)

    def of(self, plan: EpochPlan, pipeline_hash: str) -> EpochStages:
        """The stages of one epoch, computed by the compiled pipeline of this hash (a sink that joined later is replayed by today's)."""
        digest = hashlib.sha256(json.dumps([plan.to_json(), pipeline_hash], sort_keys=True).encode()).hexdigest()[:16]
        return EpochStages(self, plan, digest, self._folder / f"{plan.number:012}-{digest}")

    def sweep(self, committed: int) -> None:
        """Removes the stages of epochs before the last `staging.keep_epochs` committed ones. What cannot be removed is logged, and left."""
        if not self._folder.is_dir():
            return
        for folder, number in self._epochs():
            if number <= committed - self._keep:
                _remove(folder)

    def _epochs(self) -> Iterator[tuple[Path, int]]:
        for folder in self._folder.iterdir():
            if found := _EPOCH.fullmatch(folder.name):
                yield folder, int(found[1])


class EpochStages:
    """The stages of one epoch, by node."""

    def __init__(self, lane: LaneStages, plan: EpochPlan, digest: str, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self._lane = lane
        self._digest = digest

    def held(self, node: str) -> Manifest | None:
        """The manifest of a node that is staged, None where there is none. Raises LaneError for one that cannot be taken at its word."""
        path = self._of(node) / _MANIFEST
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._storage(node, error.strerror or str(error)) from error
        try:
            found = Manifest.from_json(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            msg = f"the manifest of the staged rows cannot be read: {path}: {error}"
            raise LaneError(msg, hint="Somebody has changed it. Bring it back from a backup of `staging.path`.", node=node) from None
        self._whole(node, found)
        return found

    def read(self, node: str, like: DataFrame) -> Reading:
        """The staged rows, with the columns of `like`, which is what they were made from. The node must be held."""
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import StructField, StructType

        held = self.held(node)
        assert held is not None  # noqa: S101  callers ask `held` first
        fields = like.schema.fields
        stored = StructType([StructField(f"c{at}", field.dataType, nullable=True) for at, field in enumerate(fields)])
        folder = self._of(node) / held.attempt
        frame = like.sparkSession.read.schema(stored).parquet(*(_pattern(folder / name) for name, _ in held.files)) if held.files else None
        if frame is None:
            frame = like.sparkSession.createDataFrame([], stored)
        columns = [F.col(f"c{at}").alias(field.name, metadata=field.metadata or {}) for at, field in enumerate(fields)]
        return Reading(frame.select(*columns), held.rows)

    def make(self, node: str, rows: DataFrame) -> Manifest:
        """Computes a node's rows into a stage of its own; the manifest that counts, which is another's where that one was first.

        Raises UserError where the place cannot take the rows, and what computing them raises.
        """
        folder = self._of(node)
        attempt = f"g{self._lane.generation}-{secrets.token_hex(4)}"
        place = folder / attempt
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._storage(node, error.strerror or str(error)) from error
        try:
            numbered = rows.toDF(*(f"c{at}" for at in range(len(rows.columns))))
            numbered.write.option("compression", "zstd").parquet(f"file://{place}")
            found = self._complete(node, attempt)
        except HeadraceError:
            _remove(place)
            raise
        except OSError as error:
            _remove(place)
            raise self._storage(node, error.strerror or str(error)) from error
        except Exception as error:
            _remove(place)
            if said := _storage_words(error, self._lane.path):
                raise self._storage(node, said) from error
            raise as_headrace_error(error, node=node) from error
        log.info("staged node=%s epoch=%d rows=%d attempt=%s", node, self.plan.number, found.rows, found.attempt)
        return found

    def _complete(self, node: str, attempt: str) -> Manifest:
        """Makes an attempt durable, then the one that counts, unless another was first."""
        import pyarrow.parquet as pq

        folder = self._of(node)
        parts = sorted(path for path in (folder / attempt).iterdir() if path.suffix == ".parquet")
        counted = [(path, pq.read_metadata(path).num_rows) for path in parts]
        files = tuple((path.name, path.stat().st_size) for path, count in counted if count)
        lane = self._lane
        made = Manifest(
            lane.pipeline,
            lane.lane,
            self.plan.number,
            node,
            self._digest,
            lane.generation,
            attempt,
            sum(count for _, count in counted),
            files,
        )
        for path in [*parts, folder / attempt]:
            _sync(path)
        beside = folder / f".{attempt}.json"
        beside.write_text(json.dumps(made.to_json()), encoding="utf-8")
        _sync(beside)
        try:
            os.link(beside, folder / _MANIFEST)
        except FileExistsError:
            log.warning("staged twice node=%s epoch=%d kept=the first", node, self.plan.number)
        finally:
            beside.unlink()
        for path in (folder, folder.parent, folder.parent.parent, folder.parent.parent.parent, lane.path, lane.path.parent):
            _sync(path)
        held = self.held(node)
        assert held is not None  # noqa: S101  it is there, whoever made it
        self._sweep_beside(held)
        return held

    def _sweep_beside(self, held: Manifest) -> None:
        """Removes the attempts that lost: with the manifest there, none of them can ever count."""
        for path in self._of(held.node).iterdir():
            if path.is_dir() and path.name != held.attempt:
                _remove(path)

    def _whole(self, node: str, held: Manifest) -> None:
        wanted = (self._lane.pipeline, self._lane.lane, self.plan.number, node, self._digest)
        if (held.pipeline, held.lane, held.epoch, held.node, held.digest) != wanted:
            msg = f"the staged rows in {self._of(node)} are of another epoch or node than their folder says"
            raise LaneError(msg, hint="Somebody has moved them. Bring the folder back from a backup of `staging.path`.", node=node)
        for name, size in held.files:
            path = self._of(node) / held.attempt / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                msg = f"staged rows are damaged: {path} has {'no' if found is None else found} bytes, the manifest says {size}"
                hint = f"Bring it back from a backup; or remove the folder {self._of(node)}, and they count as gone."
                raise LaneError(msg, hint=hint, node=node)

    def _of(self, node: str) -> Path:
        return self.folder / _spelled(node)

    def _storage(self, node: str, said: str) -> UserError:
        msg = f"rows cannot be staged in {self._lane.path}: {said}"
        hint = "Make room or give rights there, or say another folder in the setting `staging.path`; then run it again."
        return UserError(msg, hint=hint, node=node)


class Staging:
    """What the planner asks while it makes the frames of one epoch: the staged rows of the impure nodes that pending sinks need.

    `bound` are sinks that hold the epoch already, or hold rows of it: what they hold came from a stage, so it must not be made anew.
    """

    def __init__(self, stages: EpochStages, inputs: Callable[[str], Sequence[str]], impure: Sequence[str], bound: Sequence[str]) -> None:
        self._stages = stages
        self._inputs = inputs
        self._impure = impure
        self._bound = bound
        self.rows: dict[str, int] = {}
        self.seconds = 0.0
        """What computing and keeping them took."""

    def wanted(self, sinks: Sequence[str]) -> set[str]:
        """The impure nodes whose rows these sinks take from a stage. What lies behind a complete stage is not needed again."""
        found: set[str] = set()
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen:
                return
            seen.add(name)
            if name in self._impure:
                found.add(name)
                if self._stages.held(name) is not None:
                    return
            for upstream in self._inputs(name):
                visit(upstream)

        for sink in sinks:
            visit(sink)
        return found

    def check(self, sinks: Sequence[str], *, replayed: bool, recompute: bool) -> None:
        """Raises RecordError where rows would have to be computed anew that a sink holds from an earlier time."""
        if recompute:
            return
        told = {name for sink in self._bound for name in self._behind(sink)}
        for name in sorted(self.wanted(sinks)):
            if self._stages.held(name) is None and (replayed or name in told):
                raise self._gone(name, replayed=replayed)

    def _behind(self, name: str) -> set[str]:
        """All impure nodes that a node's rows come through."""
        return {name}.intersection(self._impure).union(*(self._behind(upstream) for upstream in self._inputs(name)))

    def _gone(self, node: str, *, replayed: bool) -> RecordError:
        number = self._stages.plan.number
        who = "other sinks hold" if replayed else f"sink {', '.join(self._bound)} holds"
        msg = f"the staged rows of epoch {number} are gone, and {who} this epoch with the rows that were staged: {self._stages.folder}"
        anew = "`headrace replay … --recompute`" if replayed else "the setting `staging.recompute: true` for one run"
        hint = (
            "Bring the folder back; on several hosts `staging.path` must be a folder that all of them share."
            f" To compute them anew, with rows that may differ from what other sinks hold: {anew}."
        )
        return RecordError(msg, hint=hint, node=node)

    def staged(self, name: str, frame: DataFrame) -> Reading:
        """A node's rows from its stage, which is made first where there is none."""
        started = time.monotonic()
        if self._stages.held(name) is None:
            self._stages.make(name, frame)
        found = self._stages.read(name, frame)
        self.seconds += time.monotonic() - started
        self.rows[name] = found.rows or 0
        return found


def _spelled(name: str) -> str:
    """A name as a folder's: readable, and told apart from any other by a digest where letters had to go."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:80]
    return plain if plain == name else f"{plain}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _pattern(path: Path) -> str:
    """A path for Spark to read, which takes what has no scheme for its default file system, and some characters for patterns."""
    return "file://" + re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


def _sync(path: Path) -> None:
    """What was written there survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # folders of some shared file systems know no fsync
            raise
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("a stage was not removed: path=%s error=%s", folder, error.strerror)


def _storage_words(error: BaseException, place: Path) -> str:
    """What a file system said of `place` inside Spark's own error; empty where it is about something else."""
    for text in every_text(error):
        if found := _FULL.search(text) or (_RIGHTS.search(text) if str(place) in text else None):
            return found[0]
    return ""

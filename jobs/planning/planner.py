"""Plans a pipeline as Spark frames: sources as views, transforms as SQL over them, one frame per sink.

Payload columns and types come from Spark's own analyzer. `pipeline.sql.statements` adds the system columns
`_gs_op` and `_gs_pos` to every SELECT; a sink never gets a row without them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.connectors.frame import EpochFrame
from headrace.connectors.lazy_session import create_frame, defer_frame, ensure_started
from headrace.connectors.spark_types import row_columns
from headrace.jobs.dynamic_tables.base import (
    DynamicTableBackend,
    EmptyLookup,
    ValueLookup,
    distinct_texts,
    register,
)
from headrace.jobs.planning.column_checks import missing_key, version_problems
from headrace.jobs.planning.estimates import estimate_bytes, estimate_rows
from headrace.jobs.planning.local_nodes import LocalNodes
from headrace.jobs.planning.portable_nodes import PortableNodes
from headrace.jobs.planning.rejections import EpochRejections
from headrace.jobs.planning.source_schemas import HasSchema
from headrace.jobs.planning.sql_nodes import SqlNodePlanner
from headrace.jobs.sources.source_batch import SourceBatch
from headrace.jobs.spark.columns import check_staged, payload_of
from headrace.jobs.staging.determinism import nondeterminism_reason
from headrace.jobs.staging.stored_results import StoredResults
from headrace.jobs.transforms.base import RowTransform, TransformContext
from headrace.jobs.transforms.registry import KEYS, open_transform
from headrace.jobs.transforms.retractions import (
    SinkBoundary,
    bypass_marked_rows,
    retractions_of,
    shared_problems,
    without_marked,
)
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import PipelineFileError, SchemaError, UserError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model import graph
from headrace.pipeline.model.error_outputs import errors_outputs, with_errors
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql.system_columns import HIDDEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.jobs.monitoring.frame_observer import FrameObserver


class PipelinePlanner:
    """The compiled pipeline on one Spark session. It is analysed once; `frames` returns the rows of an epoch.

    Nodes that read a source without a schema are not analysed, and have no entry in `schemas`. `pipeline` is
    the UUID from the ledger, which a run sets.

    Raises SchemaError or UserError, with the node and its location, if SQL or keys do not fit the sources;
    PipelineFileError if there are several errors.
    """

    def __init__(
        self, file: PipelineFile, spark: SparkSession, sources: Mapping[str, HasSchema], settings: Settings
    ) -> None:
        self.file = file
        self.pipeline = ""
        self._settings = settings
        self._transforms: dict[str, RowTransform] = {}
        self.spark = spark.newSession()
        columns = {name: source.schema(self.spark) for name, source in sources.items()}
        self.source_schemas = with_errors(file.model, columns)
        self.keys: dict[str, tuple[str, ...]] = {}
        self.schemas: dict[str, pa.Schema] = {}
        self.tables: Mapping[str, DynamicTableBackend] = {}
        """The dynamic tables, opened; without them their SQL is analysed and no epoch can be computed."""
        self._lookups: dict[str, ValueLookup] = {
            name: EmptyLookup() for name in graph.dynamic_tables(file.model)
        }
        self._looked_up = frozenset(
            table for name in file.model.transforms for table in graph.looked_up_tables(file.model, name)
        )
        self.retractions = retractions_of(file.model)
        self._steps = graph.steps(file.model)
        self._order = graph.in_order(file.model)
        self._views_lock = threading.RLock()
        """Guards the temporary views, which a statement finds by name."""
        self._view_names = {
            name: "hr_" + re.sub(r"\W", "_", name) + f"_{index}"
            for index, name in enumerate([*self.source_schemas, *self._order])
        }
        self._sql_nodes = SqlNodePlanner(file, self.spark, self.retractions)
        self.texts: Mapping[str, str] = self._sql_nodes.texts
        """The last SQL that Spark got for each sql node."""
        self._portable_nodes = PortableNodes(file, self._sql_nodes)
        self.local_nodes = LocalNodes(file.model, self.spark, self.texts, self.schemas)
        self._errors = {one.node: one for one in errors_outputs(file.model).values()}
        if self._lookups:
            register(self.spark, self._lookups)
        with file.locate_errors():
            self._sql_nodes.register_plugin_functions()
            self._analyse()

    def _analyse(self) -> None:
        problems: list[UserError] = []
        views = self._views(
            {name: SourceBatch(self._empty(name), 0) for name in self.source_schemas}, None, problems
        )
        for name, frame in views.items():
            try:
                self.schemas[name] = payload_of(frame)
                if name in self.file.model.transforms and (
                    why := nondeterminism_reason(self.file.model, name)
                ):
                    check_staged(frame, why)
                    problems += self._refuse_rejections(name, why)
            except UserError as error:
                problems.append(UserError(error.message, hint=error.hint, node=name, keys=("sql",)))
        model = self.file.model
        problems += shared_problems(self.file, self.retractions)
        for name, sink in model.sinks.items():
            if sink.from_ in self.schemas:
                self.schemas[name] = self.schemas[sink.from_]
                problems += version_problems(self.file, name, self.schemas[name])
        lacking: set[str] = set()
        for name in [*model.sources, *self._order, *model.sinks]:
            self.keys[name] = graph.key_of(model, name)
            missing = (
                list(missing_key(self.file, name, self.schemas[name].names)) if name in self.schemas else []
            )
            # A lost key is reported only at the node that loses it, not at those that inherit it.
            if missing and not lacking.intersection(graph.inputs_of(model, name)):
                problems += missing
            lacking |= {name} if missing else set()
        for problem in problems:
            self.file.locate(problem)
        if problems:
            raise problems[0] if len(problems) == 1 else PipelineFileError(problems)

    def _refuse_rejections(self, name: str, why: str) -> Iterator[UserError]:
        """Yield the mistake of a non-deterministic node with dead letters."""
        if name in self._errors:
            msg = f"rows that it rejects would not be the same when an epoch is written again: {why}"
            hint = "Compute the columns that may fail in a transform of their own."
            yield UserError(msg, hint=hint, node=name, keys=("on_error",))

    def _empty(self, name: str) -> DataFrame:
        return create_frame(self.spark, [], self.source_schemas[name])

    def _views(
        self,
        readings: Mapping[str, SourceBatch],
        plan: EpochPlan | None,
        problems: list[UserError] | None = None,
        staged: Mapping[str, Callable[[str, DataFrame], SourceBatch]] | None = None,
        each: FrameObserver | None = None,
        rejections: EpochRejections | None = None,
    ) -> dict[str, DataFrame]:
        """Return the lazy frame of every source and transform.

        Transforms see their inputs as temporary views. Dynamic tables are filled with this epoch's rows
        before the transforms that look them up are planned. With `problems`, user errors are added to it, and
        nodes that read a node without a frame get none. `staged` nodes are computed immediately and replaced
        by their stored rows. `each` receives every frame of a transform, and of a source that has rows, and
        returns the one to use. Transforms of `rejections` are computed immediately too.
        """
        result = {
            name: each(name, reading.frame) if each and reading.rows != 0 else reading.frame
            for name, reading in readings.items()
        }
        for name in self._steps:
            if problems is not None and any(
                upstream not in result for upstream in graph.inputs_of(self.file.model, name)
            ):
                continue
            try:
                if name in self._lookups:
                    self._table(name, result, plan)
                    continue
                result |= self._outputs(name, result, plan, rejections)
            except UserError as error:
                if not error.keys and self.file.model.transforms[name].type in ("sql", "dynamic_table"):
                    error.keys = ("sql",)
                self.file.locate(error)
                if problems is None:
                    raise
                problems.append(error)
                continue
            kept = staged.get(name) if staged else None
            result[name] = kept(name, result[name]).frame if kept else result[name]
            result[name] = each(name, result[name], staged=kept is not None) if each else result[name]
        return result

    def _outputs(
        self,
        name: str,
        frames: Mapping[str, DataFrame],
        plan: EpochPlan | None,
        rejections: EpochRejections | None,
    ) -> dict[str, DataFrame]:
        """Return a transform's rows, and its rejected rows if it has an errors output."""
        output = self._errors.get(name)
        if output is None:
            return {name: self._frame(name, frames, plan)}
        if rejections is None or name not in rejections.nodes:
            empty = create_frame(self.spark, [], output.schema)
            return {name: self._frame(name, frames, plan), output.name: empty}
        (upstream,) = graph.inputs_of(self.file.model, name)
        good, rejected = rejections.separate(
            output,
            frames[upstream],
            self.keys[upstream],
            lambda rows: self._frame(name, {upstream: rows}, plan),
        )
        return {name: good, output.name: rejected}

    @property
    def arrow_transforms(self) -> frozenset[str]:
        """The transforms that Arrow computes where rows are in the driver. Spark computes the others."""
        return self._portable_nodes.names

    def _frame(self, name: str, frames: Mapping[str, DataFrame], plan: EpochPlan | None) -> DataFrame:
        """Return a transform's rows, computed from the frames of its inputs."""
        node: Any = self.file.model.transforms[name]
        if node.type == "sql":
            columns = self._portable_nodes.find_columns(name, frames)
            if columns is None:
                return self.select(name, frames, plan)
            return defer_frame(self.spark, partial(self.select, name, frames, plan), columns)
        (upstream,) = node.inputs(name)
        if name not in self._transforms:
            self._transforms[name] = self._open_transform(name, node, payload_of(frames[upstream]))
        return bypass_marked_rows(
            self._transforms[name], name, upstream, frames[upstream], plan, self.retractions
        )

    def select(self, name: str, frames: Mapping[str, DataFrame], plan: EpochPlan | None) -> DataFrame:
        """Return the result of a node's SQL in Spark. Its inputs become temporary views."""
        inputs = {
            upstream: ensure_started(frames[upstream]) for upstream in graph.inputs_of(self.file.model, name)
        }
        with self._views_lock:
            for upstream, frame in inputs.items():
                frame.createOrReplaceTempView(self._view_names[upstream])
            return self._sql_nodes.select(name, self._view_names, plan)

    def _table(self, name: str, frames: Mapping[str, DataFrame], plan: EpochPlan | None) -> None:
        """Load this epoch's rows into a dynamic table, and expose its contents to the SQL that looks it up.

        Without a plan, only validate.
        """
        node: Any = self.file.model.transforms[name]
        if node.inputs(name) and (plan is None or self.tables[name].needs_values(plan)):
            frame = self.select(name, frames, plan)
            frame = (
                without_marked(frame) if not self.retractions.marked.isdisjoint(node.inputs(name)) else frame
            ).drop(*HIDDEN)
            kind = frame.schema[0].dataType.simpleString()
            if kind not in ("string", "void"):
                msg = f"dynamic table side output expects a string column, got {kind}"
                raise SchemaError(msg, hint="Cast it: CAST(column AS STRING).", node=name)
            if plan is not None:
                self.tables[name].fill(plan, distinct_texts(frame, name))
        if (
            plan is not None
            and name in self._looked_up
            and (lookup := self.tables[name].lookup(plan)) is not self._lookups[name]
        ):
            self._lookups[name] = lookup
            register(self.spark, self._lookups)

    def _open_transform(self, name: str, node: Any, payload: pa.Schema) -> RowTransform:
        """Open a transform that is not SQL."""
        context = TransformContext(
            name,
            node,
            self._settings,
            payload,
            self.spark,
            key=graph.key_of(self.file.model, name),
            pipeline=lambda: self.pipeline,
            text_at=self.file.lines_of(name, "script"),
        )
        try:
            return open_transform(context)
        except UserError as error:
            error.keys = error.keys or (KEYS.get(node.type, ""),)
            raise

    def plan_text(self) -> str:
        """Return Spark's plans of the transforms, over sources without rows."""
        views = self._views(
            {name: SourceBatch(self._empty(name), 0) for name in self.source_schemas}, None, []
        )
        texts = [
            (name, cast("Any", views[name])._jdf.queryExecution().toString())  # noqa: SLF001  explain() only prints
            for name in self._order
            if name in views
        ]
        return "\n".join(f"== {name} ==\n{text}" for name, text in texts)

    def nodes(
        self, readings: Mapping[str, SourceBatch], plan: EpochPlan, *, separate: bool = False
    ) -> dict[str, DataFrame]:
        """Return the lazy frame of every source and transform for these readings, with the system columns.

        The frames are valid until the next call. With `separate`, transforms with dead letters are computed
        immediately, and their rejected rows are apart. By default such a row fails who reads the frame.
        """
        rejections = self._rejections(plan, self._errors) if separate else None
        return self._views(self._complete(readings), plan, rejections=rejections)

    def compute_local_rows(self, readings: Mapping[str, SourceBatch]) -> dict[str, pa.Table]:
        """Return the rows of readings in the driver, and of the nodes that Arrow computes from them."""
        return self._portable_nodes.compute(self._portable_nodes.names, self._complete(readings))

    def _rejections(self, plan: EpochPlan, nodes: Collection[str]) -> EpochRejections:
        return EpochRejections(plan.number, nodes, self.local_nodes, self.texts)

    def _complete(self, readings: Mapping[str, SourceBatch]) -> dict[str, SourceBatch]:
        return {
            name: readings.get(name)
            or SourceBatch(self._empty(name), 0, table=row_columns(payload).empty_table(), is_local=True)
            for name, payload in self.source_schemas.items()
        }

    @contextmanager
    def frames(
        self,
        plan: EpochPlan,
        readings: Mapping[str, SourceBatch],
        sinks: Sequence[str],
        staging: StoredResults | None = None,
        each: FrameObserver | None = None,
        bulk_copied: Collection[str] = (),
    ) -> Iterator[dict[str, EpochFrame]]:
        """Yield one frame per sink for this epoch. `each` receives the frames of nodes when they are made.

        Sources without a reading have no rows. With `staging`, non-deterministic nodes that these sinks need
        are computed first, and read from their stored results. A node that several of these sinks read is
        computed once: in the driver if it needs no Spark job, else persisted and unpersisted afterwards. The
        sinks `bulk_copied` read no frame as a rule, so nothing is computed for them in advance.
        """
        every = self._complete(readings)
        filled = [name for name, table in self.tables.items() if table.needs_values(plan)]
        wanted = staging.required_nodes([*sinks, *filled]) if staging else ()
        model = self.file.model
        rejecting = {
            name for reader in (*sinks, *filled) for name in graph.rejecting_transforms(model, reader)
        }
        with ExitStack() as stack:
            rejections = stack.enter_context(closing(self._rejections(plan, rejecting)))
            kept = dict.fromkeys(wanted, staging.load_or_compute) if staging else None
            boundary = SinkBoundary(model, self.retractions, self.keys)
            from_ = [model.sinks[sink].from_ for sink in sinks if sink not in bulk_copied]
            known = self._portable_nodes.compute(from_, every)
            if each is not None and known.keys() >= {*from_, *filled} and each.observe_rows(known):
                each = None
            views = self._views(every, plan, staged=kept, each=each, rejections=rejections)
            counts = staging.rows if staging else {}
            shared = {node for node in from_ if from_.count(node) > 1}
            read = {*from_} - set(counts)
            local, tables = self.local_nodes.compute(views, every, read, known) if each is None else ({}, {})
            there = {*counts, *local, *rejecting}
            there |= {name for name, one in every.items() if one.persisted is not None}
            for name in shared - there if readings else ():
                views[name] = views[name].persist()
                stack.callback(views[name].unpersist, blocking=False)
                if each is not None:
                    each.share(views[name])
            views |= local
            counts = counts | rejections.counts
            yield {
                sink: EpochFrame(
                    node_rows=views[model.sinks[sink].from_],
                    boundary=partial(boundary.rows, sink),
                    schema=self.schemas[sink],
                    key=self.keys[sink],
                    estimate=estimate_rows(model, sink, every, counts),
                    spark=self.spark,
                    likely=estimate_rows(model, sink, every, counts, one_of_one=True),
                    size=estimate_bytes(every),
                    table=boundary.local_rows(sink, tables[node])
                    if (node := model.sinks[sink].from_) in tables
                    else None,
                )
                for sink in sinks
            }

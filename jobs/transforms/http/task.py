"""The work of a Spark task of a handler: builds requests, sends them concurrently, reads responses.

Responses are read in order. Requests depend only on the order of the rows, so that an epoch that is computed
again sends the same bytes with the same idempotency keys.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.http.call_metrics import CallCounter
from headrace.connectors.http.client import HttpCaller, RequestBatch, Service, caller_for, excerpt
from headrace.connectors.http.decode import AnswerError, DecodedResponse, ResponseDecoder
from headrace.jobs.transforms.http.row_matching import match_request_rows, response_positions
from headrace.pipeline.errors import DataError, HeadraceError, TransientError

pc: Any = pyarrow.compute  # its functions are made at run time, where no type checker sees them
TEXT, OP, POS, KEYS = 0, 1, 2, 3
"""The columns of a task: the JSON of the row, the operation, the position, then the columns of the key."""


class _Stop(threading.Event):
    """Set when a task has failed or ended, so that its threads start nothing new. Stores the first error."""

    def __init__(self) -> None:
        super().__init__()
        self.error: HeadraceError | None = None

    def record_failure(self, error: HeadraceError) -> None:
        """One request will not succeed."""
        if not self.is_set():
            self.error = error
            self.set()


@dataclass(frozen=True)
class HandlerTask:
    """A task of a handler, for `mapInArrow`.

    Picklable. `prefix` begins every idempotency key; `key` are places in the answer's columns.
    """

    service: Service
    decoder: ResponseDecoder
    batch_size: int
    prefix: str
    key: tuple[int, ...]
    count: Any = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the responses in the order of the requests.

        Raises errors in a form that keeps their class and hint on the way to the driver.
        """
        from headrace.connectors.row_errors import task_error

        stop, counter = _Stop(), CallCounter()
        pool = ThreadPoolExecutor(self.service.concurrency, thread_name_prefix="handler")
        waiting: deque[Future[pa.RecordBatch]] = deque()
        try:
            caller = caller_for(self.service)
            for batch in self._build_requests(batches):
                waiting.append(pool.submit(self._answer, caller, batch, stop, counter))
                if len(waiting) > self.service.concurrency:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except HeadraceError as error:
            raise task_error(stop.error or error) from None
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            if self.count is not None:
                self.count.add(counter.calls())

    def _build_requests(self, batches: Iterable[pa.RecordBatch]) -> Iterator[RequestBatch]:
        """Yield requests of `batch_size` rows, or of one row if the decoder reads single rows.

        The last one may be smaller.
        """
        size = 1 if self.decoder.single else self.batch_size
        kept: list[pa.RecordBatch] = []
        buffered = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            kept.append(batch)
            buffered += batch.num_rows
            at = 0
            whole = _join_batches(kept) if buffered >= size else None
            while whole is not None and buffered >= size:
                yield self._batch(whole.slice(at, size))
                at, buffered = at + size, buffered - size
            if whole is not None:
                kept = [whole.slice(at)] if buffered else []
        if buffered:
            yield self._batch(_join_batches(kept))

    def _batch(self, rows: pa.RecordBatch) -> RequestBatch:
        if self.decoder.single:
            body = rows.column(TEXT)[0].as_buffer().to_pybytes()
        else:
            texts = pc.binary_join(pa.ListArray.from_arrays([0, rows.num_rows], rows.column(TEXT)), ",\n")
            body = b"[" + texts[0].as_buffer().to_pybytes() + b"]\n"
        first = rows.column(POS)[0].as_py()
        where = "{source}.{part}.{off}.{sub}".format(**first)
        return RequestBatch(
            rows, body, f"{self.prefix}/{hashlib.sha256(where.encode() + b' ' + body).hexdigest()[:32]}"
        )

    def _answer(
        self, caller: HttpCaller, batch: RequestBatch, stop: _Stop, counter: CallCounter
    ) -> pa.RecordBatch:
        try:
            return self._request_rows(caller, batch, stop, counter)
        except HeadraceError as error:
            stop.record_failure(error)
            raise

    def _request_rows(
        self, caller: HttpCaller, batch: RequestBatch, stop: _Stop, counter: CallCounter
    ) -> pa.RecordBatch:
        if stop.is_set():
            msg = "another request of the task failed"
            raise stop.error or TransientError(msg, node=self.service.node)
        reply = caller.send(batch, stop, counter)
        try:
            return self._rows(batch.rows, self.decoder.read(reply.body))
        except AnswerError as error:
            result = excerpt(reply.body, self.service.secrets)
            msg = f"POST {self.service.shown} answered HTTP {reply.status}, but {error}" + (
                f"\n  body: {result}" if result else ""
            )
            hint = "An answer has the columns of the node: those of `from`, changed by `schema_override`."
            raise DataError(msg, hint=hint, node=self.service.node) from None

    def _rows(self, sent: pa.RecordBatch, answer: DecodedResponse) -> pa.RecordBatch:
        back = [answer.columns[at] for at in self.key]
        for at, column in zip(self.key, back, strict=True):
            if column.null_count:
                name = self.decoder.schema.field(at).name
                msg = f"{column.null_count} of {answer.rows} rows lack `{name}`, which is a column of the key"
                raise AnswerError(msg)
        key_columns = [sent.column(KEYS + at) for at in range(sent.num_columns - KEYS)] if self.key else []
        at = match_request_rows(key_columns, back, sent.num_rows, answer.rows)
        ops = pc.coalesce(answer.ops, sent.column(OP).take(at)) if answer.rows else answer.ops
        _check_ops(ops)
        columns = [*answer.columns, ops, response_positions(sent.column(POS), at)]
        return pa.RecordBatch.from_arrays(columns, names=[f"c{place}" for place in range(len(columns))])


def _check_ops(ops: pa.Array) -> None:
    if ops.null_count:
        msg = f"{ops.null_count} of {len(ops)} rows lack `_gs_op`, and no row of the request has their key"
        raise AnswerError(msg)
    wrong = pc.filter(ops, pc.invert(pc.is_in(ops, pa.array(["i", "u", "d"]))))
    if len(wrong):
        msg = f"`_gs_op` is `{str(wrong[0])[:20]}` in {len(wrong)} rows; allowed: i, u, d"
        raise AnswerError(msg)


def _join_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = (
        pa.Table.from_batches(batches).combine_chunks().to_batches()
    )  # more than one where texts are over 2 GiB
    return whole

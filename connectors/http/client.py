"""Calls of a service over HTTP: retries with pauses, the circuit breaker, the errors of a refusal."""

from __future__ import annotations

import email.utils
import hashlib
import logging
import random
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headrace.connectors.http.call_metrics import CallCounter
from headrace.connectors.http.circuit_breaker import Breaker
from headrace.pipeline.errors import HeadraceError, TransientError, UserError

if TYPE_CHECKING:
    import httpx

_FIRST_PAUSE, _LAST_PAUSE = 0.1, 30.0
_LONGEST = 3600.0
"""The longest pause in seconds before the next request, whatever the service asks for."""
_KEPT = 4
_PATIENCE = 5.0
"""Seconds after which a retried request is reported."""
_AGAIN = (408, 429)
_EXCERPT = 200


class WaitNote(Protocol):
    """Where a caller notes that it waits for a service. Picklable."""

    def note(self, message: str, good_for: float) -> None:
        """Write what is waited for. The note expires after `good_for` seconds."""
        ...

    def over(self) -> None:
        """Remove the note."""
        ...


class RefusedStatusError(Exception):
    """The cause of an error that `send` raises because of the service's answers, the last one included."""

    def __init__(self, refusal: str, status: int) -> None:
        super().__init__(refusal)
        self.status = status
        """The status of the last answer."""


@dataclass(frozen=True, slots=True)
class _FailedAttempt:
    reason: str
    status: int | None = None
    """The status of the answer, if there was one."""
    pause: float | None = None
    """Seconds that the service asks to wait."""


@dataclass(frozen=True)
class Service:
    """Where requests go and how. Picklable. It has secrets, which its repr does not show."""

    node: str
    url: str = field(repr=False)
    shown: str
    headers: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    timeout: float
    retry_timeout: float | None
    max_attempts: int | None
    concurrency: int
    circuit_failures: int
    circuit_reset_after: float
    method: str = "POST"
    wait: WaitNote | None = None
    """Where tasks note that they wait for it."""

    @property
    def call(self) -> str:
        """The method and the address, for messages."""
        return f"{self.method} {self.shown}"

    @property
    def digest(self) -> str:
        """A digest that identifies the service within a process."""
        return hashlib.sha256(repr((self, self.url, sorted(self.headers.items()))).encode()).hexdigest()


@dataclass(frozen=True)
class RequestBatch:
    """One request: its rows, whose text is their JSON."""

    rows: pa.RecordBatch
    body: bytes
    key: str


@dataclass(frozen=True)
class PageRequest:
    """One GET request. `url` is the address of a page."""

    url: str = field(repr=False)


AnyRequest = RequestBatch | PageRequest


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer with 2xx. `next_link` is the address of the next page in its header Link, or ""."""

    status: int
    body: bytes
    next_link: str = ""


class HttpCaller:
    """Calls a service, with retries.

    One per process and service: it keeps connections and the state of the circuit breaker.
    """

    def __init__(self, service: Service) -> None:
        import httpx

        from headrace.connectors.http.deadline import add_deadline

        for name in ("httpx", "httpcore"):  # they log whole URLs
            logging.getLogger(name).setLevel(logging.WARNING)
        self._service = service
        self._errors = httpx
        # The task's threads bound what is under way; a bound here would make requests wait for those of a
        # task that failed.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=service.concurrency)
        self._client = httpx.Client(timeout=service.timeout, limits=limits, headers=dict(service.headers))
        self._deadline = add_deadline(self._client)
        self.breaker = Breaker(service.node, service.circuit_failures, service.circuit_reset_after)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, request: AnyRequest, stop: threading.Event, counter: CallCounter) -> HttpReply:
        """Return the response.

        Raises UserError for a refusal, TransientError after too much time or too many attempts.
        """
        noted = threading.Event()
        try:
            return self._send_with_retries(request, stop, counter, noted)
        finally:
            if self._service.wait is not None and noted.is_set():
                self._service.wait.over()

    def _send_with_retries(
        self,
        request: AnyRequest,
        stop: threading.Event,
        counter: CallCounter,
        noted: threading.Event,
    ) -> HttpReply:
        began = time.monotonic()
        attempt, pause, last = 0, _FIRST_PAUSE, _FailedAttempt("the service was failing")
        deadline = None if self._service.retry_timeout is None else began + self._service.retry_timeout
        while True:
            if not self.breaker.enter(deadline, stop):
                raise self._given_up(attempt, time.monotonic() - began, last.reason) from _cause(last)
            attempt += 1
            try:
                result = self._send_once(request, counter, retry=attempt > 1)
            except HeadraceError:
                raise
            except BaseException:
                self.breaker.record_failure()  # else other requests wait for this probe
                raise
            if isinstance(result, HttpReply):
                return result
            last = result
            spread = pause * random.uniform(0.5, 1.0)  # noqa: S311  so that tasks do not come back all at once
            wait = spread if last.pause is None else last.pause
            pause = min(pause * 2, _LAST_PAUSE)
            over = deadline is not None and time.monotonic() + wait > deadline
            self._note_wait(began, attempt, last.reason, wait, noted)
            if over or attempt == self._service.max_attempts or stop.wait(wait):
                raise self._given_up(attempt, time.monotonic() - began, last.reason) from _cause(last)

    def _note_wait(
        self, began: float, attempts: int, last: str, pause: float, noted: threading.Event
    ) -> None:
        """Note the wait for the heartbeat, if it has taken or will take long. Sets `noted` then."""
        seconds = time.monotonic() - began
        if self._service.wait is None or seconds + pause < _PATIENCE:
            return
        noted.set()
        message = (
            f"{self._service.call}: tried {attempts} times in {seconds:.0f} s, and again; the last: {last}"
        )
        self._service.wait.note(
            message, pause + self._service.timeout + self._service.circuit_reset_after + _PATIENCE
        )

    def _send_once(
        self, request: AnyRequest, counter: CallCounter, *, retry: bool
    ) -> HttpReply | _FailedAttempt:
        """Return the response, or why there is none yet. Raises UserError for a refusal."""
        httpx, started = self._errors, time.monotonic()

        def count(outcome: str, status: str) -> None:
            counter.add(outcome, status, (time.monotonic() - started) * 1000, retry=retry)

        try:
            with self._deadline.within(self._service.timeout), self._open_stream(request) as response:
                status = response.status_code
                try:
                    body = response.read()
                except (httpx.TransportError, httpx.DecodingError) as error:
                    self.breaker.record_failure()
                    count("retriable_error", "body_read_error")
                    late = isinstance(error, httpx.TimeoutException)
                    why = (
                        f"was not there within {self._service.timeout:g} s"
                        if late
                        else f"could not be read: {_error_text(error)}"
                    )
                    return _FailedAttempt(f"HTTP {status}, and the body {why}")
        except httpx.TimeoutException:
            self.breaker.record_failure()
            count("retriable_error", "timeout")
            return _FailedAttempt(f"no answer within {self._service.timeout:g} s")
        except httpx.TransportError as error:
            self.breaker.record_failure()
            count("retriable_error", "network_error")
            return _FailedAttempt(self._clean(_error_text(error)))
        return self._classify_status(response, status, body, count)

    def _open_stream(self, request: AnyRequest) -> AbstractContextManager[httpx.Response]:
        if isinstance(request, PageRequest):
            return self._client.stream("GET", request.url)
        return self._client.stream(
            "POST", self._service.url, content=request.body, headers={"Idempotency-Key": request.key}
        )

    def _classify_status(
        self, response: httpx.Response, status: int, body: bytes, count: Any
    ) -> HttpReply | _FailedAttempt:
        if 200 <= status < 300:
            self.breaker.record_success()
            count("success", "2xx")
            return HttpReply(status, body, response.links.get("next", {}).get("url", ""))
        refusal = f"HTTP {status}{self._excerpt(body)}"
        if status in _AGAIN or status >= 500:
            # A service that asks for a pause is up.
            (self.breaker.record_success if status == 429 else self.breaker.record_failure)()
            count("retriable_error", f"{status // 100}xx")
            return _FailedAttempt(refusal, status, _retry_after(response.headers.get("Retry-After")))
        self.breaker.record_success()
        count("non_retriable_error", f"{status // 100}xx")
        where = self._service.call
        if 300 <= status < 400:
            hint = "Write the address that it redirects to as `url`: requests do not follow."
            msg = f"{where}: {refusal}"
            raise UserError(msg, hint=hint, node=self._service.node) from RefusedStatusError(refusal, status)
        hint = "The service refuses the request: see its log, and `url` and `headers` of the node."
        msg = f"{where}: non-retriable {refusal}"
        raise UserError(msg, hint=hint, node=self._service.node) from RefusedStatusError(refusal, status)

    def _given_up(self, attempts: int, seconds: float, last: str) -> TransientError:
        circuit = (
            f"; the circuit is open after {self._service.circuit_failures} failures in a row"
            if self.breaker.open
            else ""
        )
        msg = (
            f"{self._service.call}: given up after {attempts} attempts in {seconds:.1f} s{circuit};"
            f" the last: {last}"
        )
        hint = "The run tries again once the service answers; `retry` says for how long."
        return TransientError(msg, hint=hint, node=self._service.node)

    def _excerpt(self, body: bytes) -> str:
        result = excerpt(body, self._service.secrets)
        return f": {result}" if result else ""

    def _clean(self, text: str) -> str:
        for secret in self._service.secrets:
            text = text.replace(secret, "***") if secret else text
        return text


def _cause(last: _FailedAttempt) -> RefusedStatusError | None:
    return RefusedStatusError(last.reason, last.status) if last.status is not None else None


_callers: dict[str, HttpCaller] = {}
"""Of this process: Spark keeps its Python workers for the next epoch."""


def caller_for(service: Service) -> HttpCaller:
    """Return the caller of a service. It is created once per process; the oldest callers are closed."""
    digest = service.digest
    if digest not in _callers:
        _callers[digest] = HttpCaller(service)
        while len(_callers) > _KEPT:
            _callers.pop(next(iter(_callers))).close()
    return _callers[digest]


def _retry_after(value: str | None) -> float | None:
    """Return how many seconds a service asks to wait, by number or by date."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return min(max(0.0, seconds), _LONGEST)


def _error_text(error: Exception) -> str:
    text = str(error).split("\n", maxsplit=1)[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def excerpt(body: bytes, secrets: Iterable[str] = ()) -> str:
    """Return the beginning of a body on one line, with secrets masked."""
    text = body[: 4 * _EXCERPT].decode("utf-8", "replace")
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"

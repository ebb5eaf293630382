"""What nodes share that call a service over HTTP: `http` sources, handlers and webhook sinks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainSerializer, PositiveInt

from headrace.pipeline.errors import UserError
from headrace.pipeline.model.base import NodeConfig
from headrace.pipeline.model.run_options import Duration, as_duration
from headrace.pipeline.model.strict import Strict
from headrace.pipeline.types.durations import spell_duration
from headrace.pipeline.yaml.interpolation import VARIABLE

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LONG = 20


def _parse_retry_timeout(value: object) -> object:
    if value == "forever":
        return value
    try:
        return as_duration(value)
    except ValueError as error:
        msg = f"{error}; or `forever`"
        raise ValueError(msg) from error


def _spell(value: timedelta | str) -> str:
    return value if isinstance(value, str) else spell_duration(value)


RetryTimeout = Annotated[
    timedelta | Literal["forever"],
    BeforeValidator(_parse_retry_timeout),
    PlainSerializer(_spell, when_used="json"),
]


class RetryConfig(Strict):
    """How long and how often one request is tried again before the epoch fails."""

    timeout: RetryTimeout = Field(
        default=timedelta(minutes=5),
        description="How long one request is tried again; `forever`, as Streamling does.",
    )
    max_attempts: PositiveInt | None = Field(
        default=None,
        description="Maximum number of attempts of one request. Defaults to no limit except `timeout`.",
    )


class EndpointConfig(NodeConfig):
    """Keys of an address and its calls. Strings with secrets keep their variables until a run needs them."""

    url: str = Field(
        description="The address. `${VAR}` is looked up when a run needs it; its value is in no plan,"
        " ledger or message."
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="Further headers of every request; `${VAR}` as in `url`."
    )
    secret_name: str | None = Field(
        default=None,
        description="A further header from the settings: its name from `http_secret_header`, its value from"
        " `http_secret_value`.",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=30),
        description="For one attempt as a whole, from the connection to the last byte of the answer.",
    )
    retry: RetryConfig = Field(
        default_factory=RetryConfig, description="Attempts of one request before the epoch fails."
    )


class RequestConfig(EndpointConfig):
    """Keys of requests with rows."""

    url: str = Field(
        description="Where to POST. `${VAR}` is looked up when a run needs it; its value is in no plan,"
        " ledger or message."
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Further headers of every request; `${VAR}` as in `url`. Content-Type is"
        " application/json if it is not among them.",
    )
    one_row_per_request: bool = Field(
        default=False, description="Sends one object per request instead of an array of up to `batch_size`."
    )
    payload_version: Literal[0, 1] = Field(
        default=0,
        description='1: each row is `{"metadata": {"op": "i"}, "data": {…}}`, in requests and in answers;'
        " 0: the columns alone.",
    )


def find_request_errors(node: EndpointConfig) -> Iterator[tuple[tuple[str, ...], UserError]]:
    """Yield the invalid values of a node, each with the path of its keys."""
    if problem := url_problem(node.url):
        yield (
            ("url",),
            UserError(
                f"`url` {problem}",
                hint="Write it as https://host/path; secrets as ${VAR}, or by `secret_name`.",
            ),
        )
    for name, value in node.headers.items():
        if not _HEADER.fullmatch(name):
            yield (
                ("headers", name),
                UserError(
                    f"`{name}` cannot be a header's name",
                    hint="Letters, digits and dashes, such as X-Api-Key.",
                ),
            )
        elif problem := header_problem(value):
            yield (
                ("headers", name),
                UserError(f"the header `{name}` {problem}", hint="Write it on one line, in ASCII."),
            )
        elif name.lower() in ("idempotency-key", "content-length", "host"):
            yield (
                ("headers", name),
                UserError(f"the header `{name}` is set by Headrace itself", hint="Remove it."),
            )
    if node.retry.timeout != "forever" and node.retry.timeout < timedelta(0):
        yield (
            ("retry", "timeout"),
            UserError("`retry.timeout` is less than nothing", hint="Write a duration, such as 5m."),
        )
    if node.timeout <= timedelta(0):
        yield (
            ("timeout",),
            UserError("`timeout` must be longer than nothing", hint="Write a duration, such as 30s."),
        )


def find_request_warnings(node: EndpointConfig) -> Iterator[tuple[tuple[str, ...], UserError]]:
    """Yield warnings for secrets in the file. The ledger stores them too."""
    hint = "Write it as ${VAR}, or give it by `secret_name`: the ledger stores the file."
    if re.match(r"[a-z]+://[^/?#]*:[^/?#]+@", VARIABLE.sub("", node.url), re.IGNORECASE):
        yield ("url",), UserError("`url` holds a password", hint=hint)
    for name, value in node.headers.items():
        if name.lower() in (
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
        ) and not VARIABLE.search(value):
            yield ("headers", name), UserError(f"the header `{name}` holds a secret", hint=hint)


def redact_url(url: str) -> str:
    """Return a URL for messages, without user, password, query values, and path parts that may be tokens."""
    kept, marks = url, []
    for result in VARIABLE.finditer(url):
        mark = f"hr{len(marks)}var"
        marks.append((mark, result[0]))
        kept = kept.replace(result[0], mark, 1)
    try:
        parts = urlsplit(kept)
    except ValueError:
        return "(a URL that cannot be read)"
    host = parts.netloc.rpartition("@")[2]
    path = "/".join("***" if len(piece) >= _LONG else piece for piece in parts.path.split("/"))
    scheme, login = f"{parts.scheme}://" if parts.scheme else "", "***@" if "@" in parts.netloc else ""
    shown = f"{scheme}{login}{host}{path}{'?***' if parts.query else ''}"
    for mark, written in marks:
        shown = shown.replace(mark, re.sub(r":-[^}]*", "", written))
    return shown


def header_problem(value: str) -> str:
    """Return the problem with a header's value, without the value."""
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        return "has a control character in it"
    return "" if value.isascii() else "has a letter in it that is not ASCII"


def url_problem(url: str) -> str:
    """Return the problem with a URL, without the URL. Variables may replace any part."""
    if VARIABLE.match(url):
        return ""
    if any(char.isspace() or ord(char) < 32 for char in url):
        return "has a blank in it"
    try:
        parts = urlsplit(VARIABLE.sub("1", url))
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        return "cannot be read as a URL"
    if parts.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    return "" if parts.hostname and port_is_fine else "names no host"

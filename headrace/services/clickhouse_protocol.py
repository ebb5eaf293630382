"""The HTTP protocol of ClickHouse: parses requests, and formats responses and errors."""

from __future__ import annotations

import email.parser
import email.policy
import io
import secrets
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, cast
from urllib.parse import parse_qsl

import pyarrow as pa
from starlette.datastructures import Headers

from headrace.services.clickhouse_engine import ClickHouseEngineError, StatementContext

# Parameters of the request. Every other one is a setting or, with `param_`, a bound value.
_REQUEST_PARAMETERS = {
    *(
        "query",
        "database",
        "user",
        "password",
        "quota_key",
        "query_id",
        "role",
        "default_format",
        "compress",
        "decompress",
    ),
    *(
        "session_id",
        "session_timeout",
        "session_check",
        "wait_end_of_query",
        "buffer_size",
        "client_protocol_version",
    ),
    # Settings of the server's HTTP interface, which the engine does not know.
    *("enable_http_compression", "send_progress_in_http_headers", "http_headers_progress_interval_ms"),
}
_ENCODINGS = {"lz4": "lz4", "zstd": "zstd", "gzip": "gzip", "br": "brotli"}
_CONTENT_TYPES = {
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
}
# The server's mapping of exception codes. All others are 500.
_STATUS = {
    400: {6, 15, 25, 26, 27, 36, 38, 41, 42, 43, 44, 53, 62, 69, 70, 72, 117, 321, 376, 427},
    401: {194},
    403: {192, 193, 497, 516},
    404: {46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 336},
    408: {159},
    413: {191},
    501: {48},
}


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """A request without its body. `query` is the part of the query in the URL or form."""

    query: str
    context: StatementContext
    query_id: str
    session_id: str | None
    session_timeout: float
    default_format: str
    buffered: bool
    user: str
    password: str = field(repr=False)


def read_request(
    headers: Headers, query_string: bytes, form: Mapping[str, str], *, read_only: bool
) -> GatewayRequest:
    """Parse a request. `form` fields override URL parameters.

    Raise ClickHouseEngineError for unsupported features.
    """
    fields = dict(parse_qsl(query_string.decode(), keep_blank_values=True)) | dict(form)
    for name in ("compress", "decompress"):
        if fields.get(name, "0") not in {"0", ""}:
            raise not_supported(f"the URL parameter '{name}' (ClickHouse's own block compression)")  # noqa: EM102 - a phrase of a message
    parameters = {
        key.removeprefix("param_"): value for key, value in fields.items() if key.startswith("param_")
    }
    settings = {
        key: value
        for key, value in fields.items()
        if key not in _REQUEST_PARAMETERS and not key.startswith("param_")
    }
    if read_only:
        settings["readonly"] = "2"
    user, password = _credentials(headers, fields)
    return GatewayRequest(
        query=fields.get("query", ""),
        context=StatementContext(
            fields.get("database") or headers.get("x-clickhouse-database"), settings, parameters
        ),
        query_id=fields.get("query_id") or _random_id(),
        session_id=fields.get("session_id") or None,
        session_timeout=float(fields.get("session_timeout") or 60),
        default_format=fields.get("default_format") or headers.get("x-clickhouse-format") or "TabSeparated",
        buffered=fields.get("wait_end_of_query", "0") == "1",
        user=user,
        password=password,
    )


def read_form(content_type: str, body: bytes) -> dict[str, str]:
    """Return the fields of a multipart form: queries and bound values that are too long for a URL."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    fields: dict[str, str] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        if part.get_filename():
            raise not_supported("external tables")  # noqa: EM101 - a phrase of a message
        payload = part.get_payload(decode=True)
        fields[str(name)] = payload.decode() if isinstance(payload, bytes) else ""
    return fields


def decode_body(body: io.RawIOBase, encoding: str | None) -> BinaryIO:
    """Return the body as a stream, decoded from its Content-Encoding."""
    buffered = cast("BinaryIO", io.BufferedReader(body, 1 << 20))
    if not encoding or encoding == "identity":
        return buffered
    if encoding not in _ENCODINGS:
        raise not_supported(f"Content-Encoding '{encoding}'; there are {', '.join(_ENCODINGS)}")  # noqa: EM102 - a phrase of a message
    decompressed = pa.CompressedInputStream(pa.PythonFile(buffered), _ENCODINGS[encoding])
    return cast("BinaryIO", io.BufferedReader(_Decompressed(decompressed.read), 1 << 20))


class _Decompressed(io.RawIOBase):
    """Arrow's decompressor as a Python stream."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def content_type(fmt: str) -> str:
    """Return the server's content type of a format."""
    return _CONTENT_TYPES.get(
        fmt, "text/plain; charset=UTF-8" if fmt.startswith("Pretty") else "application/octet-stream"
    )


def http_status(code: int) -> int:
    """Return the HTTP status of an exception code."""
    return next((status for status, codes in _STATUS.items() if code in codes), 500)


def exception_block(text: str, tag: str) -> bytes:
    """Return an error for a client that already got status 200 and some rows (servers since 25.11)."""
    message = f"{text}\n"
    return (
        f"\r\n__exception__\r\n{tag}\r\n{message}{len(message.encode())} {tag}\r\n__exception__\r\n".encode()
    )


def authentication_failed(user: str) -> ClickHouseEngineError:
    """Return the error for a wrong user or password. Its text is the server's."""
    return ClickHouseEngineError(
        f"Code: 516. DB::Exception: {user}: Authentication failed: password is incorrect, or there is no"
        " user with such name. (AUTHENTICATION_FAILED)"
    )


def not_supported(what: str) -> ClickHouseEngineError:
    """Return the error for a feature of the real server that this gateway does not have."""
    return ClickHouseEngineError(
        f"Code: 48. DB::Exception: This local gateway does not support {what}. (NOT_IMPLEMENTED)"
    )


def _credentials(headers: Headers, parameters: Mapping[str, str]) -> tuple[str, str]:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, password = b64decode(value, validate=True).decode().partition(":")
        except (Base64Error, UnicodeDecodeError):
            return "", ""
        return user, password
    user = headers.get("x-clickhouse-user") or parameters.get("user") or "default"
    return user, headers.get("x-clickhouse-key") or parameters.get("password") or ""


def _random_id() -> str:
    text = secrets.token_hex(16)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

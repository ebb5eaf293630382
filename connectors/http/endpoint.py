"""The endpoint of a node: URL and headers with variables, and the secrets to mask in messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import SettingsError, UserError
from headrace.pipeline.model.http import EndpointConfig, RequestConfig, header_problem, url_problem
from headrace.pipeline.yaml.interpolation import VARIABLE, interpolate


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """An address, the headers of every request, and the texts among them that are secret."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


def resolve_endpoint(name: str, node: EndpointConfig, settings: Settings) -> HttpEndpoint:
    """Return the URL and the headers of a node.

    Raises UserError for a variable or a secret that is not set, or cannot be sent.
    """
    url = interpolate(node.url, node=name)
    headers = {key: interpolate(value, node=name) for key, value in node.headers.items()}
    secrets = [
        value for key, value in headers.items() if VARIABLE.search(node.headers[key]) or _is_secret(key)
    ]
    secrets += [part for part in secrets for part in part.split(" ", 1)[1:]]
    hint = "See the variable or the setting that it comes from."
    for key, value in headers.items():
        if problem := header_problem(value):
            msg = f"the header `{key}` {problem}"
            raise UserError(msg, hint=hint, node=name, keys=("headers", key))
    if node.secret_name is not None:
        keys = ("secret_name",)
        try:
            header, value = settings.http_secret(node.secret_name)
        except SettingsError as error:
            raise UserError(error.message, hint=error.hint, node=name, keys=keys) from None
        if header.lower() in {key.lower() for key in headers}:
            msg = f"cannot set both 'secret_name' and an explicit '{header}' header - remove one"
            raise UserError(msg, node=name, keys=keys)
        if problem := header_problem(value):
            msg = f"the header `{header}` {problem}"
            raise UserError(msg, hint=hint, node=name, keys=keys)
        headers[header] = value
        secrets.append(value)
    if isinstance(node, RequestConfig) and not any(key.lower() == "content-type" for key in headers):
        headers["Content-Type"] = "application/json"
    if problem := url_problem(url):
        msg = f"`url` {problem}"
        raise UserError(msg, hint="See the variables in it.", node=name, keys=("url",))
    return HttpEndpoint(url, headers, (*secrets, *_in_url(url, node.url)))


def _is_secret(header: str) -> bool:
    return header.lower() in ("authorization", "proxy-authorization", "cookie", "x-api-key")


def _in_url(url: str, written: str) -> list[str]:
    """Return the secret parts of a URL: values of variables, the password, values of the query."""
    parts = urlsplit(url)
    result = [parts.password or "", parts.username or "", *(value for _, value in parse_qsl(parts.query))]
    result += [interpolate(match[0]) for match in VARIABLE.finditer(written)]
    return [text for text in result if len(text) > 3]

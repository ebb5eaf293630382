"""The addresses of pages."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from headrace.connectors.http_source.config import (
    HttpSourceConfig,
    PageCursor,
    PageLink,
    PageNumbers,
    PageOffsets,
)
from headrace.pipeline.errors import DataError

_END = "The service never ends: correct `pagination`, or the service."


class Pager:
    """The addresses of one reading of an API, in order. `url` is the resolved address of the node."""

    def __init__(self, node: HttpSourceConfig, url: str, name: str) -> None:
        self._node = node
        self._url = url
        self._name = name
        self._pages = 0
        self._rows = 0
        self._seen = {self.first()}

    def first(self) -> str:
        """Return the address of the first page."""
        return self._number_url() or self._url

    def next(self, rows: int, following: str) -> str | None:
        """Return the address of the page after one with `rows` rows, or None at the end.

        `following` is the cursor or the address that the page contained. Raise DataError if the pages repeat,
        are too many, or lead to another server.
        """
        self._pages += 1
        self._rows += rows
        how = self._node.pagination
        if how is None:
            return None
        if isinstance(how, PageNumbers | PageOffsets):
            result = self._number_url() if rows else ""
        elif isinstance(how, PageCursor):
            result = _with_query(self._url, {how.parameter: following}) if following else ""
        else:
            result = self._follow_link(following) if following else ""
        if not result:
            return None
        if result in self._seen:
            msg = f"page {self._pages} leads to a page that was read before"
            raise DataError(msg, hint=_END, node=self._name)
        if self._pages == self._node.max_pages:
            msg = f"there are more pages than `max_pages` ({self._node.max_pages})"
            raise DataError(msg, hint="Raise `max_pages`, or correct `pagination`.", node=self._name)
        self._seen.add(result)
        return result

    def _number_url(self) -> str:
        """Return the address of the page after the ones read, or "" if pages have no numbers."""
        how = self._node.pagination
        if isinstance(how, PageNumbers):
            size = {how.size_parameter: str(how.size)} if how.size_parameter else {}
            return _with_query(self._url, {how.parameter: str(how.first + self._pages), **size})
        if isinstance(how, PageOffsets):
            query = {how.parameter: str(self._rows), how.size_parameter: str(how.size)}
            return _with_query(self._url, query)
        return ""

    def _follow_link(self, following: str) -> str:
        result = urljoin(self._url, following)
        if _origin(result) != _origin(self._url):
            msg = f"page {self._pages} leads to another server: {urlsplit(result).netloc.rpartition('@')[2]}"
            hint = "Requests with the headers of this node go to the server of `url` only."
            raise DataError(msg, hint=hint, node=self._name)
        return result


def next_path(node: HttpSourceConfig) -> tuple[str, ...] | None:
    """Return where an answer has the cursor or the address of the next page, or None if it has neither."""
    how = node.pagination
    path = how.path if isinstance(how, PageCursor | PageLink) else None
    return None if path is None else tuple(path.split("."))


def _with_query(url: str, added: Mapping[str, str]) -> str:
    """Return a URL with these parameters in place of those of the same names."""
    parts = urlsplit(url)
    kept = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key not in added]
    return urlunsplit(parts._replace(query=urlencode([*kept, *added.items()])))


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()

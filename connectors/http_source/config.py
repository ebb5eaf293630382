"""The `http` source of a pipeline file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from headrace.connectors.staged.config import StagedSourceConfig
from headrace.pipeline.model.http import EndpointConfig
from headrace.pipeline.model.strict import Strict

_BY = "What leads to the next page."


def _check_path(value: str) -> str:
    if not all(value.split(".")) or any(char.isspace() for char in value):
        msg = f"`{value}` is no path; write keys with dots between them, such as `data.items`"
        raise ValueError(msg)
    return value


JsonPath = Annotated[str, AfterValidator(_check_path)]


class PageNumbers(Strict):
    """Pages by number. A page without rows is the end."""

    by: Literal["page"] = Field(description=_BY)
    parameter: str = Field(default="page", description="Query parameter with the number of the page.")
    first: NonNegativeInt = Field(default=1, description="Number of the first page.")
    size_parameter: str | None = Field(default=None, description="Query parameter with `size`.")
    size: PositiveInt | None = Field(default=None, description="Rows of a page to ask for.")

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if (self.size is None) != (self.size_parameter is None):
            msg = "`size` and `size_parameter` belong together"
            raise ValueError(msg)
        return self


class PageOffsets(Strict):
    """Pages by the number of rows before them. A page without rows is the end."""

    by: Literal["offset"] = Field(description=_BY)
    parameter: str = Field(default="offset", description="Query parameter with the rows before the page.")
    size_parameter: str = Field(default="limit", description="Query parameter with `size`.")
    size: PositiveInt = Field(default=100, description="Rows of a page to ask for.")


class PageCursor(Strict):
    """Pages by a cursor in the answer. An answer without it, or with null or an empty text, is the end."""

    by: Literal["cursor"] = Field(description=_BY)
    parameter: str = Field(default="cursor", description="Query parameter with the cursor.")
    path: JsonPath = Field(description="Where the answer has the next cursor, such as `meta.next_cursor`.")


class PageLink(Strict):
    """Pages by the address of the next one. An answer without it is the end."""

    by: Literal["link"] = Field(description=_BY)
    path: JsonPath | None = Field(
        default=None,
        description="Where the answer has the address, such as `links.next`. Defaults to the header Link with"
        ' rel="next".',
    )


Pagination = Annotated[PageNumbers | PageOffsets | PageCursor | PageLink, Field(discriminator="by")]


class HttpSourceConfig(EndpointConfig, StagedSourceConfig):
    """Pages of a JSON API, read once by GET requests; Headrace stores their rows."""

    identity_keys: ClassVar[frozenset[str]] = frozenset({"url", "records", "pagination", "schema", "filter"})

    type: Literal["http"] = "http"
    records: JsonPath | None = Field(
        default=None,
        description="Where an answer has the array of rows, such as `data.items`. Defaults to the answer"
        " itself.",
    )
    pagination: Pagination | None = Field(
        default=None, description="How to get the next page. Defaults to a single answer."
    )
    max_pages: PositiveInt = Field(
        default=10_000, description="Pages to read at most. If there are more, the run stops."
    )

    @model_validator(mode="after")
    def _check_envelope(self) -> Self:
        path = getattr(self.pagination, "path", None)
        if path is not None and self.records is None:
            msg = "`pagination.path` needs `records`: an answer that is an array has no other keys"
            raise ValueError(msg)
        return self

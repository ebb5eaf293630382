"""What the models of a file share: unknown keys are mistakes, columns are a list or a text with commas."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _csv(value: object) -> object:
    """`a, b` and [a, b] both name columns; blanks are dropped."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Columns = Annotated[tuple[str, ...], BeforeValidator(_csv)]


class Strict(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

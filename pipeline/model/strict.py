"""The base of a file's models: unknown keys are mistakes, columns are a list or a string with commas."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict


def split_csv(value: object) -> object:
    """Return the names of a comma-separated string as a tuple, without blanks. Return a list unchanged."""
    return (
        tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
    )


def _once(columns: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for column in columns:
        if column.lower() in seen:
            msg = f"names `{column}` twice"
            raise ValueError(msg)
        seen.add(column.lower())
    return columns


Columns = Annotated[tuple[str, ...], BeforeValidator(split_csv), AfterValidator(_once)]


class Strict(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

"""docs/reference/all-settings.md: a table of the model of the settings."""

from __future__ import annotations

from collections.abc import Iterator

from option_tables import default_text
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.pipeline.config.settings import Settings

_HEAD = """# All settings

<!-- Written by `make docs` from the models in pipeline/config/. Change those. -->

This page lists every setting. [Settings](settings.md) describes where Headrace looks for them.

| setting | default | description |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = (
        f"| `{name}` | {default_text(field)} | {' '.join((field.description or '').split())} |\n"
        for name, field in _settings(Settings, "")
    )
    return _HEAD + "".join(rows)


def _settings(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting by its dotted name, those of a section in the section's place."""
    for name, field in model.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from _settings(section, f"{prefix}{name}.")
        else:
            yield prefix + name, field

"""Pipelines that are a part of another YAML file, with locations in that file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.pipeline.errors import FileLocation, PipelineFileError, UserError
from headrace.pipeline.file.loader import PipelineFile, parse_pipeline
from headrace.pipeline.yaml.reader import nearest_location, read_tree

Places = Mapping[tuple[str | int, ...], FileLocation]


def parse_inline_pipeline(body: Mapping[str, Any], shown: str, prefix: tuple[str | int, ...]) -> PipelineFile:
    """Return the pipeline in the map `body`, which is at `prefix` in the file `shown`.

    Raise PipelineFileError with every mistake.
    """
    text = json.dumps(body, default=str, indent=1)  # JSON is YAML, and keeps the types of values
    inner, outer = read_tree(text, shown).places, _read_places(shown)
    moved = {
        place: nearest_location(outer, (*prefix, *path)) or FileLocation(shown)
        for path, place in sorted(inner.items(), key=lambda item: len(item[0]))
    }
    try:
        pipeline = parse_pipeline(text, shown)
    except PipelineFileError as error:
        raise PipelineFileError([_move(problem, moved, shown) for problem in error.problems]) from None
    places = {path: moved.get(place, FileLocation(shown)) for path, place in pipeline.places.items()}
    warnings = tuple(_move(warning, moved, shown) for warning in pipeline.warnings)
    return replace(pipeline, places=places, warnings=warnings)


def _read_places(shown: str) -> Places:
    try:
        return read_tree(Path(shown).read_text(encoding="utf-8"), shown).places
    except (OSError, UnicodeDecodeError, UserError):
        return {}


def _move(problem: UserError, moved: Mapping[FileLocation, FileLocation], shown: str) -> UserError:
    place = moved.get(problem.place, FileLocation(shown)) if problem.place else None
    return type(problem)(problem.message, hint=problem.hint, node=problem.node, place=place)

"""Preprocessors: plugins that rewrite a pipeline file before it is parsed. Errors keep the original lines."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace.pipeline.errors import FileLocation, HeadraceError, PluginError, UserError
from headrace.pipeline.plugins.api import Plugin, PluginType
from headrace.pipeline.plugins.discovery import InstalledPlugin, load_plugin_of_type
from headrace.pipeline.plugins.options import RawOptions, check, fields_of, gather
from headrace.pipeline.plugins.runtime import PluginContext, plugin_error
from headrace.pipeline.plugins.settings import plugin_settings


@dataclass(frozen=True, slots=True)
class PreprocessedText:
    """A text with the origin of each line: its number in the file, or the preprocessor that wrote it."""

    text: str
    lines: tuple[int | str, ...] = ()

    def place(self, place: FileLocation) -> FileLocation:
        """Return the position in the file of a position in the text. Lines of a preprocessor are marked."""
        if not self.lines or place.line is None or not 1 <= place.line <= len(self.lines):
            return place
        was = self.lines[place.line - 1]
        if isinstance(was, int):
            return replace(place, line=was)
        return replace(place, file=f"{place.file} as the preprocessor `{was}` wrote it")

    def problem(self, problem: UserError) -> UserError:
        """Return the error with its location in the file."""
        if problem.place is None:
            return problem
        return type(problem)(
            problem.message, hint=problem.hint, node=problem.node, place=self.place(problem.place)
        )


def preprocess(text: str, shown: str) -> PreprocessedText:
    """Run the preprocessors of the settings on a text. Raise PluginError if one is missing or fails."""
    settings = plugin_settings()
    result = PreprocessedText(text)
    for plugin_id in settings.preprocessor_ids:
        result = rewrite(result, plugin_id, settings.preprocessor_options, shown)
    return result


def rewrite(
    before: PreprocessedText, plugin_id: str, options: Mapping[str, Any], shown: str
) -> PreprocessedText:
    """Run one preprocessor on a text. `options` has the form of the setting `preprocessor_options`."""
    result, plugin = load_plugin_of_type(plugin_id, PluginType.PREPROCESSOR, "preprocessor_ids")
    parsed = options_of(result, plugin, options, "preprocessor_options")
    try:
        worker = plugin.make(PluginContext(plugin_id, parsed, found=result))
        text = worker.process(before.text) if hasattr(worker, "process") else worker(before.text)
    except HeadraceError:
        raise
    except Exception as error:
        raise plugin_error(error, result, doing="rewriting", place=FileLocation(shown)) from error
    if not isinstance(text, str):
        msg = (
            f"the preprocessor `{result.id}` ({result.origin}) returned {type(text).__name__}, and not a text"
        )
        raise PluginError(msg, place=FileLocation(shown))
    if text == before.text:
        return before
    return PreprocessedText(text, tuple(_origins(before, text, plugin_id)))


def _in_words(item: ErrorDetails) -> str:
    where = ".".join(str(part) for part in item["loc"])
    match item["type"]:
        case "missing":
            return f"`{where}` is missing"
        case "extra_forbidden":
            return f"there is no option `{where}`"
        case _:
            return f"`{where}`: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _origins(before: PreprocessedText, text: str, plugin_id: str) -> list[int | str]:
    old, new = before.text.splitlines(), text.splitlines()
    known = before.lines or tuple(range(1, len(old) + 1))
    result: list[int | str] = [plugin_id] * len(new)
    for block in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            result[block.b + offset] = known[block.a + offset]
    return result


def options_of(
    installed_plugin: InstalledPlugin, plugin: Plugin, section: Mapping[str, Any], setting: str
) -> BaseModel:
    """Return a plugin's options from a setting: a map under its id, or flat keys. Raise PluginError."""
    own = section.get(plugin.id)
    known = fields_of(plugin.options)
    flat = {key: value for key, value in section.items() if key in known}
    values: RawOptions = gather(plugin.id, plugin.options, own if isinstance(own, Mapping) else {}, flat)
    parsed, lines = check(plugin.options, values)
    if parsed is not None:
        return parsed
    reasons = "; ".join(
        _in_words(item) for item in ValidationError.from_exception_data("options", lines).errors()
    )
    msg = (
        f"the plugin `{installed_plugin.id}` ({installed_plugin.origin}) does not take its options: {reasons}"
    )
    raise PluginError(msg, hint=f"They are in the setting plugin.{setting}, under `{plugin.id}`.")

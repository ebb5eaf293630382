"""docs/reference/cli.md: every command of the command line with its arguments and options, as typer knows them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

from headrace import cli
from headrace.commands import plugin
from headrace.services import cli as services

_HEAD = """# Command line

<!-- Written by `make docs` from headrace/cli.py. Change that. -->

The option `--help` of a command prints the same. Exit codes: 0 done, or stopped by a signal; 1 an error or a failed check; 2 wrong usage.
"""
_TYPES: dict[Any, str] = {int: "integer", float: "number", Path: "path"}
_GROUPS = {"services": services.app, "plugin": plugin.app}


def page() -> str:
    """Return the whole page."""
    whole = "\n".join([_HEAD, *_index(), *_command("headrace", _click(cli.app), heading="Global options"), *_commands()])
    return whole.rstrip("\n") + "\n"


def _click(app: typer.Typer) -> Any:
    return typer.main.get_command(app)


def _names() -> Iterator[tuple[str, Any]]:
    for name, command in sorted(_click(cli.app).commands.items()):
        if name in _GROUPS:
            yield from ((f"{name} {inner}", one) for inner, one in sorted(_click(_GROUPS[name]).commands.items()))
        else:
            yield name, command


def _index() -> Iterator[str]:
    yield from ("| command | purpose |", "|---|---|")
    for name, command in _names():
        yield f"| [`headrace {name}`](#headrace-{name.replace(' ', '-')}) | {_cell(_help(command).split(chr(10) * 2)[0])} |"
    yield ""


def _commands() -> Iterator[str]:
    for name, command in _names():
        yield from _command(f"headrace {name}", command)


def _command(name: str, command: Any, heading: str = "") -> Iterator[str]:
    yield from (f"## {heading or name}", "")
    parameters = [one for one in command.params if not one.hidden] if not heading else list(command.params)
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    if not heading:
        usage = [name, *(["[OPTIONS]"] if options else []), *(_metavar(one) for one in arguments)]
        yield from (_help(command), "", "```text", " ".join(usage), "```", "")
    if arguments:
        yield from ("| argument | default | description |", "|---|---|---|")
        yield from (f"| `{_cell(_metavar(one))}` | {_default(one)} | {_cell(one.help or '')} |" for one in arguments)
        yield ""
    if options:
        yield from ("| option | type | default | description |", "|---|---|---|---|")
        yield from (f"| {_spelling(one)} | {_type(one)} | {_default(one)} | {_cell(one.help or '')} |" for one in options)
        yield ""


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.metavar:
        return name
    return f"{name if argument.required else f'[{name}]'}{'...' if argument.nargs != 1 else ''}"


def _spelling(option: Any) -> str:
    return ", ".join(f"`{one}`" for one in sorted(option.opts, key=len, reverse=True))


def _type(option: Any) -> str:
    if option.is_flag:
        return "flag"
    annotation = option.type_descriptor.annotation
    annotation = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        text = " or ".join(f"`{one.value}`" for one in annotation)
    else:
        text = f"`{option.metavar}`" if option.metavar else _TYPES.get(annotation, "text")
    return _cell(f"{text}, repeatable" if option.multiple else text)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "**required**"
    value = parameter.default
    if value is None or value is False or value in ((), []):
        return "\u2013"
    return f"`{getattr(value, 'value', value)}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())

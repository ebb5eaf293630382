"""docs/reference/cli.md: every command with its arguments and options, from typer."""

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

<!-- Written by `make docs` from headrace/cli.py and the *_cli.py next to it. Change these. -->

The option `--help` of a command prints the same. Exit codes: 0 done, or stopped by a signal or a request; 1 an error or a failed check; 2 wrong usage.
"""
_TYPES: dict[Any, str] = {int: "integer", float: "number", Path: "path"}
_GROUPS = {"services": services.app, "plugin": plugin.app}


def page() -> str:
    """Return the whole page."""
    whole = "\n".join(
        [_HEAD, *_index(), *_command("headrace", _click(cli.app), heading="Global options"), *_commands()]
    )
    return whole.rstrip("\n") + "\n"


def _click(app: typer.Typer) -> Any:
    return typer.main.get_command(app)


def _list_commands() -> Iterator[tuple[str, Any]]:
    for name, command in sorted(_click(cli.app).commands.items()):
        if name in _GROUPS:
            yield from (
                (f"{name} {inner}", subcommand)
                for inner, subcommand in sorted(_click(_GROUPS[name]).commands.items())
            )
        else:
            yield name, command


def _index() -> Iterator[str]:
    yield from ("| command | purpose |", "|---|---|")
    for name, command in _list_commands():
        yield (
            f"| [`headrace {name}`](#headrace-{name.replace(' ', '-')}) |"
            f" {_cell(_help(command).split(chr(10) * 2)[0])} |"
        )
    yield ""


def _commands() -> Iterator[str]:
    for name, command in _list_commands():
        yield from _command(f"headrace {name}", command)


def _command(name: str, command: Any, heading: str = "") -> Iterator[str]:
    yield from (f"## {heading or name}", "")
    parameters = (
        [parameter for parameter in command.params if not parameter.hidden]
        if not heading
        else list(command.params)
    )
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    options = [parameter for parameter in parameters if parameter.param_type_name == "option"]
    if not heading:
        usage = [name, *(["[OPTIONS]"] if options else []), *(_metavar(parameter) for parameter in arguments)]
        yield from (_help(command), "", "```text", " ".join(usage), "```", "")
    if arguments:
        yield from ("| argument | default | description |", "|---|---|---|")
        yield from (
            f"| `{_cell(_metavar(parameter))}` | {_default(parameter)} | {_cell(parameter.help or '')} |"
            for parameter in arguments
        )
        yield ""
    if options:
        yield from ("| option | type | default | description |", "|---|---|---|---|")
        yield from (
            (
                f"| {_spelling(parameter)} | {_type(parameter)} | {_default(parameter)} |"
                f" {_cell(parameter.help or '')} |"
            )
            for parameter in options
        )
        yield ""


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.metavar:
        return name
    return f"{name if argument.required else f'[{name}]'}{'...' if argument.nargs != 1 else ''}"


def _spelling(option: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))


def _type(option: Any) -> str:
    if option.is_flag:
        return "flag"
    annotation = option.type_descriptor.annotation
    annotation = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        text = " or ".join(f"`{choice.value}`" for choice in annotation)
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

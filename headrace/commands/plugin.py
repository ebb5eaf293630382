"""`headrace plugin`: a new package with a plugin, and what is installed."""

from __future__ import annotations

import keyword
import re
import sys
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from headrace.commands.init import write_new
from headrace.console import out, print_json
from headrace.pipeline.errors import PluginError, UserError
from headrace.pipeline.plugins.api import sql_name
from headrace.pipeline.plugins.discovery import InstalledPlugin, installed, is_allowed, load
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.validation.messages import types_of
from headrace.pipeline.yaml.reader import PARTS

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")


class NewKind(StrEnum):
    """The kinds of plugins, as the command line has them."""

    SINK = "sink"
    SOURCE = "source"
    TRANSFORM = "transform"
    FUNCTION = "function"
    PREPROCESSOR = "preprocessor"
    SIDE_OUTPUT = "side-output"


@app.callback()
def _plugin() -> None:
    """Write plugins, and see which are installed."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Its id: `word`, or `namespace.word`.", metavar="NAME", show_default=False)],
    folder: Annotated[
        Path | None, typer.Argument(help="The package's folder; named after it if not given.", metavar="DIR", show_default=False)
    ] = None,
    *,
    kind: Annotated[NewKind, typer.Option(help="What it is.")] = NewKind.SINK,
) -> None:
    """Write a package with a plugin that works, and its tests."""
    place = folder or Path(name.replace(".", "-").replace("_", "-"))
    texts = render(name, kind)
    write_new(place, texts, "Choose another folder: headrace plugin new NAME DIR.")
    console = out()
    console.print(f"{place}: a {kind} plugin, `{name}`", markup=False)
    for path in texts:
        console.print(f"  {path}", markup=False)
    console.print(f"Next, in {place}:\n  pip install -e .\n  pytest\n  headrace plugin list", markup=False)


def render(plugin_id: str, kind: NewKind) -> dict[str, str]:
    """The files of a new package by their paths. Raises UserError for a name that cannot be."""
    if not _NAME.fullmatch(plugin_id):
        msg = f"`{plugin_id}` cannot be the name of a plugin"
        raise UserError(
            msg, hint="Lower-case letters, digits and `_`, beginning with a letter; one dot behind a namespace, such as acme.orders."
        )
    module = plugin_id.replace(".", "_")
    if taken := _taken(plugin_id, module):
        msg = f"`{plugin_id}` cannot be the name of a plugin: {taken}"
        raise UserError(msg, hint=f"Put a namespace before it, such as acme.{plugin_id}.")
    values: dict[str, str] = {
        "id": plugin_id,
        "package": module.replace("_", "-"),
        "module": module,
        "kind": kind.replace("-", " "),
        "function": sql_name(plugin_id),
    }
    texts: dict[str, str] = {}
    for part in ("plugin-common", f"plugin-{kind}"):
        for file in (files("headrace") / "templates" / part).iterdir():
            if file.is_file():
                texts[file.name] = file.read_text(encoding="utf-8")
    values["use"] = Template(texts.pop("use.md")).substitute(values).rstrip()
    places = {"gitignore": ".gitignore", "plugin.py": f"src/{module}/__init__.py", "test_plugin.txt": f"tests/test_{module}.py"}
    made = {places.get(name, name): Template(text).substitute(values) for name, text in texts.items()}
    return dict(sorted(made.items()))


def _taken(plugin_id: str, module: str) -> str:
    """Why pipeline files or Python would take the name for another thing; nothing if they would not."""
    if plugin_id in {kind for part in PARTS for kind in types_of(part)}:
        return "it is a built-in type"
    if keyword.iskeyword(module):
        return "it is a word of Python's own"
    return "it is a module that is there already" if module in {"headrace", *sys.stdlib_module_names} else ""


@app.command(name="list")
def list_(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Show the plugins of this environment, and whether they load. Exit code 1 if one does not."""
    found = [_about(plugin) for plugin in installed()]
    if as_json:
        print_json(found)
    else:
        _show(found)
    if any(plugin["error"] for plugin in found):
        raise typer.Exit(1)


def _about(found: InstalledPlugin) -> Json:
    told = {"id": found.id, "kind": None, "package": found.package, "version": found.version, "entry": found.entry, "error": None}
    if not is_allowed(found.id):
        return told | {"kind": "not allowed"}
    try:
        return told | {"kind": str(load(found).kind)}
    except PluginError as error:
        return told | {"error": error.message}


def _show(found: list[Json]) -> None:
    console = out()
    if not found:
        console.print("No plugins are installed. `headrace plugin new NAME` writes one.", markup=False)
        return
    widths = [max(len(str(plugin[key] or "?")) for plugin in found) for key in ("id", "kind")]
    for plugin in found:
        line = (
            f"{plugin['id']:<{widths[0]}}  {plugin['kind'] or '?':<{widths[1]}}  {plugin['package']} {plugin['version']}, {plugin['entry']}"
        )
        console.print(line, markup=False, soft_wrap=True)
        if plugin["error"]:
            console.print(f"  {plugin['error']}", markup=False, soft_wrap=True)

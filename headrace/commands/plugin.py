"""`headrace plugin`: create a package with a plugin, and list installed plugins."""

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

from headrace.commands.init import write_new_files
from headrace.console import print_json, stdout_console
from headrace.pipeline.errors import PluginError, UserError
from headrace.pipeline.plugins.api import sql_name
from headrace.pipeline.plugins.discovery import InstalledPlugin, is_allowed, list_installed, load
from headrace.pipeline.protocol.epochs import Json
from headrace.pipeline.validation.messages import types_of
from headrace.pipeline.yaml.reader import PARTS

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")


class NewPluginType(StrEnum):
    """The plugin types that `headrace plugin new --kind` accepts."""

    SINK = "sink"
    SOURCE = "source"
    TRANSFORM = "transform"
    FUNCTION = "function"
    PREPROCESSOR = "preprocessor"
    SIDE_OUTPUT = "side-output"


@app.callback()
def _plugin() -> None:
    """Create plugins and list the installed ones."""


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(help="Plugin id: `word` or `namespace.word`.", metavar="NAME", show_default=False)
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of the package. Default: named after the plugin.", metavar="DIR", show_default=False
        ),
    ] = None,
    *,
    kind: Annotated[NewPluginType, typer.Option(help="Type of the plugin.")] = NewPluginType.SINK,
) -> None:
    """Create a package with a working plugin and its tests."""
    target = folder or Path(name.replace(".", "-").replace("_", "-"))
    texts = render(name, kind)
    write_new_files(target, texts, "Choose another folder: headrace plugin new NAME DIR.")
    console = stdout_console()
    console.print(f"{target}: a {kind} plugin, `{name}`", markup=False)
    for path in texts:
        console.print(f"  {path}", markup=False)
    console.print(f"Next, in {target}:\n  pip install -e .\n  pytest\n  headrace plugin list", markup=False)


def render(plugin_id: str, kind: NewPluginType) -> dict[str, str]:
    """Return the files of a new package by path. Raise UserError for an invalid name."""
    if not _NAME.fullmatch(plugin_id):
        msg = f"`{plugin_id}` cannot be the name of a plugin"
        raise UserError(
            msg,
            hint="Lower-case letters, digits and `_`, beginning with a letter; an optional namespace and a"
            " dot before it. Example: acme.orders.",
        )
    module = plugin_id.replace(".", "_")
    if conflict := _name_conflict(plugin_id, module):
        msg = f"`{plugin_id}` cannot be the name of a plugin: {conflict}"
        raise UserError(msg, hint=f"Add a namespace. Example: acme.{plugin_id}.")
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
    paths = {
        "gitignore": ".gitignore",
        "plugin.py": f"src/{module}/__init__.py",
        "test_plugin.txt": f"tests/test_{module}.py",
    }
    rendered = {paths.get(name, name): Template(text).substitute(values) for name, text in texts.items()}
    return dict(sorted(rendered.items()))


def _name_conflict(plugin_id: str, module: str) -> str:
    """Return why the name is taken in pipeline files or Python, empty if it is free."""
    if plugin_id in {kind for part in PARTS for kind in types_of(part)}:
        return "it is a built-in type"
    if keyword.iskeyword(module):
        return "it is a Python keyword"
    return "it is a Python module" if module in {"headrace", *sys.stdlib_module_names} else ""


@app.command(name="list")
def list_(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the plugins of this environment. Exit code 1 if one of them does not load."""
    plugins = [_plugin_json(plugin) for plugin in list_installed()]
    if as_json:
        print_json(plugins)
    else:
        _show_plugins(plugins)
    if any(plugin["error"] for plugin in plugins):
        raise typer.Exit(1)


def _plugin_json(plugin: InstalledPlugin) -> Json:
    description = {
        "id": plugin.id,
        "kind": None,
        "package": plugin.package,
        "version": plugin.version,
        "entry": plugin.entry,
        "error": None,
    }
    if not is_allowed(plugin.id):
        return description | {"kind": "not allowed"}
    try:
        return description | {"kind": str(load(plugin).kind)}
    except PluginError as error:
        return description | {"error": error.message}


def _show_plugins(plugins: list[Json]) -> None:
    console = stdout_console()
    if not plugins:
        console.print("No plugins are installed. `headrace plugin new NAME` writes one.", markup=False)
        return
    widths = [max(len(str(plugin[key] or "?")) for plugin in plugins) for key in ("id", "kind")]
    for plugin in plugins:
        line = (
            f"{plugin['id']:<{widths[0]}}  {plugin['kind'] or '?':<{widths[1]}}  {plugin['package']}"
            f" {plugin['version']}, {plugin['entry']}"
        )
        console.print(line, markup=False, soft_wrap=True)
        if plugin["error"]:
            console.print(f"  {plugin['error']}", markup=False, soft_wrap=True)

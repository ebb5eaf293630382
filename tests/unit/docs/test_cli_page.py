"""The CLI page has every command and every option."""

from __future__ import annotations

import cli_pages
import pytest
import typer

from headrace import cli

COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("services", "plugin")])
def test_page_has_every_option_of_a_command(name: str) -> None:
    section = cli_pages.page().split(f"\n## headrace {name}\n")[1].split("\n## ")[0]
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "option":
            assert all(f"`{option}`" in section for option in parameter.opts), parameter.name
            assert parameter.help

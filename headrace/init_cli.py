"""The command that creates a pipeline: init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[
        Path, typer.Argument(help="Target folder. Created if missing.", metavar="DIR", show_default=False)
    ] = Path(),
    *,
    template: Annotated[
        str | None,
        typer.Option(
            help="clickhouse-kafka-postgres, kafka-delta or files-iceberg.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the pipeline, its tables and its topic.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Primary key column.", metavar="COLUMN", show_default=False)
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            help="local: headrace services up. containers: compose.", metavar="WHERE", show_default=False
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not prompt; use defaults for missing options.")
    ] = False,
) -> None:
    """Create a ready-to-run pipeline with tests and data."""
    from headrace.commands.init import InitOptions, Servers, TemplateName
    from headrace.commands.init import init as work

    for option, value, allowed in (("--template", template, TemplateName), ("--servers", servers, Servers)):
        if value is not None and value not in list(allowed):
            msg = f"{value!r} is not one of {', '.join(allowed)}"
            raise typer.BadParameter(msg, param_hint=option)
    wanted = InitOptions(
        TemplateName(template) if template else None, name, key, Servers(servers) if servers else None
    )
    work(folder, wanted, ask=not yes)

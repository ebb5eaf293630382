"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(help="Pipeline file.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the changes without making them.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the end of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

"""`headrace services`: up, down, status, env, psql."""

from __future__ import annotations

import os
import shlex
import threading
from typing import Annotated

import typer
from rich.table import Table

from headrace import console
from headrace.services import NAMES, Services, Status, manager

app = typer.Typer(
    help="Real Postgres, Kafka and ClickHouse on this machine, without containers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Chosen = Annotated[
    list[str] | None, typer.Argument(help=f"Which: {', '.join(NAMES)}. Not given: all.", metavar="[NAME]...", show_default=False)
]


@app.command()
def up(names: Chosen = None) -> None:
    """Start what does not run, and wait until each server answers."""
    manager.up(names or NAMES, progress=_Progress())
    _show(manager.status())


@app.command()
def down(names: Chosen = None) -> None:
    """Stop the servers. Their data, ports and passwords stay."""
    manager.down(names=names or NAMES)
    _show(manager.status())


@app.command()
def status() -> None:
    """Ask each server. Exit code 1 unless all of them answer."""
    found = manager.status()
    _show(found)
    if any(service.state != "up" for service in found):
        raise typer.Exit(1)


@app.command()
def env(*, passwords: Annotated[bool, typer.Option("--passwords", help="With the passwords. Mind who reads along.")] = False) -> None:
    """Print the connections as lines for a shell.

    Headrace itself needs none of this: it reads services.json.
    """
    for key, value in environment(Services(), passwords=passwords).items():
        typer.echo(f"export {key}={shlex.quote(value)}")


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def psql(ctx: typer.Context) -> None:
    """Open psql on the local Postgres. Arguments go to it: psql -c "SELECT 1"."""
    command, env = Services().postgres.psql(ctx.args)
    os.execvpe(command[0], command, os.environ | env)  # noqa: S606  psql takes this process over


def environment(services: Services, *, passwords: bool) -> dict[str, str]:
    """The settings that lead to the servers that this home has had, by their names in the environment."""
    found: dict[str, str] = {}
    if services.postgres.entry:
        server = services.postgres
        found |= {"POSTGRES_SINK__HOST": server.host, "POSTGRES_SINK__PORT": str(server.port)}
        found |= {"POSTGRES_SINK__USER": server.user, "POSTGRES_SINK__DB": server.dbname}
        found |= {"POSTGRES_SINK__PASSWORD": server.password} if passwords else {}
    if services.kafka.entry:
        found |= {"KAFKA_SOURCE__BROKERS": services.kafka.brokers}
    if services.clickhouse.entry:
        found |= {"CLICKHOUSE_SOURCE__URL": services.clickhouse.url, "CLICKHOUSE_SOURCE__USER": services.clickhouse.user}
        found |= {"CLICKHOUSE_SOURCE__PASSWORD": services.clickhouse.password} if passwords else {}
    return {f"HEADRACE__{key}": value for key, value in found.items()}


def _show(services: list[Status]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("service", "state", "address", "pid"):
        table.add_column(heading, no_wrap=True)
    for service in services:
        table.add_row(service.name, service.state, service.address, str(service.pid or ""))
    console.out().print(table)
    logs = {service.log.parent for service in services}
    console.out().print(f"logs: {', '.join(map(str, logs))}", markup=False, soft_wrap=True)


class _Progress:
    """A line on standard error for each 10 MB of jars."""

    def __init__(self) -> None:
        self._told = -1
        self._lock = threading.Lock()

    def __call__(self, done: int, note: str) -> None:
        with self._lock:
            if done // 10_000_000 > self._told:
                self._told = done // 10_000_000
                console.err().print(f"jars: {console.size(done)}  {note}", markup=False, soft_wrap=True)

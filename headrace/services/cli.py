"""`headrace services`: up, down, status, env, psql."""

from __future__ import annotations

import os
import shlex
import threading
from typing import Annotated

import typer
from rich.table import Table

from headrace import console
from headrace.services import NAMES, Services, ServiceStatus, manager

app = typer.Typer(
    help="Real Postgres, Kafka and ClickHouse on this machine, without containers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ServiceNames = Annotated[
    list[str] | None,
    typer.Argument(
        help=f"Services: {', '.join(NAMES)}. Default: all.", metavar="[NAME]...", show_default=False
    ),
]


@app.command()
def up(names: ServiceNames = None) -> None:
    """Start the servers that do not run, and wait until each answers."""
    manager.up(names or NAMES, progress=_DownloadProgress())
    _show(manager.status())


@app.command()
def down(names: ServiceNames = None) -> None:
    """Stop the servers. Data, ports and passwords are kept."""
    manager.down(names=names or NAMES)
    _show(manager.status())


@app.command()
def status() -> None:
    """Send a request to each server. Exit code 1 unless all of them answer."""
    statuses = manager.status()
    _show(statuses)
    if any(service.state != "up" for service in statuses):
        raise typer.Exit(1)


@app.command()
def env(
    *, passwords: Annotated[bool, typer.Option("--passwords", help="Also print the passwords.")] = False
) -> None:
    """Print the connection settings as shell commands.

    Headrace itself does not need them: it reads services.json.
    """
    for key, value in environment(Services(), passwords=passwords).items():
        typer.echo(f"export {key}={shlex.quote(value)}")


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def psql(ctx: typer.Context) -> None:
    """Open psql on the local Postgres with the given arguments. Example: psql -c "SELECT 1"."""
    command, env = Services().postgres.psql(ctx.args)
    os.execvpe(command[0], command, os.environ | env)  # noqa: S606  psql takes this process over


def environment(services: Services, *, passwords: bool) -> dict[str, str]:
    """Return the settings of the servers of this home, by the names of their environment variables."""
    variables: dict[str, str] = {}
    if services.postgres.entry:
        server = services.postgres
        for name in ("POSTGRES_SOURCE", "POSTGRES_SINK"):
            variables |= {f"{name}__HOST": server.host, f"{name}__PORT": str(server.port)}
            variables |= {f"{name}__USER": server.user, f"{name}__DB": server.dbname}
            variables |= {f"{name}__PASSWORD": server.password} if passwords else {}
    if services.kafka.entry:
        variables |= {"KAFKA_SOURCE__BROKERS": services.kafka.brokers}
    if services.clickhouse.entry:
        for section in ("CLICKHOUSE_SOURCE", "CLICKHOUSE_SINK"):
            variables |= {f"{section}__URL": services.clickhouse.url}
            variables |= {f"{section}__USER": services.clickhouse.user}
            variables |= {f"{section}__PASSWORD": services.clickhouse.password} if passwords else {}
        if database := services.clickhouse.entry.get("sink_database"):
            variables["CLICKHOUSE_SINK__DATABASE"] = database
    return {f"HEADRACE__{key}": value for key, value in variables.items()}


def _show(services: list[ServiceStatus]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("service", "state", "address", "pid"):
        table.add_column(heading, no_wrap=True)
    for service in services:
        table.add_row(service.name, service.state, service.address, str(service.pid or ""))
    console.stdout_console().print(table)
    logs = {service.log.parent for service in services}
    console.stdout_console().print(f"logs: {', '.join(map(str, logs))}", markup=False, soft_wrap=True)


class _DownloadProgress:
    """Prints a line to standard error for each 10 MB of jars."""

    def __init__(self) -> None:
        self._reported = -1
        self._lock = threading.Lock()

    def __call__(self, done: int, note: str) -> None:
        with self._lock:
            if done // 10_000_000 > self._reported:
                self._reported = done // 10_000_000
                console.stderr_console().print(
                    f"jars: {console.format_size(done)}  {note}", markup=False, soft_wrap=True
                )

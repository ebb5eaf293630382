"""The `headrace` command. Others are in `repair_cli`, `stop_cli` and `operation_cli`.

Each command imports its implementation from `headrace.commands` when it is called.
"""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli_options import AsJson, File
from headrace.handover import hand_over
from headrace.init_cli import init
from headrace.jobs.explain.formats import Format
from headrace.jobs.run.events import Until
from headrace.operation_cli import compact, prune, rebuild, restart, vacuum
from headrace.repair_cli import accept_target, recover, replay, reset, rewind
from headrace.stop_cli import pause, resume, stop

app = typer.Typer(
    name="headrace",
    help="Replicate data from history to live. Every row arrives exactly once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_NEW_OBJECTS = 50_000
"""The garbage collector runs after so many new objects. With its default it takes a tenth of a start: imports
create 400,000 objects, all of which stay.
"""
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""For a command whose arguments another program reads."""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print log lines to standard error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version
    from headrace import logging_setup

    logging_setup.configure_logging(
        level=logging.INFO if verbose else logging.WARNING, log_format=logging_setup.read_log_format()
    )


app.command()(init)


@app.command()
def run(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Pipeline files, or folders of them: all run in one process.", show_default=False
        ),
    ],
    *,
    until: Annotated[
        Until | None,
        typer.Option(
            help="When to stop. Default: never, or after history if the pipeline sets `job_mode`.",
            show_default=False,
        ),
    ] = None,
    job_mode: Annotated[
        bool, typer.Option("--job-mode", help="The same as `--until history`, for Streamling users.")
    ] = False,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATE",
            help="Load only this partition of history, named by its first date. Repeatable.",
            show_default=False,
        ),
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh",
            help="Read complete partitions again. Their rows replace those that the sinks have of them. An"
            " active stream does this between two epochs, and the command waits for it.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the pipeline as `headrace validate` does, then exit.")
    ] = False,
) -> None:
    """Run pipelines: history, handoff, stream. Ctrl-C stops them cleanly."""
    if dry_run:
        from headrace.commands.validate import validate as work
        from headrace.pipeline.file.discovery import find_pipeline_files

        listed = find_pipeline_files(files) if any(path.is_dir() for path in files) else files
        work(listed, as_json=False, quick=False)
        return
    from headrace.commands.run import RunOptions
    from headrace.commands.run import run as work

    work(files, RunOptions(until, job_mode, tuple(partition or ()), refresh))


@app.command()
def validate(
    files: Annotated[list[Path] | None, typer.Argument(help="Pipeline files.", show_default=False)] = None,
    *,
    as_json: AsJson = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check only the file: no connection, no Spark.")
    ] = False,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="First rewrite the file: old and Streamling spellings, missing `dialect:`."
        ),
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of pipeline files for editors.")
    ] = False,
) -> None:
    """Check pipeline files: keys, graph, SQL, schemas. Nothing is read or written."""
    if schema == bool(files) or (schema and fix):
        msg = "use either FILES or --schema"
        raise typer.BadParameter(msg)
    from headrace.commands import validate as work

    if files:
        work.validate(files, as_json=as_json, quick=quick, fix=fix)
    else:
        work.print_schema()


@app.command()
def explain(
    file: File,
    *,
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
    lineage: Annotated[
        bool, typer.Option("--lineage", help="Show the source of each sink column. JSON always includes it.")
    ] = False,
    splits: Annotated[
        bool,
        typer.Option(
            "--splits", help="Show the splits of history that a run would read. Creates no snapshot."
        ),
    ] = False,
    spark_plan: Annotated[
        bool, typer.Option("--spark-plan", help="Also show Spark's plan of the SQL.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Open no connections; skip checks that need a server.")
    ] = False,
) -> None:
    """Show what a run would do, and its guarantees."""
    if offline and splits:
        msg = "--splits needs connections; do not combine it with --offline"
        raise typer.BadParameter(msg)
    if form is Format.MERMAID and (lineage or splits or spark_plan):
        msg = (
            f"--format {form} shows only the graph; use --lineage, --splits and --spark-plan with text or"
            " json"
        )
        raise typer.BadParameter(msg)
    from headrace.commands.inspect import explain as work

    work(file, form, lineage=lineage, splits=splits, spark_plan=spark_plan, offline=offline)


@app.command(name="test")
def run_tests(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Pipeline files, *.test.yaml files or folders. Default: this folder."),
    ] = None,
    *,
    expression: Annotated[
        str | None,
        typer.Option(
            "-k", metavar="EXPRESSION", help="Run only matching tests. Example: `amount and not error`."
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Replace the expected rows of failed tests with the actual rows.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junitxml", metavar="FILE", help="Also write a JUnit XML report.")
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--exitfirst", "-x", help="Stop at the first failure.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every row that differs.")] = False,
) -> None:
    """Run pipeline tests with pytest, without servers."""
    from headrace.commands.test import run_tests as work

    work(paths or [Path()], expression, update=update, report=junit, verbose=verbose, fail_fast=fail_fast)


@app.command()
def status(
    file: Annotated[
        Path | None, typer.Argument(help="Pipeline file. Default: all pipelines.", show_default=False)
    ] = None,
    *,
    epochs: Annotated[int, typer.Option(min=0, help="Number of recent epochs to show.")] = 5,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="With --watch: seconds between refreshes.")] = 1.0,
) -> None:
    """Show the progress of pipelines, from the ledger."""
    if watch:
        if as_json:
            msg = "--watch cannot be combined with --json"
            raise typer.BadParameter(msg)
        from headrace.commands.watch import watch as again

        again(file, interval)
        return
    from headrace.commands.inspect import status as work

    work(file, as_json=as_json, epochs=epochs)


@app.command()
def tail(
    file: File,
    node: Annotated[
        str | None, typer.Argument(help="Source, transform or sink. Default: all.", show_default=False)
    ] = None,
    *,
    rows: Annotated[
        int | None, typer.Option("-n", "--rows", min=1, help="Stop after this many rows.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print rows of a running pipeline."""
    from headrace.commands.tail import tail as work

    work(file, node, as_json=as_json, rows=rows)


@app.command()
def audit(
    file: File,
    *,
    all_epochs: Annotated[
        bool, typer.Option("--all-epochs", help="Check all epochs, not only those since the last audit.")
    ] = False,
    content: Annotated[
        bool, typer.Option("--content", help="Also compare sink rows with source rows.")
    ] = False,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows", min=1, help="With --content: read at most this many rows per sink.", show_default=False
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="With --content: time budget per sink.", show_default=False),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="With --content: compare all rows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare sinks with the ledger. Exit code 1 if a check fails."""
    if full + (rows is not None) + (seconds is not None) > 1:
        msg = "use only one of --rows, --seconds and --full"
        raise typer.BadParameter(msg)
    from headrace.commands.inspect import audit as work

    compares = content or full or rows is not None or seconds is not None
    work(
        file, as_json=as_json, all_epochs=all_epochs, content=compares, rows=rows, seconds=seconds, full=full
    )


for command in (
    *(stop, pause, resume, restart, replay, rebuild, rewind, reset, accept_target, recover, prune),
    *(compact, vacuum),
):
    app.command()(command)


@app.command(add_help_option=False, context_settings=_PASSED_ON)
def services(ctx: typer.Context) -> None:
    """Start, stop and list local Postgres, Kafka and ClickHouse."""
    from headrace.services.cli import app as services_app

    services_app(args=ctx.args, prog_name="headrace services")


@app.command(add_help_option=False, context_settings=_PASSED_ON)
def plugin(ctx: typer.Context) -> None:
    """Create a plugin, list installed plugins."""
    from headrace.commands.plugin import app as plugin_app

    plugin_app(args=ctx.args, prog_name="headrace plugin")


@app.command()
def ui(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 3000,
) -> None:
    """Start the Dagster UI with the pipelines of this folder."""
    from headrace.orchestration.ui import serve
    from headrace.pipeline.config.settings import load_settings

    serve(load_settings().home, host, port)


@app.command()
def doctor() -> None:
    """Check that this machine has the required software."""
    from headrace.services.doctor import doctor as work

    work()


@app.command()
def demo(
    *,
    tamper: Annotated[
        bool,
        typer.Option(
            "--tamper", help="Delete a row from the sink, run the check that finds it, and repair it."
        ),
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Stop the demo servers and delete the demo data.")
    ] = False,
) -> None:
    """Replicate 336,776 real flights, with a kill in the middle."""
    from headrace.demo.run import demo as work

    raise typer.Exit(work(tamper=tamper, clean=clean))


def main() -> None:
    """Run the console script. Exit codes: 0 completed or stopped, 1 error, 2 wrong usage."""
    if _is_run(sys.argv[1:]) and (code := hand_over(sys.argv[1:])) is not None:
        sys.exit(code)
    gc.set_threshold(_NEW_OBJECTS, 20, 20)
    run_app()


def _is_run(arguments: list[str]) -> bool:
    """Return whether the command is `headrace run`, perhaps after options of `headrace`."""
    return next((one for one in arguments if not one.startswith("-")), "") == "run"


def run_app() -> None:
    """Run the command of `sys.argv` in this process."""
    try:
        app(prog_name="headrace")
    except Exception as error:  # noqa: BLE001  an error that is none of Headrace's becomes one line and a report
        from headrace.console import show_failure

        show_failure(error)
        sys.exit(1)

"""The `headrace` command. Verbs are thin: what they do is in `headrace.commands`, imported when the verb is called."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace import __version__
from headrace.jobs.events import Until
from headrace.jobs.explain.formats import Format
from headrace.pipeline.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="Carries data from history to live, every row exactly once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[Path, typer.Argument(help="A pipeline file.", show_default=False)]
SinkName = Annotated[str, typer.Option("--sink", help="The sink's name in the file.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log lines on standard error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    del version
    from headrace import logs

    logs.set_up(level=logging.INFO if verbose else logging.WARNING, log_format=_log_format())


def _log_format() -> str:
    return os.environ.get("HEADRACE__LOG_FORMAT") or os.environ.get("STREAMLING__LOG_FORMAT") or "text"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder; made where it is missing.", metavar="DIR", show_default=False)] = Path(),
    *,
    template: Annotated[
        str | None, typer.Option(help="clickhouse-kafka-postgres, kafka-delta or files-iceberg.", metavar="NAME", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="The pipeline's name, also of its tables and topic.", show_default=False)] = None,
    key: Annotated[str | None, typer.Option(help="The key column.", metavar="COLUMN", show_default=False)] = None,
    servers: Annotated[
        str | None, typer.Option(help="local: headrace services up. containers: compose.", metavar="WHERE", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: defaults for what is not given.")] = False,
) -> None:
    """Write a pipeline that runs at once, its tests and its data."""
    from headrace.commands.init import Servers, TemplateName, Wanted
    from headrace.commands.init import init as work

    for option, value, allowed in (("--template", template, TemplateName), ("--servers", servers, Servers)):
        if value is not None and value not in list(allowed):
            msg = f"{value!r} is not one of {', '.join(allowed)}"
            raise typer.BadParameter(msg, param_hint=option)
    wanted = Wanted(TemplateName(template) if template else None, name, key, Servers(servers) if servers else None)
    work(folder, wanted, ask=not yes)


@app.command()
def run(
    file: File,
    *,
    until: Annotated[
        Until | None, typer.Option(help="When to end. Not given: forever, or after the history if the file says job_mode.")
    ] = None,
    job_mode: Annotated[bool, typer.Option("--job-mode", help="End after the history; never read the unbounded source.")] = False,
    window: Annotated[list[str] | None, typer.Option(help="Only this partition of the history, by its first day. Repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything as `headrace validate` does, and end.")] = False,
    check: Annotated[bool, typer.Option("--validate", help="The same, with the answer as JSON.")] = False,
) -> None:
    """Run a pipeline: history, handoff, stream. Ctrl-C ends it cleanly."""
    if dry_run or check:
        from headrace.commands.validate import validate as work

        work([file], as_json=check, quick=False)
        return
    from headrace.commands.run import run_file

    run_file(file, until, job_mode=job_mode, windows=window or [])


@app.command()
def validate(
    files: Annotated[list[Path] | None, typer.Argument(help="Pipeline files.", show_default=False)] = None,
    *,
    as_json: AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only what the file itself shows: no connection, no Spark.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="First rewrite in place: older spellings, Streamling's, a missing `dialect:`.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a pipeline file, for editors.")] = False,
) -> None:
    """Check pipeline files: keys, graph, SQL, schemas. Nothing is read or written."""
    if schema == bool(files) or (schema and fix):
        msg = "say either FILES or --schema"
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
    form: Annotated[Format, typer.Option("--format", help="Text for people, a Mermaid or Graphviz drawing, or JSON.")] = Format.TEXT,
    lineage: Annotated[bool, typer.Option("--lineage", help="Where each column of a sink comes from. JSON always has it.")] = False,
    splits: Annotated[bool, typer.Option("--splits", help="The pieces of history that a run would read; pins nothing.")] = False,
    spark_plan: Annotated[bool, typer.Option("--spark-plan", help="Also the plan that Spark makes of the SQL.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Open no connection: what only servers know is unchecked.")] = False,
) -> None:
    """Draw the pipeline: what a run would do, and what it guarantees."""
    if offline and splits:
        msg = "--splits asks the servers, and --offline says not to"
        raise typer.BadParameter(msg)
    if form in (Format.MERMAID, Format.DOT) and (lineage or splits or spark_plan):
        msg = f"--format {form} draws the graph alone; --lineage, --splits and --spark-plan are for text and json"
        raise typer.BadParameter(msg)
    from headrace.commands.inspect import explain as work

    work(file, form, lineage=lineage, splits=splits, spark_plan=spark_plan, offline=offline)


@app.command(name="test")
def run_tests(
    paths: Annotated[list[Path] | None, typer.Argument(help="Pipeline files, *.test.yaml or folders; this folder if not given.")] = None,
    *,
    expression: Annotated[str | None, typer.Option("-k", metavar="EXPRESSION", help="Only tests so named: `amount and not error`.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Write what came out over the expected rows of failed tests.")] = False,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also a report as JUnit XML.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Descriptions, and every row that differs.")] = False,
) -> None:
    """Run the tests of pipelines, without any server."""
    from headrace.commands.test import run_tests as work

    work(paths or [Path()], expression, rewrite=update, report=junit, verbose=verbose)


@app.command()
def status(
    file: Annotated[Path | None, typer.Argument(help="A pipeline file; all pipelines if not given.", show_default=False)] = None,
    *,
    epochs: Annotated[int, typer.Option(min=0, help="How many of the last epochs to show.")] = 5,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="With --watch: seconds between two looks.")] = 1.0,
) -> None:
    """Show where pipelines stand, by the ledger."""
    if watch:
        if as_json:
            msg = "--watch is for people, --json for programs"
            raise typer.BadParameter(msg)
        from headrace.commands.watch import watch as again

        again(file, interval)
        return
    from headrace.commands.inspect import status as work

    work(file, as_json=as_json, epochs=epochs)


@app.command()
def tail(
    file: File,
    node: Annotated[str | None, typer.Argument(help="A source, transform or sink; all of them if not given.", show_default=False)] = None,
    *,
    rows: Annotated[int | None, typer.Option("-n", "--rows", min=1, help="End after so many rows.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Print rows of a running pipeline as they pass."""
    from headrace.commands.tail import tail as work

    work(file, node, as_json=as_json, rows=rows)


@app.command()
def audit(file: File, *, as_json: AsJson = False) -> None:
    """Hold the sinks against the ledger. Exit code 1 if a check fails."""
    from headrace.commands.inspect import audit as work

    work(file, as_json=as_json)


@app.command()
def replay(
    file: File,
    *,
    sink: SinkName,
    from_epoch: Annotated[
        int | None, typer.Option("--from", min=1, help="The first epoch to write again; the one behind what the sink holds if not given.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute staged rows anew where they are gone; they may differ from other sinks'.")
    ] = False,
) -> None:
    """Write epochs to one sink again, as they were planned."""
    from headrace.commands.repair import replay as work

    work(file, sink, from_epoch, recompute=recompute)


@app.command()
def adopt(
    file: File,
    *,
    sink: Annotated[str | None, typer.Option("--sink", help="The sink's name in the file.", show_default=False)] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="The ledger is lost: make it anew from the sinks' records.")] = False,
) -> None:
    """Take a sink's target as it stands, and go on from there."""
    if rebuild == (sink is not None):
        msg = "say either --sink NAME or --rebuild"
        raise typer.BadParameter(msg)
    from headrace.commands import repair

    if sink is None:
        repair.rebuild(file)
    else:
        repair.adopt(file, sink)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def services(ctx: typer.Context) -> None:
    """Real Postgres, Kafka, ClickHouse: up, down, status."""
    from headrace.services.cli import app as services_app

    services_app(args=ctx.args, prog_name="headrace services")


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def plugin(ctx: typer.Context) -> None:
    """Plugins: write one, list those that are installed."""
    from headrace.commands.plugin import app as plugin_app

    plugin_app(args=ctx.args, prog_name="headrace plugin")


@app.command()
def ui(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 3000,
) -> None:
    """Open Dagster's pages with the pipelines of this folder."""
    from headrace.orchestration.ui import serve
    from headrace.pipeline.settings import load_settings

    serve(load_settings().home, host, port)


@app.command()
def doctor() -> None:
    """Say what this machine has, and what it lacks."""
    from headrace.services.doctor import doctor as work

    work()


@app.command()
def demo(
    *,
    tamper: Annotated[
        bool, typer.Option("--tamper", help="Delete a row behind the sink's back, see a check find it, and repair it.")
    ] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Stop the demo's servers and remove its data.")] = False,
) -> None:
    """336,776 real flights from history to live, killed in the middle."""
    from headrace.demo.run import demo as work

    raise typer.Exit(work(tamper=tamper, clean=clean))


def main() -> None:
    """The console script. Exit codes: 0 done, or stopped by a signal; 1 an error; 2 wrong usage."""
    try:
        app(prog_name="headrace")
    except HeadraceError as error:
        from headrace.screen import show_error

        show_error(error)
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  the last resort: whatever it is, it is reported and not thrown at the user
        from headrace import logs, screen

        home = Path(os.environ.get("HEADRACE_HOME") or os.environ.get("HEADRACE__HOME") or ".headrace")
        path = logs.report(error, home)
        screen.err().print(f"error: {type(error).__name__}: {error}".splitlines()[0], markup=False, soft_wrap=True)
        screen.err().print(f"  This is a fault of Headrace itself. The whole story is in {path}", markup=False, soft_wrap=True)
        sys.exit(1)

"""The `headrace` command. Verbs are thin: what they do is in `headrace.commands`, imported when the verb is called."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace import __version__
from headrace.jobs.explain.formats import Format
from headrace.jobs.run.events import Until
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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
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
    from headrace import logging_setup

    logging_setup.set_up(level=logging.INFO if verbose else logging.WARNING, log_format=_log_format())


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
    form: Annotated[Format, typer.Option("--format", help="Text, a Mermaid flowchart, or JSON.")] = Format.TEXT,
    lineage: Annotated[bool, typer.Option("--lineage", help="Where each column of a sink comes from. JSON always has it.")] = False,
    splits: Annotated[bool, typer.Option("--splits", help="The pieces of history that a run would read; pins nothing.")] = False,
    spark_plan: Annotated[bool, typer.Option("--spark-plan", help="Also the plan that Spark makes of the SQL.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Open no connection: what only servers know is unchecked.")] = False,
) -> None:
    """Show the pipeline: what a run would do, and what it guarantees."""
    if offline and splits:
        msg = "--splits asks the servers, and --offline says not to"
        raise typer.BadParameter(msg)
    if form is Format.MERMAID and (lineage or splits or spark_plan):
        msg = f"--format {form} draws only the graph; --lineage, --splits and --spark-plan are for text and json"
        raise typer.BadParameter(msg)
    from headrace.commands.inspect import explain as work

    work(file, form, lineage=lineage, splits=splits, spark_plan=spark_plan, offline=offline)


@app.command(name="test")
def run_tests(
    paths: Annotated[list[Path] | None, typer.Argument(help="Pipeline files, *.test.yaml or folders; this folder if not given.")] = None,
    *,
    expression: Annotated[
        str | None, typer.Option("-k", metavar="EXPRESSION", help="Only tests with such names: `amount and not error`.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Replace the expected rows of failed tests by the actual rows.")] = False,
    junit: Annotated[Path | None, typer.Option("--junitxml", metavar="FILE", help="Also write a report as JUnit XML.")] = None,
    fail_fast: Annotated[bool, typer.Option("--exitfirst", "-x", help="Stop at the first test that fails.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every row that differs.")] = False,
) -> None:
    """Run the tests of pipelines with pytest, without any server."""
    from headrace.commands.test import run_tests as work

    work(paths or [Path()], expression, update=update, report=junit, verbose=verbose, fail_fast=fail_fast)


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
def audit(
    file: File,
    *,
    all_epochs: Annotated[
        bool, typer.Option("--all-epochs", help="Check every epoch of the ledger again, not only those since the last audit.")
    ] = False,
    content: Annotated[bool, typer.Option("--content", help="Also compare the rows of the sinks with those of the sources.")] = False,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="With --content: read at most so many rows for one sink.", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="With --content: read more and more rows for about so long per sink.", show_default=False),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="With --content: read all rows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Hold the sinks against the ledger. Exit code 1 if a check fails."""
    if full + (rows is not None) + (seconds is not None) > 1:
        msg = "use only one of --rows, --seconds and --full"
        raise typer.BadParameter(msg)
    from headrace.commands.inspect import audit as work

    compares = content or full or rows is not None or seconds is not None
    work(file, as_json=as_json, all_epochs=all_epochs, content=compares, rows=rows, seconds=seconds, full=full)


@app.command()
def replay(
    file: File,
    *,
    sink: Annotated[str | None, typer.Option("--sink", help="The sink's name in the file.", show_default=False)] = None,
    from_epoch: Annotated[
        int | None, typer.Option("--from", min=1, help="The first epoch to write again. Default: the one after what the sink holds.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute staged rows again where they are lost; they may differ from other sinks'.")
    ] = False,
    skip_open: Annotated[
        bool,
        typer.Option("--skip-open", help="Close an open epoch that cannot be read any more; sinks that lack it go on without its rows."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --skip-open: print what would change.")] = False,
) -> None:
    """Write epochs to one sink again, as they were planned."""
    if skip_open == (sink is not None) or (skip_open and (from_epoch or recompute)) or (dry_run and not skip_open):
        msg = "say either --sink NAME, or --skip-open with --dry-run or alone"
        raise typer.BadParameter(msg)
    from headrace.commands import repair

    if sink is None:
        repair.skip_open(file, dry_run=dry_run)
    else:
        repair.replay(file, sink, from_epoch, recompute=recompute)


@app.command()
def rewind(
    file: File,
    *,
    to: Annotated[str, typer.Option("--to", metavar="EPOCH|TIME", help="An epoch, or a time in ISO format (UTC).", show_default=False)],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Read the streams again from where an earlier epoch ended."""
    from headrace.commands import repair

    repair.rewind(file, to, dry_run=dry_run, yes=yes)


@app.command()
def reset(
    file: File,
    *,
    keep: Annotated[bool, typer.Option("--keep-targets", help="Keep the rows of the targets; every sink needs a key.")] = False,
    empty: Annotated[bool, typer.Option("--empty-targets", help="Remove all rows of the targets first.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Start a pipeline over: a new snapshot of history, a new handoff."""
    if keep and empty:
        msg = "say either --keep-targets or --empty-targets"
        raise typer.BadParameter(msg)
    from headrace.commands import repair

    repair.reset(file, keep=keep, empty=empty, dry_run=dry_run, yes=yes)


@app.command()
def adopt(
    file: File,
    *,
    sink: Annotated[str | None, typer.Option("--sink", help="The sink's name in the file.", show_default=False)] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="The ledger is lost: make it anew from the sinks' records.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Another pipeline claims the target: end its claim. It can no longer write there.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --take-over: do not ask for confirmation.")] = False,
) -> None:
    """Take a sink's target as it stands, and go on from there."""
    if rebuild == (sink is not None):
        msg = "say either --sink NAME or --rebuild"
        raise typer.BadParameter(msg)
    if take_over and sink is None:
        msg = "--take-over needs --sink NAME"
        raise typer.BadParameter(msg)
    from headrace.commands import repair

    if sink is None:
        repair.rebuild(file)
    elif take_over:
        repair.take_over(file, sink, ask=not yes)
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
    from headrace.pipeline.config.settings import load_settings

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
        from headrace.console import show_error

        show_error(error)
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  the last resort: whatever it is, it is reported and not thrown at the user
        from headrace import console, logging_setup

        home = Path(os.environ.get("HEADRACE_HOME") or os.environ.get("HEADRACE__HOME") or ".headrace")
        path = logging_setup.report(error, home)
        console.err().print(f"error: {type(error).__name__}: {error}".splitlines()[0], markup=False, soft_wrap=True)
        console.err().print(f"  This is a fault of Headrace itself. The whole story is in {path}", markup=False, soft_wrap=True)
        sys.exit(1)

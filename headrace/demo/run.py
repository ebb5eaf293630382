"""`headrace demo`: all steps in order, and the result."""

from __future__ import annotations

import shutil
import threading

from rich.console import Console

from headrace import services
from headrace.connectors.ledger.factory import open_ledger
from headrace.console import stdout_console
from headrace.demo import report
from headrace.demo.environment import DemoEnvironment, prepare_environment, set_delta_path
from headrace.demo.flights import messages
from headrace.demo.scenario import run_until_complete
from headrace.demo.tamper import tamper_and_repair
from headrace.jobs.checks.audit import audit
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import UserError
from headrace.shutdown import GracefulShutdown

_DEMO_PIPELINES = {"flights"}


def demo(*, tamper: bool, clean: bool) -> int:
    """Run the demo.

    Return 0 only if every check passed (with `tamper`: failed, then passed after the repair).
    """
    console = stdout_console()
    if clean:
        _remove_demo(console)
        return 0
    report.print_title(console)
    with GracefulShutdown(lambda _: console.print("Stopping. `make demo` continues from here.")) as stopper:
        return stopper.run(lambda: _run_demo(console, stopper.event, tamper=tamper))


def _run_demo(console: Console, stop: threading.Event, *, tamper: bool) -> int:
    environment = prepare_environment(console)
    try:
        if _is_complete(environment):
            console.print("Nothing to do: history is complete, and the stream is at the topic's end.")
        elif not run_until_complete(environment, stop):
            return 1
        good = _check_targets(environment)
        if good and tamper:
            good = tamper_and_repair(environment)
        return 0 if good else 1
    finally:
        environment.progress.close()


def _is_complete(environment: DemoEnvironment) -> bool:
    """Return whether everything is replicated, from ledger and broker, without starting anything."""
    return (
        environment.progress.is_history_complete()
        and environment.progress.count_consumed() == environment.producer.count_sent() == len(messages())
    )


def _check_targets(environment: DemoEnvironment) -> bool:
    """Check the real systems, compare every row, and print the report."""
    with environment.console.status("checking the sinks, comparing every row"):
        checks = audit(environment.file, environment.settings)
        comparisons = report.compare_targets(environment)
    report.print_report(environment, checks, comparisons)
    return all(check.passed for check in checks) and all(
        comparison.is_equal for comparison in comparisons.values()
    )


def _remove_demo(console: Console) -> None:
    """Stop the servers and remove the home. Raise UserError if the ledger has other pipelines."""
    settings = load_settings()
    home = settings.home
    set_delta_path(home)
    if not home.is_dir():
        console.print(f"There is no {home}: nothing to remove.")
        return
    if settings.state_backend.sqlite.path.is_file():
        ledger = open_ledger(settings)
        others = sorted({lane.name for lane in ledger.lanes()} - _DEMO_PIPELINES)
        ledger.close()
        if others:
            msg = f"{home} also contains the ledger of {', '.join(others)}, which `demo --clean` would lose"
            raise UserError(
                msg,
                hint="Remove what you no longer need by hand; `headrace services down` stops the servers.",
            )
    services.down(home)
    shutil.rmtree(home)
    console.print(f"Servers stopped, {home} removed.")

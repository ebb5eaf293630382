"""`headrace demo`: the acts in order, and the verdict."""

from __future__ import annotations

import shutil
import threading

from rich.console import Console

from headrace import services
from headrace.connectors.ledger_factory import open_ledger
from headrace.console import out
from headrace.demo import report
from headrace.demo.act import run_to_the_end
from headrace.demo.flights import messages
from headrace.demo.setting import Setting, set_up, use_delta_beside
from headrace.demo.tamper import tamper_and_repair
from headrace.jobs.checks.audit import audit
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import UserError
from headrace.shutdown import Stopper

_OWN = {"flights"}


def demo(*, tamper: bool, clean: bool) -> int:
    """Runs it; the exit code is 0 only if every check passed (with `tamper`: failed, and passed after the repair)."""
    console = out()
    if clean:
        _clean(console)
        return 0
    report.title(console)
    with Stopper(lambda _: console.print("Stopping. `make demo` goes on from here.")) as stopper:
        return stopper.call(lambda: _acts(console, stopper.event, tamper=tamper))


def _acts(console: Console, stop: threading.Event, *, tamper: bool) -> int:
    setting = set_up(console)
    try:
        if _nothing_to_do(setting):
            console.print("Nothing to do: history is complete, and the stream is at the topic's end.")
        elif not run_to_the_end(setting, stop):
            return 1
        good = _verdict(setting)
        if good and tamper:
            good = tamper_and_repair(setting)
        return 0 if good else 1
    finally:
        setting.lane.close()


def _nothing_to_do(setting: Setting) -> bool:
    """By the ledger and the broker, without starting anything."""
    return setting.lane.has_history() and setting.lane.consumed() == setting.feed.sent() == len(messages())


def _verdict(setting: Setting) -> bool:
    """Asks the real systems, compares every row, prints the end."""
    with setting.console.status("asking the sinks, comparing every row"):
        checks = audit(setting.file, setting.settings)
        compared = report.compared(setting)
    report.show(setting, checks, compared)
    return all(check.passed for check in checks) and all(comparison.equal for comparison in compared.values())


def _clean(console: Console) -> None:
    """Stops the servers and removes the home. Raises UserError where the home holds other pipelines' ledger."""
    settings = load_settings()
    home = settings.home
    use_delta_beside(home)
    if not home.is_dir():
        console.print(f"There is no {home}: nothing to remove.")
        return
    if settings.state_backend.sqlite.path.is_file():
        ledger = open_ledger(settings)
        foreign = sorted({lane.name for lane in ledger.lanes()} - _OWN)
        ledger.close()
        if foreign:
            msg = f"{home} also holds the ledger of {', '.join(foreign)}, which `demo --clean` would lose"
            raise UserError(msg, hint="Remove what you no longer need by hand; `headrace services down` stops the servers.")
    services.down(home)
    shutil.rmtree(home)
    console.print(f"Servers stopped, {home} removed.")

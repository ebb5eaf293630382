"""Several commands of the command line in one process, which imports their modules once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """\
import contextlib, io, json, sys
from headrace import cli

answers = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["headrace", *arguments]
    code, out, errors = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            cli.main()
        except SystemExit as left:
            code = left.code or 0
    answers.append([code, out.getvalue(), errors.getvalue()])
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Answer:
    """The end of a command, and what it printed."""

    code: int
    out: str
    errors: str


def run_commands(
    commands: Iterable[tuple[str, ...]], *, cwd: Path, env: Mapping[str, str]
) -> dict[tuple[str, ...], Answer]:
    """Run commands that start neither Spark nor a server, one after the other."""
    listed = list(commands)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(listed)],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return {command: Answer(*answer) for command, answer in zip(listed, answers, strict=True)}

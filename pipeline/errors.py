"""The errors that Headrace raises on purpose, as one tree below HeadraceError.

Each class has a code, which never changes its meaning, and says what a user can do. `make docs` writes
docs/reference/errors.md from the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

ROW_ERROR = "headrace-row:"
"""Prefix of the JSON of an error that an expression or a task raises inside Spark."""


@dataclass(frozen=True, slots=True)
class FileLocation:
    """A position in a file. Lines and columns count from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


class HeadraceError(Exception):
    """Root of all errors that Headrace raises.

    `message` is what happened, `hint` what the user can do, `node` and `place` where it happened. `keys` lead
    to the key of the node that is at fault, for `PipelineFile.locate`, which sets `place`.
    """

    code: ClassVar[str] = "HR000"
    """Stable code, printed with the message.

    The hundreds are the kind: 1 file and data, 2 state, 3 outside systems, 4 run.
    """
    action: ClassVar[str] = "Read the message and its hint."
    """What the user can do, for the reference page."""
    retriable = False
    blocks = True
    """Whether an epoch that fails in this way `max_attempts` times is blocked."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        node: str = "",
        keys: tuple[str, ...] = (),
        place: FileLocation | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.node = node
        self.keys = keys
        self.place = place

    def __str__(self) -> str:
        head = f"{self.place}: " if self.place else ""
        who = f"node '{self.node}': " if self.node else ""
        tail = f"\n  {self.hint}" if self.hint else ""
        return f"{head}{who}{self.message}{tail}"


class UserError(HeadraceError):
    """The user can fix the cause: file, settings, rights or data."""

    code = "HR100"
    action = "Fix what the message names, and run the command again."


class PipelineFileError(UserError):
    """A pipeline file has one or more mistakes. Each is listed with its file and line."""

    code = "HR101"
    action = (
        "Correct the lines. `headrace validate FILE` lists all mistakes at once, `--fix` corrects"
        " outdated spellings."
    )

    def __init__(self, problems: Sequence[UserError]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


class SettingsError(UserError):
    """A setting is missing or has a wrong value."""

    code = "HR102"
    action = "Set it in one of the places that the message lists."


class SchemaError(UserError):
    """A column is missing, or has a type that the node does not take."""

    code = "HR103"
    action = (
        "Correct the schema or add a cast in a `sql` transform. `headrace explain FILE` shows the"
        " columns of each node."
    )


class DataError(UserError):
    """A target cannot store a value. The message names node, column and value."""

    code = "HR104"
    action = (
        "Filter or convert the value in a `sql` transform, or correct it in the source. The epoch is"
        " not committed."
    )


class GuaranteeError(UserError):
    """The pipeline cannot keep the delivery guarantee that its file requires."""

    code = "HR105"
    action = (
        "Choose another sink or source, or set `delivery: at_least_once` where duplicates are acceptable."
    )


class TargetError(UserError):
    """A target system lacks rights, a table, columns or a key."""

    code = "HR106"
    action = "Grant the right or change the table as the hint describes."


class ServiceError(UserError):
    """A local service or a prerequisite, such as Java or a jar, is missing."""

    code = "HR107"
    action = "Run `headrace doctor`. It prints what is missing and how to install it."


class PluginError(UserError):
    """A plugin is missing, failed, or broke its contract. The message names the plugin and its package."""

    code = "HR108"
    action = "Install or correct the plugin. `headrace.testing` checks its contract."


class PipelineStateError(UserError):
    """The state of the pipeline does not allow this step."""

    code = "HR200"
    action = "Run the command that the hint prints. `headrace status FILE` shows the state."


class LeaseHeldError(PipelineStateError):
    """Another run of this pipeline holds the lease."""

    code = "HR201"
    action = "Wait for that run or stop it. A lease of a dead run expires by itself."
    retriable = True
    blocks = False


class PausedError(PipelineStateError):
    """The pipeline is paused. No run starts until the pause ends."""

    code = "HR205"
    action = "End the pause with `headrace resume FILE`."


class SinkStateError(PipelineStateError):
    """The commit record of a sink and the ledger disagree."""

    code = "HR202"
    action = (
        "Check that the target was not restored or replaced. Then use the printed `headrace replay` or"
        " `headrace accept-target`."
    )


class RetentionError(PipelineStateError):
    """The topic no longer has rows that the stream must read, or deletes them before the backfill ends."""

    code = "HR203"
    action = "Increase the retention of the topic, or start again with `headrace reset FILE`."


class BlockedError(PipelineStateError):
    """One epoch failed repeatedly with the same error. The pipeline stops at this epoch."""

    code = "HR204"
    action = "Fix the cause and run the pipeline again, or skip the epoch with `headrace replay --skip-open`."


class TransientError(HeadraceError):
    """An outside system failed for a moment. Retrying the epoch is safe."""

    code = "HR300"
    action = "Nothing, if the run recovers. Otherwise check the system that the message names."
    retriable = True
    blocks = False


class WorkerError(TransientError):
    """A Spark task or its Python process ended abnormally. If it happens repeatedly, the epoch is blocked."""

    code = "HR301"
    action = "Check memory and the log of the run."
    blocks = True


class SnapshotStoppedError(TransientError):
    """A snapshot was not created, because the run was stopped."""

    code = "HR304"
    action = "Nothing. The next run creates the snapshot."


class SparkJvmError(HeadraceError):
    """The JVM of Spark ended or ran out of memory. A new run starts a new JVM."""

    code = "HR303"
    action = "Increase `spark.driver_memory` or reduce the size of an epoch."


class FencedError(HeadraceError):
    """A newer run took over the pipeline. This run stops and writes nothing more."""

    code = "HR400"
    action = "Nothing. The newer run continues."


class InternalError(HeadraceError):
    """A defect in Headrace."""

    code = "HR500"
    action = "Report it with the file that the message names."


def error_code(error: HeadraceError) -> str:
    """Return the code to print.

    A plain UserError with a position in a file is a mistake of the pipeline file.
    """
    return PipelineFileError.code if type(error) is UserError and error.place else error.code

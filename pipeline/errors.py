"""Every error that Headrace raises on purpose.

HeadraceError
├── UserError                 the user can mend it: file, settings, rights, data
│   ├── PipelineFileError     one or more mistakes in a pipeline file, each with its place
│   ├── SettingsError         a setting is missing or wrong; says every place that was looked at
│   ├── SchemaError           a column or a type that a node cannot take
│   ├── DataError             a value that a target cannot hold
│   ├── GuaranteeError        a guarantee that cannot be kept with this source, sink or file
│   ├── TargetError           a target lacks rights, columns or a key
│   ├── PluginError           a plugin is missing, failed, or broke its contract; names it
│   ├── ServiceError          a local service or a prerequisite (Java, jars) cannot be had
│   └── PipelineStateError             the lane cannot go on as it stands
│       ├── LeaseHeldError    another run holds the lane (retriable)
│       ├── SinkStateError       a sink's record and the ledger disagree; offers replay and accept-target
│       ├── RetentionError    the topic no longer holds, or soon loses, what is needed
│       └── BlockedError      an epoch failed too often in the same way
├── TransientError            an outside system failed in passing (retriable)
│   └── WorkerError           a task or its Python process ended abnormally (retriable, blocks)
├── SparkJvmError               Spark's JVM died or ran out of memory (blocks)
├── FencedError               this process is no longer the lane's holder; it must stop
└── InternalError             a fault of Headrace itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROW_ERROR = "headrace-row:"
"""What stands before the JSON of an error that an expression or a task raises inside of Spark."""


@dataclass(frozen=True, slots=True)
class FileLocation:
    """Where in a file something stands. Lines and columns count from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


class HeadraceError(Exception):
    """Root of the tree. `message` says what happened, `hint` what to do, `node` and `place` where."""

    retriable = False
    blocks = True
    """Whether an epoch that fails in this way `max_attempts` times is blocked."""

    def __init__(self, message: str, *, hint: str = "", node: str = "", place: FileLocation | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.node = node
        self.place = place

    def __str__(self) -> str:
        head = f"{self.place}: " if self.place else ""
        who = f"node '{self.node}': " if self.node else ""
        tail = f"\n  {self.hint}" if self.hint else ""
        return f"{head}{who}{self.message}{tail}"


class UserError(HeadraceError):
    """The user can mend it."""


class PipelineFileError(UserError):
    """All mistakes of one pipeline file, each a `UserError` with its place."""

    def __init__(self, problems: Sequence[UserError]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


class SettingsError(UserError):
    """A setting is missing or wrong."""


class SchemaError(UserError):
    """A column is missing, or has a type that the node cannot take."""


class DataError(UserError):
    """A value that a target cannot hold; names node, column and value."""


class GuaranteeError(UserError):
    """The delivery that the file asks for cannot be kept."""


class TargetError(UserError):
    """A target system lacks rights, a table, columns or a key."""


class ServiceError(UserError):
    """A local service or a prerequisite cannot be had."""


class PluginError(UserError):
    """A plugin is missing, failed, or broke its contract; the message names it and the package that it comes from."""


class PipelineStateError(UserError):
    """The lane cannot go on as it stands."""


class LeaseHeldError(PipelineStateError):
    """Another run holds the lane."""

    retriable = True
    blocks = False


class SinkStateError(PipelineStateError):
    """A sink's record and the ledger disagree: absence is never a go-ahead."""


class RetentionError(PipelineStateError):
    """The topic no longer holds, or will lose before the backfill ends, what the stream must read."""


class BlockedError(PipelineStateError):
    """One epoch failed repeatedly; the lane stands still until somebody acts."""


class TransientError(HeadraceError):
    """An outside system failed in passing; trying the epoch again is safe."""

    retriable = True
    blocks = False


class WorkerError(TransientError):
    """A task or its Python process ended abnormally. That may pass; where it does not, the epoch is blocked."""

    blocks = True


class SparkJvmError(HeadraceError):
    """Spark's JVM died or ran out of memory. A new run needs a new JVM; the epoch itself may be the cause."""


class FencedError(HeadraceError):
    """A newer generation holds the lane. Nothing that this process writes may land any more."""


class InternalError(HeadraceError):
    """A fault of Headrace itself."""

"""Errors of Headrace on their way from a Spark task to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from headrace.pipeline import errors
from headrace.pipeline.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Class, message, hint and node of an error, as JSON."""

    kind: str
    message: str
    hint: str
    node: str

    @classmethod
    def of(cls, error: HeadraceError) -> TaskFailure:
        """Return the serializable part of an error. Subclasses of a connector become their parent class."""
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return cls(kind, error.message, error.hint, error.node)

    @classmethod
    def from_json(cls, text: str) -> TaskFailure:
        """Restore a failure from the result of `to_json`."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Return the failure as a JSON string."""
        return json.dumps(asdict(self))

    def error(self) -> HeadraceError:
        """Return the error to raise."""
        return getattr(errors, self.kind)(self.message, hint=self.hint, node=self.node)


def raise_task_failure(failures: Iterable[str | None]) -> None:
    """Raise the error of one failed task, if any failed: one that a retry does not help before all others."""
    raised = [TaskFailure.from_json(text).error() for text in failures if text]
    if raised:
        raise next((error for error in raised if not error.retriable), raised[0])

"""Errors of tasks at the driver: their class, hint and node, and which one of several is raised."""

from __future__ import annotations

import pytest

from headrace.connectors.postgres_client.errors import ConnectionLostError, UniqueError
from headrace.connectors.row_errors import explain_failure, task_error
from headrace.connectors.task_failures import TaskFailure, raise_task_failure
from headrace.pipeline.errors import DataError, HeadraceError, SchemaError, TransientError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SchemaError("m", hint="h", node="n"), SchemaError),
        (UniqueError("m", hint="h", node="n"), DataError),
        (ConnectionLostError("m", hint="h", node="n"), TransientError),
    ],
)
def test_an_error_keeps_its_class_or_the_class_that_every_process_knows(
    error: HeadraceError, kind: type[HeadraceError]
) -> None:
    restored = (
        TaskFailure.from_json(TaskFailure.of(error).to_json()).error(),
        explain_failure(task_error(error)),
    )
    for one in restored:
        assert one is not None
        assert type(one) is kind
        assert (one.message, one.hint, one.node) == ("m", "h", "n")


def test_an_error_that_a_retry_does_not_help_is_raised_before_others() -> None:
    lost, bad = (TaskFailure.of(error).to_json() for error in (TransientError("lost"), DataError("bad")))
    with pytest.raises(DataError, match="bad"):
        raise_task_failure([None, lost, bad])
    with pytest.raises(TransientError, match="lost"):
        raise_task_failure([lost, None])
    raise_task_failure([None, None])

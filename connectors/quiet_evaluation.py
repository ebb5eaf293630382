"""Computes the rows of a frame only to learn whether that fails.

pyspark reads the stack trace of every exception of the JVM several times, 40 ms each, and logs it. A search
for invalid rows meets thousands of exceptions, so it reads only their messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.connectors.local_relation import LOCAL_EVALUATION, frame_of_plan, java_frame
from headrace.connectors.session_options import with_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CAUSES = 10
"""Causes of one exception that are read, at most."""


class EvaluationError(RuntimeError):
    """An exception of the JVM, with the messages of its causes. `condition` is Spark's name of it."""

    def __init__(self, message: str, condition: str | None, texts: str) -> None:
        super().__init__(texts)
        self._message = message
        self._condition = condition

    def getCondition(self) -> str | None:  # noqa: N802  pyspark's name
        """Return Spark's name of the error."""
        return self._condition

    def getMessage(self) -> str:  # noqa: N802  pyspark's name
        """Return the message of the exception that has the condition."""
        return self._message


def find_failure(frame: DataFrame) -> EvaluationError | None:
    """Compute all rows and columns of a frame, and drop them. Return why that fails, or None.

    Rows in the driver are computed there. Catalyst may compute columns of rows that a filter drops, so after
    a failure they are computed once more with the filters pushed down, as in a job.
    """
    call = _QuietCalls(frame.sparkSession)
    plan, failure = call(java_frame(frame).queryExecution(), "optimizedPlan")
    if failure is not None:
        with with_options(frame.sparkSession, {"spark.sql.optimizer.excludedRules": LOCAL_EVALUATION}):
            plan, failure = call(java_frame(frame.select("*")).queryExecution(), "optimizedPlan")
        if failure is None:
            pushed = frame_of_plan(frame.sparkSession, plan)
            plan, failure = call(java_frame(pushed).queryExecution(), "optimizedPlan")
    if failure is None and plan.nodeName() != "LocalRelation":
        _, failure = call(java_frame(frame).write().format("noop").mode("overwrite"), "save")
    return failure


class _QuietCalls:
    """Calls methods of the JVM that may throw.

    pyspark replaces the function that reads answers by one that translates exceptions. This is the original.
    """

    def __init__(self, session: SparkSession) -> None:
        self._gateway: Any = session.sparkContext._gateway  # noqa: SLF001

    def __call__(self, target: Any, method: str) -> tuple[Any, EvaluationError | None]:
        """Call a method without arguments. Return its result, or the exception that it throws."""
        from py4j import protocol

        member = getattr(target, method)
        command = protocol.CALL_COMMAND_NAME + member.command_header + protocol.END_COMMAND_PART
        answer = member.gateway_client.send_command(command)
        try:
            result = protocol.get_return_value(answer, member.gateway_client, member.target_id, member.name)
        except protocol.Py4JJavaError as error:
            return None, self._read(error.java_exception)
        return result, None

    def _read(self, exception: Any) -> EvaluationError:
        """Return the failure of an exception. The innermost cause with a condition names it."""
        from py4j.java_gateway import is_instance_of

        texts: list[str] = []
        message, condition = "", None
        while exception is not None and len(texts) < _CAUSES:
            text = str(exception.getMessage() or "")
            texts.append(f"{exception.getClass().getName()}: {text}")
            if is_instance_of(self._gateway, exception, "org.apache.spark.SparkThrowable") and (
                result := exception.getCondition()
            ):
                message, condition = text, result
            exception = exception.getCause()
        return EvaluationError(message, condition, "\n".join(texts))

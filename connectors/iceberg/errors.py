"""What Iceberg says about a failed write, as errors of Headrace's own tree."""

from __future__ import annotations

from headrace.connectors.row_errors import explain_failure
from headrace.pipeline.errors import TransientError


def explain(error: Exception, target: str, sink: str) -> Exception:
    """Return the Headrace error of a failed write, or the error itself if there is none."""
    if (row_failure := explain_failure(error)) is not None:
        return row_failure
    text = str(error)
    if "ValidationException" in text or "CommitFailedException" in text:
        reason = text.split("\n", maxsplit=1)[0]
        return TransientError(f"another writer changed {target} at the same moment: {reason}", node=sink)
    return error

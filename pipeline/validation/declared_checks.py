"""Checks that a file declares for its sinks: their names and their SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from headrace.pipeline.errors import FileLocation, UserError
from headrace.pipeline.model import nodes
from headrace.pipeline.model.checks import BUILT_IN_CHECKS
from headrace.pipeline.sql.check_queries import check_query


def find_check_errors(model: nodes.PipelineModel, place: Callable[..., FileLocation]) -> Iterator[UserError]:
    """Yield invalid names and invalid SQL of declared checks."""
    for sink, node in model.sinks.items():
        for name, check in getattr(node, "checks", {}).items():
            where = place("sinks", sink, "checks", name)
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                msg = f"check `{name}`: the name must have letters, digits and `_` only"
                yield UserError(msg, hint=f"Example: `{_suggest(name)}`.", node=sink, place=where)
            elif name in BUILT_IN_CHECKS:
                msg = f"check `{name}` has the name of one of Headrace's own checks"
                yield UserError(msg, hint="Choose another name.", node=sink, place=where)
            if check.sql:
                try:
                    check_query(check.sql, node.check_dialect)
                except UserError as error:
                    msg = f"check `{name}`: {error.message}"
                    at = place("sinks", sink, "checks", name, "sql")
                    yield UserError(msg, hint=error.hint, node=sink, place=at)


def _suggest(name: str) -> str:
    result = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return result if re.match(r"[A-Za-z_]", result) else f"check_{result}".rstrip("_")

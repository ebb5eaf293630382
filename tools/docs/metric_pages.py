"""docs/reference/metrics.md: prose from tools/docs/parts/metrics.md, and a table of the metric catalog."""

from __future__ import annotations

from pathlib import Path

from headrace.jobs.monitoring.catalog import METRICS

_WRITTEN = (
    "<!-- Written by `make docs` from jobs/monitoring/catalog.py and tools/docs/parts/metrics.md."
    " Change those. -->\n"
)
_MARK = "<!-- table: metrics -->\n"


def page(parts: Path) -> str:
    """Return the whole page."""
    title, _, rest = (parts / "metrics.md").read_text(encoding="utf-8").partition("\n")
    return f"{title}\n\n{_WRITTEN}{rest.replace(_MARK, _table())}"


def _table() -> str:
    rows = ["| metric | kind | labels | description |\n|---|---|---|---|\n"]
    for metric in METRICS:
        labels = ["of the node"] if metric.node else []
        labels += [f"`{label}`" for label in metric.labels]
        rows.append(
            f"| `{metric.name}` | {metric.kind} | {', '.join(labels) or chr(0x2013)} | {metric.help} |\n"
        )
    return "".join(rows)

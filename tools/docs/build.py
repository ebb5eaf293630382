"""Write the pages that are generated from the code: `python tools/docs/build.py`, or `make docs`.

| page | made of |
|---|---|
| `docs/reference/pipeline-file/` | the models of the pipeline file, the capabilities of connectors, prose and examples in `parts/` |
| `docs/reference/types.md` | the connectors' tables of types |
| `docs/reference/functions.md` | the registry of functions |
| `docs/reference/metrics.md` | the catalog of metrics |
| `docs/reference/errors.md` | the classes of errors |
| `docs/reference/cli.md` | the command line |
| `docs/reference/all-settings.md` | the models of the settings |

A test compares the committed pages with the output of this script.
"""

from __future__ import annotations

from pathlib import Path

import cli_pages
import error_pages
import function_pages
import metric_pages
import node_pages
import setting_pages
import type_pages

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE = DOCS / "reference"
NODES = REFERENCE / "pipeline-file"
PARTS = Path(__file__).resolve().parent / "parts"


def pages() -> dict[Path, str]:
    """Return every generated page by path."""
    node_texts = {NODES / name: text for name, text in node_pages.pages(PARTS).items()}
    return node_texts | {
        REFERENCE / "types.md": type_pages.page(PARTS),
        REFERENCE / "metrics.md": metric_pages.page(PARTS),
        REFERENCE / "errors.md": error_pages.page(PARTS),
        REFERENCE / "cli.md": cli_pages.page(),
        REFERENCE / "all-settings.md": setting_pages.page(),
        REFERENCE / "functions.md": function_pages.page(PARTS),
    }


def main() -> None:
    """Write all pages, and remove those of types that no longer exist."""
    texts = pages()
    for path in set((NODES).rglob("*.md")) - texts.keys():
        path.unlink()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

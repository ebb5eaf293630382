"""Writes the pages that follow from the code: `python docs/build.py`, or `make docs`.

`docs/nodes/` comes from the models of the pipeline file, the connectors' capabilities and `docs/parts/`, which holds the prose and
the example of each type; `docs/types.md` from the connectors' tables of types, `docs/functions.md` from the registry of functions. A
test compares what is committed with what this writes.
"""

from __future__ import annotations

from pathlib import Path

import function_pages
import node_pages
import type_pages

DOCS = Path(__file__).resolve().parent


def pages() -> dict[Path, str]:
    """Every generated page by its path."""
    made = {DOCS / "nodes" / name: text for name, text in node_pages.pages(DOCS / "parts").items()}
    return made | {
        DOCS / "types.md": type_pages.page(DOCS / "parts"),
        DOCS / "functions.md": function_pages.page(DOCS / "parts"),
    }


def main() -> None:
    """Writes what is new or different, and removes pages of types that are gone."""
    made = pages()
    for path in set((DOCS / "nodes").rglob("*.md")) - made.keys():
        path.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The root folder of the checkout, and its Python files."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipeline", "jobs", "connectors", "orchestration", "headrace")


def python_files(*folders: str) -> Iterator[tuple[Path, str]]:
    """Yield the Python files in folders of the checkout, and their names in it. Links are not followed."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path, str(path.relative_to(ROOT))


def product_files() -> Iterator[tuple[Path, str]]:
    """Yield the Python files of the product, without templates."""
    return ((path, name) for path, name in python_files(*ROOMS) if "templates" not in path.parts)

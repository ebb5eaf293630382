"""The layout of the source tree: few entries per folder, and no import cycle."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from helpers.checkout import ROOT

ROOMS = ("pipeline", "jobs", "connectors", "orchestration")
MOST_ENTRIES = {"pipeline": 16, "jobs": 12}
TEST_FOLDERS = ["browser", "faults", "helpers", "integration", "spark", "system", "unit"]
NEEDS = {"unit": set[str](), "spark": {"spark"}}
"""Session fixtures that tests of a folder may use."""


@pytest.mark.parametrize("room", MOST_ENTRIES)
def test_room_has_few_entries(room: str) -> None:
    entries = sorted(
        path.name for path in (ROOT / room).iterdir() if path.name not in ("__init__.py", "__pycache__")
    )
    assert len(entries) <= MOST_ENTRIES[room], (
        f"{room}/ has {len(entries)} entries, at most {MOST_ENTRIES[room]}: {', '.join(entries)}"
    )


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_a_real_folder_with_a_link_in_the_package(room: str) -> None:
    assert (ROOT / room).is_dir()
    assert not (ROOT / room).is_symlink()
    assert (ROOT / "headrace" / room).readlink() == Path("..") / room


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_with_modules_is_a_package(room: str) -> None:
    folders = {path.parent for path in (ROOT / room).rglob("*.py")}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_room_import_each_other_without_a_cycle(room: str) -> None:
    assert find_cycle(imports(room)) == []


@pytest.mark.parametrize("room", ROOMS)
def test_entries_of_each_folder_import_each_other_without_a_cycle(room: str) -> None:
    """Entries of a folder: its modules, and its subfolders as one each."""
    graph = imports(room)
    packages = {name.rpartition(".")[0] for name in graph} | {room}
    for package in packages:
        entries: dict[str, set[str]] = {}
        for module, imported in graph.items():
            if entry := entry_of(module, package):
                result = {entry_of(other, package) for other in imported}
                entries.setdefault(entry, set()).update(result - {"", entry})
        assert find_cycle(entries) == [], f"between the entries of {package.replace('.', '/')}/"


def test_a_cycle_is_found_also_where_an_import_is_inside_a_function() -> None:
    sources = {
        "room.a": "def f():\n    from headrace.room import b\n",
        "room.b": "from headrace.room.c import x\n",
        "room.c": "import headrace.room.a\n",
    }
    assert set(find_cycle({name: imported_by(text, set(sources)) for name, text in sources.items()})) == set(
        sources
    )


def test_tests_are_in_the_folders_of_their_kind() -> None:
    assert (
        sorted({path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("*/*.py")})
        == TEST_FOLDERS
    )


@pytest.mark.parametrize("folder", NEEDS)
def test_quick_folders_start_no_servers(folder: str) -> None:
    servers = {"services", "spark", "pg", "ch_db", "topic", "fresh_home"} - NEEDS[folder]
    assert not [
        f"{path.relative_to(ROOT)}: {function.name}"
        for path in (ROOT / "tests" / folder).rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        and servers & {argument.arg for argument in function.args.args}
        and (
            function.name.startswith("test_")
            or any("fixture" in ast.unparse(name) for name in function.decorator_list)
        )
    ]


def entry_of(module: str, package: str) -> str:
    """The entry of a package that a module lies in, "" for a module of another package and for the package itself."""
    return module.removeprefix(package + ".").split(".")[0] if module.startswith(package + ".") else ""


def find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@cache
def imports(room: str) -> Mapping[str, set[str]]:
    """By module of a room.

    The modules of that room that it imports, at its top, inside functions and for type checkers.
    """
    files = {name_of(path): path for path in (ROOT / room).rglob("*.py")}
    graph = {
        name: imported_by(path.read_text(encoding="utf-8"), set(files)) - {name}
        for name, path in files.items()
    }
    return {
        name: {other for other in imported if not name.startswith(other + ".")}
        for name, imported in graph.items()
    }


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_by(text: str, modules: set[str]) -> set[str]:
    result: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}".removeprefix("headrace.")
                result.add(whole if whole in modules else node.module.removeprefix("headrace."))
        elif isinstance(node, ast.Import):
            result.update(alias.name.removeprefix("headrace.") for alias in node.names)
    return result & modules

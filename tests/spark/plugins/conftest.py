"""A package with a plugin of every kind, on the path of each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.plugin_files import ACME, ENTRIES, install


@pytest.fixture(scope="session")
def acme_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site"), "acme_plugins", ACME, ENTRIES)


@pytest.fixture(autouse=True)
def acme(acme_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.syspath_prepend(str(acme_folder))
    monkeypatch.chdir(tmp_path)
    return acme_folder

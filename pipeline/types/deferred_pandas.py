"""Defers the import of pandas, which takes half a second and 50 MB.

pyarrow imports pandas when it first converts Python values, to recognize Series among them. No data path here
has any. So pyarrow finds no pandas at first, and looks again when something else imports it: a function of
the user, or PySpark.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import pyarrow as pa
import pyarrow.lib

_PANDAS = "pandas"


def defer_pandas() -> None:
    """Let pyarrow work without pandas until something else imports it. Do nothing if pandas is imported."""
    if _PANDAS in sys.modules or any(isinstance(finder, _PandasFinder) for finder in sys.meta_path):
        return
    finder = _PandasFinder()
    sys.meta_path.insert(0, finder)
    pa.array([None])
    finder.is_hidden = False


class _PandasFinder(MetaPathFinder):
    """Finds no pandas while `is_hidden`. Then finds it once, for an import that also informs pyarrow."""

    def __init__(self) -> None:
        self.is_hidden = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how pandas is loaded, and None for all other modules."""
        del path, target
        if fullname != _PANDAS:
            return None
        if self.is_hidden:
            raise ModuleNotFoundError(name=_PANDAS)
        sys.meta_path.remove(self)
        spec = find_spec(_PANDAS)
        if spec and spec.loader:
            spec.loader = _PandasLoader(spec.loader)
        return spec


class _PandasLoader(Loader):
    """Loads pandas as `loader` does, then lets pyarrow look for it again."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the new module, or None for the default."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute pandas. The property `pd` of pyarrow imports it."""
        module.__loader__ = self._loader
        if module.__spec__:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _ = pyarrow.lib._pandas_api.pd  # noqa: SLF001  pyarrow has no public name for it

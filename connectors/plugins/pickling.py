"""A plugin's object on its way to Spark's workers, and its Arrow batches there."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import pyarrow as pa

from headrace.connectors.row_errors import task_error
from headrace.pipeline.errors import HeadraceError, PluginError
from headrace.pipeline.plugins.discovery import InstalledPlugin
from headrace.pipeline.plugins.runtime import plugin_error

GUARDED = "_headrace_guarded"


class PickledPlugin:
    """A plugin's object as bytes, and the folders that its modules come from.

    Raises PluginError for one that cannot be pickled.
    """

    def __init__(self, what: Any, installed_plugin: InstalledPlugin, node: str) -> None:
        from pyspark import cloudpickle

        bare = what
        if watched := getattr(what, GUARDED, ()):
            bare = copy.copy(what)
            for name in (*watched, GUARDED):
                vars(bare).pop(name, None)
        try:
            self._body = cloudpickle.dumps(bare)
        except Exception as error:
            msg = (
                f"the plugin `{installed_plugin.id}` ({installed_plugin.origin}) cannot be sent to Spark's"
                f" workers: {type(error).__name__}: {error}"
            )
            hint = "Open connections, files and locks in the method that uses them, and not in `__init__`."
            raise PluginError(msg, hint=hint, node=node) from error
        self._paths = [path for path in sys.path if path]
        self.found = installed_plugin
        self.node = node

    def open(self) -> Any:
        """Return the object in a worker; the same one as long as the task lasts."""
        if hasattr(self, "_opened"):
            return self._opened
        sys.path.extend(path for path in self._paths if path not in sys.path)
        try:
            self._opened = pickle.loads(self._body)  # noqa: S301  bytes of this run's own
        except Exception as error:
            raise task_error(
                plugin_error(error, self.found, doing="being opened in a worker", node=self.node)
            ) from error
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_opened"}

    def refuse(self, what: str, hint: str = "") -> NoReturn:
        """Fail the task because the plugin broke its contract."""
        raise task_error(contract_error(self.found, what, self.node, hint))

    def checked_batches(self, doing: str, batches: Callable[[], Iterable[Any]]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a plugin; errors of the plugin name it."""
        try:
            made = batches()
            if made is None or isinstance(made, pa.Table):
                self.refuse(
                    f"{doing} returned {type(made).__name__}, and not batches",
                    "Return or yield pyarrow.RecordBatch objects.",
                )
            for batch in made:
                if not isinstance(batch, pa.RecordBatch):
                    self.refuse(f"{doing} gave {type(batch).__name__}, and not pyarrow.RecordBatch")
                yield batch
        except HeadraceError as error:
            error.node = error.node or self.node
            raise task_error(error) from error
        except Exception as error:
            if "headrace-row:" in str(error):
                raise
            raise task_error(plugin_error(error, self.found, doing=doing, node=self.node)) from error

    def fit_batch(self, doing: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the batch with the columns of `schema` in its order.

        Other columns or types break the contract.
        """
        if batch.schema.names != schema.names:
            if missing := [name for name in schema.names if name not in batch.schema.names]:
                self.refuse(
                    f"{doing} gave rows without {', '.join(f'`{name}`' for name in missing)}",
                    _columns(schema),
                )
            if more := [name for name in batch.schema.names if name not in schema.names]:
                self.refuse(
                    f"{doing} gave columns that it did not announce: {', '.join(more)}", _columns(schema)
                )
            batch = batch.select(schema.names)
        for field in schema:
            result = batch.schema.field(field.name).type
            if result != field.type:
                self.refuse(
                    f"{doing} gave column `{field.name}` as {result}, and announced {field.type}",
                    "Cast it, or announce it so.",
                )
        return batch


def contract_error(installed_plugin: InstalledPlugin, what: str, node: str, hint: str = "") -> PluginError:
    """Return the error for a broken contract, with plugin, package and violation."""
    msg = f"the plugin `{installed_plugin.id}` ({installed_plugin.origin}) broke its contract: {what}"
    return PluginError(msg, hint=hint, node=node)


def _columns(schema: pa.Schema) -> str:
    return f"Announced: {', '.join(f'{field.name} {field.type}' for field in schema)}."

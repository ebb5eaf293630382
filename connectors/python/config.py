"""The `python` source of a pipeline file."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from headrace.connectors.staged.config import StagedSourceConfig
from headrace.pipeline.model.scripts import FunctionName


class PythonSourceConfig(StagedSourceConfig):
    """Rows of a function of your own Python package, called once; Headrace stores them.

    Trusted only by the settings.
    """

    identity_keys: ClassVar[frozenset[str]] = frozenset({"function", "options", "schema", "filter"})

    type: Literal["python"] = "python"
    function: FunctionName = Field(
        description="`package.module:name`. It takes the options and returns or yields pyarrow RecordBatches"
        " or Tables."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for the function.")

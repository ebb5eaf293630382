"""Spark starts while the code of a run is imported, for pipelines that probably use it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from headrace.connectors.java_classes import java_class
from headrace.jobs.planning.compiled_pipeline import node_types
from headrace.jobs.planning.spark_needs import needs_spark
from headrace.jobs.spark.jvm import needs_jvm
from headrace.jobs.spark.session import discard_prepared, prepare_session
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import HeadraceError
from headrace.pipeline.file.loader import PipelineFile
from headrace.pipeline.model.transforms import SqlTransformConfig

_CASE_FUNCTIONS = re.compile(r"\b(upper|ucase|lower|lcase|initcap|ilike)\b", re.IGNORECASE)
_CASE_TABLES = "org.apache.spark.sql.catalyst.util.CollationAwareUTF8String"
"""Spark's class for upper and lower case. Its first use looks up every character, which takes 0.6 s."""


@contextmanager
def spark_in_background(files: Sequence[PipelineFile], settings: Settings) -> Iterator[None]:
    """Start Spark in a thread if one of the pipelines has SQL that needs it.

    End it afterwards if nothing has used it.

    `start_session` returns the session for the same settings and all node types of the files. It raises the
    error of a start that fails.
    """
    statements = [
        node.sql
        for file in files
        for node in file.model.transforms.values()
        if isinstance(node, SqlTransformConfig)
    ]
    master = settings.spark.master
    if statements and needs_jvm() and any(needs_spark(file, master, reads_history=True) for file in files):
        kinds = frozenset().union(*map(node_types, files))
        uses_case = any(map(_CASE_FUNCTIONS.search, statements))
        with suppress(HeadraceError):  # the pipeline meets it where it first uses Spark
            prepare_session(settings, kinds, _load_case_tables if uses_case else lambda _: None)
    try:
        yield
    finally:
        discard_prepared()


def _load_case_tables(jvm: Any) -> None:
    """Load the class in a thread, while the JVM starts Spark. Nothing else of Spark waits for the class."""

    def load() -> None:
        with suppress(Exception):  # the run that needs the class meets the same error
            java_class(jvm, "java.lang.Class").forName(_CASE_TABLES)

    threading.Thread(target=load, name="headrace-case-tables", daemon=True).start()

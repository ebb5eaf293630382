"""Data for the sources whose rows are stored once: a function of a module, and a service with pages."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.connectors import splitting
from headrace.connectors.http_source.config import HttpSourceConfig
from headrace.connectors.postgres_source.config import PostgresSourceConfig
from headrace.connectors.python.config import PythonSourceConfig
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.protocol.epochs import Json
from headrace.services import Services
from helpers.pipeline_world import postgres_sink
from helpers.source_makers import PIECE, BoundedWorld, Rows
from helpers.web_server import WebRequest, served

MODULE = "world_rows"
SCHEMA = {"id": "int64", "v": "string"}


class StagedWorld(BoundedWorld):
    """Rows in a list that a source reads when its snapshot is created."""

    has_scope = False
    foresees = False

    def __init__(
        self, spark: SparkSession, services: Services, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(spark.newSession(), services)
        patch.setattr(splitting, "SPLIT_ROWS", PIECE)
        self.home = folder
        self.rows: list[tuple[int, str | None]] = []

    def settings(self, **wrong: Any) -> Settings:
        return Settings.model_validate({"home": self.home, "python_transforms": {"allow": [MODULE]}} | wrong)

    def add(self, rows: Rows) -> None:
        self.rows += rows

    def lose(self, fixed: Json) -> None:
        shutil.rmtree(fixed["root"])

    def never_was(self, fixed: Json) -> Json:
        return fixed | {"root": "/nowhere"}

    def open_resources(self) -> set[int]:
        return set(range(sum(one._files is not None for one in self.opened)))


class PythonWorld(StagedWorld):
    """A function that yields batches of three rows."""

    kind = "python"

    def __init__(
        self, spark: SparkSession, services: Services, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(spark, services, folder, patch)
        self.name = f"{MODULE}:make_rows"
        module: Any = ModuleType(MODULE)
        module.make_rows = self.make_rows
        patch.setitem(sys.modules, MODULE, module)

    def make_rows(self) -> Any:
        """The user's function."""
        for first in range(0, len(self.rows), 3):
            ids, values = zip(*self.rows[first : first + 3], strict=True)
            yield pa.record_batch({"v": pa.array(values, pa.string()), "id": pa.array(ids, pa.int64())})

    def node(self, name: str, **more: Any) -> Any:
        return PythonSourceConfig.model_validate({"function": name, "schema": SCHEMA} | more)


class HttpWorld(StagedWorld):
    """A service with pages of seven rows."""

    kind = "http"

    def __init__(
        self, spark: SparkSession, services: Services, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(spark, services, folder, patch)
        self.running = ExitStack()
        self.name = self.running.enter_context(served(self.answer)).url

    def answer(self, request: WebRequest) -> Any:
        """A page."""
        address = urlsplit(request.path)
        if address.path != "/rows":
            return 404, b"no such address", {}
        first = 7 * (int(parse_qs(address.query)["page"][0]) - 1)
        return [{"id": key, "v": value, "more": [1]} for key, value in self.rows[first : first + 7]]

    def node(self, name: str, **more: Any) -> Any:
        pages = {"by": "page"}
        url = name if name.startswith("http") else f"http://localhost:1/{name}"
        return HttpSourceConfig.model_validate({"url": url, "schema": SCHEMA, "pagination": pages} | more)

    def close(self) -> None:
        super().close()
        self.running.close()


class PostgresWorld(StagedWorld):
    """A table of a database."""

    kind = "postgres"
    has_scope = True

    def __init__(
        self,
        spark: SparkSession,
        services: Services,
        folder: Path,
        patch: pytest.MonkeyPatch,
        conninfo: str,
    ) -> None:
        super().__init__(spark, services, folder, patch)
        self.conninfo = conninfo
        self.name = "world_rows"
        with psycopg.connect(conninfo) as connection:
            connection.execute("CREATE TABLE world_rows (id bigint, v text)")

    def settings(self, **wrong: Any) -> Settings:
        return super().settings(postgres_source=postgres_sink(self.conninfo), **wrong)

    def add(self, rows: Rows) -> None:
        with psycopg.connect(self.conninfo) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO world_rows VALUES (%s, %s)", rows)

    def node(self, name: str, **more: Any) -> Any:
        return PostgresSourceConfig.model_validate({"table": name} | more)

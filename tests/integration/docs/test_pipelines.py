"""Every complete pipeline file of the docs runs unchanged, with the result that its page states."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import market
import psycopg
import pytest
import redis
import scores
from confluent_kafka.admin import AdminClient
from helpers.checkout import ROOT
from helpers.depth import with_slow
from helpers.kafka_sink import read_messages
from helpers.redis_server import redis_server
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import SparkSession

from headrace.connectors.clickhouse.client import connect
from headrace.connectors.iceberg.catalog import WarehouseTable
from headrace.connectors.memory.tables import read_table
from headrace.jobs.run.events import RunResult, Until
from headrace.jobs.run.runner import run
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.file.loader import parse_pipeline
from headrace.services import Services

DOCS = ROOT / "docs"
NODES = DOCS / "reference" / "pipeline-file"
PAGES = [
    *sorted(NODES.rglob("*.md")),
    DOCS / "guides" / "cookbook.md",
    *sorted((DOCS / "migrate").glob("*.md")),
]
DATABASE = "market_pages"
_COPIED = "orders-copied"
_SHOWN = re.compile(
    r"^```yaml\n(?P<file>(?:version: 1|sources:)\n.*?)^```$(?P<prose>.*?)(?=^#|^```|\Z)",
    re.MULTILINE | re.DOTALL,
)
_LEAVES = re.compile(
    r"\*\*([\d,]+) rows\*\*\s+in\s+(Postgres|Delta|Iceberg|Kafka|ClickHouse|Redis|files|memory)\s+`([^`]+)`"
)
_COMPUTES = re.compile(r"Computes \*\*([\d,]+) rows\*\*")
_PRINTS = re.compile(r"Shows \*\*([\d,]+) lines\*\*")
_MODULE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_GIVES = re.compile(r"`(SELECT [^`]+)`\s+gives\s+`([^`]+)`")


@dataclass(frozen=True)
class PageBlock:
    """A file as a page shows it, and what stands between it and the next heading or block."""

    page: str
    text: str
    prose: str

    @property
    def name(self) -> str:
        return parse_pipeline(self.text, self.page).name

    @property
    def claims(self) -> list[tuple[str, ...]]:
        return [
            claim
            for pattern in (_LEAVES, _COMPUTES, _PRINTS, _GIVES)
            for claim in _tuples(pattern.findall(self.prose))
        ]


def _tuples(result: list) -> list[tuple[str, ...]]:
    return [one if isinstance(one, tuple) else (one,) for one in result]


SHOWN = [
    PageBlock(str(page.relative_to(DOCS)), match["file"], match["prose"])
    for page in PAGES
    for match in _SHOWN.finditer(page.read_text())
]


def test_names_are_unique_and_every_file_says_what_it_leaves() -> None:
    assert len({shown.name for shown in SHOWN}) == len(SHOWN)
    assert not [shown.name for shown in SHOWN if not shown.claims]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(scope="module")
def settings(
    services: Services, redis_url: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """Tables and topics of the market, and a Postgres database that only these tests have."""
    home = tmp_path_factory.mktemp("market")
    with psycopg.connect(services.postgres.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}".encode())
    clickhouse = services.clickhouse
    server = {"url": clickhouse.url, "user": clickhouse.username, "password": clickhouse.password}
    made = Settings.model_validate(
        {
            "home": home,
            "state_backend": {"sqlite": {"path": home / "ledger.db"}},
            "clickhouse_source": server,
            "clickhouse_sink": server,
            "kafka_source": {"brokers": services.kafka.brokers},
            "kafka_sink": {"brokers": services.kafka.brokers},
            "postgres_source": _sink(services.postgres.conninfo(DATABASE)),
            "postgres_sink": _sink(services.postgres.conninfo(DATABASE)),
            "redis_sink": {"url": redis_url},
            "python_transforms": {"allow": ["shop_rates", "shop_days"]},
        }
    )
    admin = AdminClient({"bootstrap.servers": services.kafka.brokers})
    if _COPIED in admin.list_topics(timeout=300).topics:  # of an earlier session on the same servers
        admin.delete_topics([_COPIED])[_COPIED].result(30)
    market.fill(made)
    connect(made.clickhouse_sink, "docs").command("DROP TABLE IF EXISTS market.orders_copy SYNC")
    market.fill_postgres(made)
    market.fill_files(home)
    market.fill_iceberg(spark, home / "warehouse")
    market.fill_delta(spark, home / "stock")
    service = scores.server(0)
    threading.Thread(target=service.serve_forever, args=(0.05,), daemon=True).start()
    os.environ["SCORES_URL"] = f"http://127.0.0.1:{service.server_port}/scores"
    for name, page in (("shop_rates", "transforms/python.md"), ("shop_days", "sources/python.md")):
        module = home / f"{name}.py"
        module.write_text(_MODULE.findall((NODES / page).read_text())[0])
        spark.sparkContext.addPyFile(str(module))
    yield made
    del os.environ["SCORES_URL"]
    service.shutdown()
    service.server_close()
    with psycopg.connect(services.postgres.conninfo(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)".encode())


def _sink(conninfo: str) -> dict[str, Any]:
    result = conninfo_to_dict(conninfo)
    return {name: result[name] for name in ("host", "port", "user", "password")} | {"db": result["dbname"]}


# Files of the cookbook have nodes that the daily files have too. test_names_are_unique loads all of them.
SLOW = [shown for shown in SHOWN if shown.page.startswith("guides/") or shown.name == "clicks_iceberg"]


@pytest.mark.parametrize("shown", with_slow(SLOW, SHOWN), ids=lambda shown: f"{shown.page}:{shown.name}")
def test_a_pipeline_leaves_what_its_page_says(
    shown: PageBlock,
    settings: Settings,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(settings.home)
    result = run(parse_pipeline(shown.text, shown.page), settings, until=Until.CAUGHT_UP, spark=spark)
    lines = [line for line in capsys.readouterr().err.splitlines() if "(sample_every=" in line]
    for rows, kind, where in _LEAVES.findall(shown.prose):
        assert (where, _count_rows(kind, where, settings, spark)) == (where, _number(rows))
    for rows in _COMPUTES.findall(shown.prose):
        assert _rows(result) == _number(rows)
    for count in _PRINTS.findall(shown.prose):
        assert len(lines) == _number(count)
    for query, answer in _GIVES.findall(shown.prose):
        assert (query, _query(query, settings)) == (query, answer)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _rows(result: RunResult) -> int:
    return sum(figures.rows for figures in result.phases.values())


def _count_rows(kind: str, where: str, settings: Settings, spark: SparkSession) -> int:
    if kind in ("Delta", "files"):
        form = "delta" if kind == "Delta" else "parquet"
        return spark.read.format(form).load(str(settings.home / where)).count()
    if kind == "Iceberg":
        return WarehouseTable(str(settings.home / "warehouse"), where, "reader").frame(spark, None).count()
    if kind in ("memory", "Kafka", "Redis"):
        counts = {"memory": _count_memory, "Kafka": _count_messages, "Redis": _count_entries}
        return counts[kind](where, settings)
    if kind == "ClickHouse":
        client = connect(settings.clickhouse_sink, where)
        return client.query(f"SELECT count() FROM {where} FINAL").result_rows[0][0]
    return int(_query(f"SELECT count(*) FROM {where}", settings))


def _count_memory(table: str, _: Settings) -> int:
    return read_table(table).num_rows


def _count_messages(topic: str, settings: Settings) -> int:
    return len(read_messages(settings.kafka_sink.brokers, topic))


def _count_entries(prefix: str, settings: Settings) -> int:
    with redis.Redis.from_url(settings.redis_sink.url, protocol=2) as client:
        return len(set(client.scan_iter(f"{prefix}:*")))


def _query(query: str, settings: Settings) -> str:
    """The rows of an answer, values with commas between."""
    with psycopg.connect(make_conninfo("", **settings.postgres_sink.conninfo())) as connection:
        return "; ".join(", ".join(map(str, row)) for row in connection.execute(query.encode()).fetchall())

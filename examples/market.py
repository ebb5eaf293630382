"""Create the missing tables and topics of the pipelines in the docs: `python examples/market.py`.

It writes to the ClickHouse and the Kafka that the settings name: after `headrace services up`, those of this
machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors.clickhouse.client import connect
from headrace.pipeline.config.settings import Settings, load_settings

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from pyspark.sql import SparkSession

ORDERS, NEW, LATE = 1_000, 30, 50
"""Orders in the table, orders that only the topic has, and how many of the table's came from the topic."""
VISITS = 120
DAY = datetime(2025, 1, 1, tzinfo=UTC)
Message = tuple[str, dict[str, Any], datetime | None]
"""What it does (c, u or d), its payload, and when it arrived; None: now."""


def order(number: int) -> dict[str, Any]:
    """Return an order. Every hundredth is free, and some customer names have unusual spelling."""
    odd = (" c{} ", "C{}", "c{}")[number % 3]
    placed = DAY + timedelta(hours=2 * number)
    return {
        "id": number,
        "customer": odd.format(number % 40),
        "cents": number % 100 * 25,
        "placed_at": placed.isoformat(),
    }


def visit(number: int, now: datetime) -> dict[str, Any]:
    """One visit a minute, the last one just now."""
    return {
        "id": number,
        "at": (now - timedelta(minutes=VISITS - number)).isoformat(),
        "page": f"/p{number % 7}",
    }


def fill_clickhouse(client: Client, now: datetime) -> None:
    """Create the database `market`: orders with their offsets, and visits without."""
    client.command("CREATE DATABASE IF NOT EXISTS market")
    if {"orders", "visits"} <= {
        row[0] for row in client.query("SELECT name FROM system.tables WHERE database = 'market'").result_rows
    }:
        return
    client.command(
        "CREATE TABLE market.orders (id Int64, customer String, cents Int64, placed_at DateTime64(3, 'UTC'),"
        " _kafka_partition Nullable(Int32), _kafka_offset Nullable(Int64)) ENGINE = MergeTree ORDER BY id"
    )
    client.command(
        "CREATE TABLE market.visits (id Int64, at DateTime64(6, 'UTC'), page String) ENGINE = MergeTree"
        " ORDER BY id"
    )
    first = ORDERS - LATE
    rows = [
        (*_timed(order(number), "placed_at"), *((0, number - first) if number >= first else (None, None)))
        for number in range(ORDERS)
    ]
    client.insert(
        "orders",
        rows,
        column_names=["id", "customer", "cents", "placed_at", "_kafka_partition", "_kafka_offset"],
        database="market",
    )
    seen = [_timed(visit(number, now), "at") for number in range(VISITS - 10)]
    client.insert("visits", seen, column_names=["id", "at", "page"], database="market")


def _timed(row: dict[str, Any], column: str) -> list[Any]:
    return list((row | {column: datetime.fromisoformat(row[column])}).values())


def messages(now: datetime) -> dict[str, list[Message]]:
    """Return the messages of each topic, in order."""
    orders: list[Message] = [("c", order(number), None) for number in range(ORDERS - LATE, ORDERS + NEW)]
    orders += [("u", order(number) | {"cents": 1}, None) for number in range(5)]
    orders += [("d", {"id": number}, None) for number in range(10, 15)]
    clicks: list[Message] = [
        (
            "c",
            {
                "visitor": f"v{number % 9}",
                "page": "/health" if number % 6 == 0 else f"/P{number % 4}",
                "at": now.isoformat(),
            },
            None,
        )
        for number in range(60)
    ]
    prices: list[Message] = [
        ("c", {"sku": f"s{sku}", "price": f"{sku + version}.50", "version": version}, None)
        for version in (2, 3, 1)
        for sku in range(10)
    ]
    payments: list[Message] = [
        ("c", {"id": number, "cents": "unknown" if number % 15 == 0 else number * 100}, None)
        for number in range(1, 31)
    ]
    visits: list[Message] = [
        ("c", row, datetime.fromisoformat(row["at"]))
        for row in (visit(number, now) for number in range(VISITS))
    ]
    regions: dict[str, list[Message]] = {
        f"market-orders-{region}": [
            ("c", {"id": number, "cents": number * 10}, None) for number in range(first, first + 20)
        ]
        for region, first in (("eu", 0), ("us", 100))
    }
    return {
        "market-orders": orders,
        "market-clicks": clicks,
        "market-prices": prices,
        "market-payments": payments,
        "market-visits": visits,
        **regions,
    }


def fill_kafka(settings: Settings, now: datetime) -> None:
    """Create the topics, each with one partition. Keep topics that exist."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    from headrace.connectors.kafka.client_config import client_options

    options: dict[str, Any] = {**client_options(settings.kafka_source)}
    admin, producer = AdminClient(options), Producer(options | {"enable.idempotence": True})
    wanted = messages(now)
    missing = set(wanted) - set(admin.list_topics(timeout=30).topics)
    if missing:
        for made in admin.create_topics([NewTopic(name, 1) for name in missing]).values():
            made.result()
        _wait_for(admin, missing)
    for name in missing:
        for op, payload, at in wanted[name]:
            moment = int((at or now).timestamp() * 1000)
            producer.produce(
                name,
                json.dumps(payload),
                key=str(payload.get("id", "")),
                headers={"dbz.op": op},
                timestamp=moment,
            )
    if left := producer.flush(30):
        msg = f"{left} messages could not be sent"
        raise RuntimeError(msg)


def _wait_for(admin: Any, topics: Iterable[str]) -> None:
    """Wait until the broker knows the topics, which the controller created a moment before."""
    deadline = time.monotonic() + 30
    while set(topics) - set(admin.list_topics(timeout=30).topics):
        if time.monotonic() > deadline:
            msg = "the topics were made and cannot be seen"
            raise RuntimeError(msg)
        time.sleep(0.05)


def fill_files(folder: Path) -> None:
    """`readings/day=…/part-1.csv` below a folder: thirty readings a day, a third of them empty."""
    for day in (1, 2):
        path = folder / "readings" / f"day=2025-01-0{day}" / "part-1.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            rows = (
                f"{day * 100 + number},{'' if number % 3 == 0 else f'{number}.50'}" for number in range(30)
            )
            path.write_text("\n".join(["id,celsius", *rows]) + "\n")


def fill_iceberg(spark: SparkSession, warehouse: Path) -> None:
    """Create the table `market.products` in a hadoop warehouse: 40 products, two of them without a price."""
    catalog = "spark.sql.catalog.market_fill"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{catalog}.type", "hadoop")
    spark.conf.set(f"{catalog}.warehouse", str(warehouse.resolve()))
    spark.sql(
        "CREATE TABLE IF NOT EXISTS market_fill.market.products (sku string, name string, price decimal(10,"
        " 2)) USING iceberg"
    )
    if spark.table("market_fill.market.products").isEmpty():
        price = "CASE WHEN id < 38 THEN CAST(id + 0.5 AS DECIMAL(10, 2)) END"
        spark.sql(
            "INSERT INTO market_fill.market.products SELECT concat('s', id), concat('product ', id),"
            f" {price} FROM range(40)"
        )


def fill_delta(spark: SparkSession, path: Path) -> None:
    """Create a Delta table with the products of `fill_iceberg`."""
    price = "CASE WHEN id < 38 THEN CAST(id + 0.5 AS DECIMAL(10, 2)) END AS price"
    rows = spark.range(40).selectExpr("concat('s', id) AS sku", "concat('product ', id) AS name", price)
    rows.write.format("delta").mode("ignore").save(str(path.resolve()))


def fill_postgres(settings: Settings) -> None:
    """Create the table `suppliers`: 25 suppliers, five of them without a rating."""
    import psycopg

    rating = "CASE WHEN n <= 20 THEN (n % 5 + 0.5)::numeric(3, 1) END AS rating"
    with psycopg.connect(**settings.postgres_source.conninfo()) as connection:  # type: ignore[arg-type]
        connection.execute(
            "CREATE TABLE IF NOT EXISTS suppliers AS"
            f" SELECT n::bigint AS id, 'supplier ' || n AS name, {rating}"
            " FROM generate_series(1, 25) n".encode()
        )


def fill(settings: Settings) -> None:
    """ClickHouse and Kafka."""
    now = datetime.now(UTC).replace(microsecond=0)
    client = connect(settings.clickhouse_source, "market")
    try:
        fill_clickhouse(client, now)
    finally:
        client.close()
    fill_kafka(settings, now)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill the servers of the settings, and the warehouse if one is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=Path, help="also write the csv files, below this folder")
    parser.add_argument(
        "--warehouse", type=Path, help="also make the Iceberg table, in this folder; starts Spark"
    )
    options = parser.parse_args(arguments)
    warehouse = options.warehouse
    settings = load_settings()
    fill(settings)
    if options.files is not None:
        fill_files(options.files)
    if warehouse is not None:
        from headrace.jobs.spark.session import start_session, stop_session

        session = start_session(settings, ("iceberg",))
        try:
            fill_iceberg(session, warehouse)
        finally:
            stop_session(session)


if __name__ == "__main__":
    main()

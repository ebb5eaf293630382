"""Real Postgres, Kafka and ClickHouse on this machine, from Python packages, without containers.

from headrace import services

local = services.up()
local.postgres.conninfo(), local.kafka.brokers, local.clickhouse.url
local.postgres.kill(); local.postgres.start()  # a crash and its recovery
services.down()
"""

from headrace.services.manager import NAMES, Services, ServiceStatus, down, status, up

__all__ = ["NAMES", "ServiceStatus", "Services", "down", "status", "up"]

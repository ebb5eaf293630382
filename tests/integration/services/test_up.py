"""Local servers: started once, restarted after a kill, stopped completely."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import clickhouse_connect
import psutil
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headrace import services as local
from headrace.pipeline.errors import ServiceError
from headrace.services import NAMES, Services
from headrace.services.state import ServiceState


def processes_of(home: Path) -> list[int]:
    there = [process for process in psutil.process_iter(["cmdline"]) if process.pid != os.getpid()]
    return [
        process.pid for process in there if any(str(home) in part for part in process.info["cmdline"] or [])
    ]


def test_up_twice_is_one_start(services: Services):
    before = {name: services[name].pid for name in NAMES}
    again = local.up(home=services.home)
    assert None not in before.values()
    assert {name: again[name].pid for name in NAMES} == before
    assert {(result.name, result.state) for result in local.status(services.home)} == {
        (name, "up") for name in NAMES
    }


def test_the_file_is_for_its_owner_alone_and_holds_what_settings_read(
    services: Services, monkeypatch: pytest.MonkeyPatch
):
    from headrace.pipeline.config.settings import load_settings

    path = services.home / "services.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["version"] == 1
    monkeypatch.setenv("HEADRACE_HOME", str(services.home))
    settings = load_settings()
    with psycopg.connect(**settings.postgres_sink.conninfo()) as connection:  # type: ignore[arg-type]
        assert connection.execute("SELECT current_database()").fetchone() == ("headrace",)
    assert settings.clickhouse_source.url == services.clickhouse.url
    assert settings.clickhouse_sink.database == "headrace"
    assert settings.kafka_source.brokers == services.kafka.brokers


def test_no_password_on_a_command_line_or_in_a_log(services: Services):
    secrets = {services.postgres.password, services.clickhouse.password}
    for name in NAMES:
        process = services[name].find_process()
        assert process is not None
        written = " ".join(process.cmdline()) + services[name].log_file.read_text()
        assert not [secret for secret in secrets if secret in written]


def test_tables_without_a_schema_are_in_public(services: Services, pg: str):
    with psycopg.connect(pg) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS headrace")
        connection.execute("CREATE TABLE t (id int)")
        assert connection.execute("SELECT to_regclass('public.t')::text, current_user").fetchone() == (
            "t",
            "headrace",
        )


def test_postgres_keeps_what_was_committed_over_kill_9(services: Services, pg: str):
    with psycopg.connect(pg, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY)")
        connection.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    before = (services.postgres.pid, services.postgres.port)
    services.postgres.kill(signal.SIGKILL)
    assert services.postgres.pid is None
    assert next(result.state for result in local.status(services.home) if result.name == "postgres") == "down"
    services.postgres.start()
    assert services.postgres.pid != before[0]
    assert services.postgres.port == before[1]
    with psycopg.connect(pg) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1000,)


def test_postgres_comes_back_where_only_its_head_was_killed(services: Services, pg: str):
    busy = psycopg.connect(pg)  # a backend that the head's death leaves behind for a moment
    try:
        busy.execute("SELECT 1")
        head = services.postgres.pid
        assert head is not None
        os.kill(head, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(head)] if psutil.pid_exists(head) else [], timeout=20)
        services.postgres.start()
    finally:
        busy.close()
    with psycopg.connect(pg) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.slow  # most of it is the wait for a fenced broker; the other servers are killed in daily tests
def test_kafka_keeps_acknowledged_records_over_kill_9(services: Services, topic: Callable[..., str]):
    name = topic()
    producer = Producer({"bootstrap.servers": services.kafka.brokers, "acks": "all"})
    for number in range(500):
        producer.produce(name, str(number).encode())
    assert producer.flush(60) == 0
    port = services.kafka.port
    services.kafka.kill()
    services.kafka.start()
    assert services.kafka.port == port
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": services.kafka.brokers, "group.id": name})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=300) == (0, 500)
    finally:
        consumer.close()


def test_clickhouse_keeps_what_was_inserted_over_kill_9(services: Services, ch_db: str):
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as client:
        client.command("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
        client.insert("t", [[number] for number in range(1000)], column_names=["a"])
    services.clickhouse.kill()
    assert services.clickhouse.pid is None
    services.clickhouse.start()
    with clickhouse_connect.get_client(**services.clickhouse.client_arguments(database=ch_db)) as client:
        assert client.command("SELECT count() FROM t") == 1000


def test_a_stopped_server_is_silent_and_goes_on_when_told(services: Services):
    services.clickhouse.kill(signal.SIGSTOP)
    try:
        assert services.clickhouse.pid is not None
        assert (
            next(result.state for result in local.status(services.home) if result.name == "clickhouse")
            == "silent"
        )
    finally:
        services.clickhouse.kill(signal.SIGCONT)
    services.clickhouse.ping()


def test_a_taken_port_is_given_up_and_the_data_kept(fresh_home: Path):
    first = local.up(["postgres"], home=fresh_home).postgres
    old = first.port
    with psycopg.connect(first.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (a int)")
    local.down(fresh_home)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", old))
        thief.listen()
        again = local.up(["postgres"], home=fresh_home).postgres
        assert again.port != old
        with psycopg.connect(again.conninfo()) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


# Daily ones: `fresh_home` finds processes that are left, and test_a_taken_port_is_given_up_and_the_data_kept starts again.
@pytest.mark.slow
def test_down_leaves_no_process_and_up_finds_ports_and_data_again(fresh_home: Path):
    first = local.up(home=fresh_home)
    ports = {name: first[name].port for name in NAMES}
    AdminClient({"bootstrap.servers": first.kafka.brokers}).list_topics(timeout=300)
    assert processes_of(fresh_home)
    local.down(fresh_home)
    assert processes_of(fresh_home) == []
    assert {result.state for result in local.status(fresh_home)} == {"down"}
    cluster = ServiceState(fresh_home).entry("kafka")["cluster_id"]
    second = local.up(home=fresh_home)
    assert {name: second[name].port for name in NAMES} == ports
    assert (
        AdminClient({"bootstrap.servers": second.kafka.brokers}).list_topics(timeout=300).cluster_id
        == cluster
    )
    local.down(fresh_home)
    local.down(fresh_home)  # nothing runs: nothing happens


def test_two_ups_at_once_start_each_server_once(fresh_home: Path):
    code = (
        "import sys; from headrace import services as s; u = s.up(sys.argv[2:], sys.argv[1]);"
        " print(u.postgres.pid, u.clickhouse.pid)"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(fresh_home), "postgres", "clickhouse"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=200)[0].split() for process in both]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 2
    leaders = [pid for pid in processes_of(fresh_home) if os.getsid(pid) == pid]
    assert sorted(leaders) == sorted(map(int, outputs[0]))


def test_servers_outlive_the_process_that_started_them(fresh_home: Path):
    code = (
        "import sys; from headrace import services as s; print(s.up(['clickhouse'],"
        " sys.argv[1]).clickhouse.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(fresh_home)], capture_output=True, text=True, timeout=200, check=True
    )
    assert Services(fresh_home).clickhouse.pid == int(done.stdout)
    Services(fresh_home).clickhouse.ping()


def test_a_server_whose_starter_died_before_taking_notes_is_replaced(fresh_home: Path):
    first = local.up(["clickhouse"], home=fresh_home).clickhouse
    lost = first.pid
    ServiceState(fresh_home).update("clickhouse", pid=None, create_time=None)
    second = local.up(
        ["clickhouse"], home=fresh_home
    ).clickhouse  # could not open the data while the first one holds it
    assert second.pid != lost
    assert [pid for pid in processes_of(fresh_home) if pid == lost] == []


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone(fresh_home: Path):
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        ServiceState(fresh_home).update(
            "clickhouse",
            pid=stranger.pid,
            create_time=time.time() - 1000,
            port=20_000,
            user="default",
            password="x",
        )
        assert Services(fresh_home).clickhouse.pid is None
        local.down(fresh_home)
        assert stranger.poll() is None
        stranger.kill()


def test_a_server_that_cannot_start_says_why(fresh_home: Path):
    broken = local.up(["postgres"], home=fresh_home).postgres
    broken.stop()
    (broken.data / "cluster" / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(ServiceError, match="no_such_setting") as raised:
        broken.start()
    assert str(broken.log_file) in raised.value.hint


def test_an_unknown_service_is_named(fresh_home: Path):
    with pytest.raises(ServiceError, match="no local service 'postgress'"):
        local.up(["postgress"], home=fresh_home)
    with pytest.raises(ServiceError, match="never been started"):
        _ = Services(fresh_home).kafka.brokers

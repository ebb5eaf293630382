"""The Spark session of a run: started late, shared, and stopped with the run.

Starting is a stand-in; the real start is in test_real.
"""

from __future__ import annotations

import dagster as dg
import pytest
from dagster_pyspark import PySparkResource

from headrace.orchestration.resources import SPARK, spark_resource
from headrace.orchestration.spark import PipelineSparkResource
from headrace.pipeline.config.settings import Settings
from headrace.pipeline.errors import SparkJvmError


class Machine:
    """Counts sessions that are started and stopped."""

    def __init__(self):
        self.up, self.started, self.settings, self.dead = [], [], [], []

    def start(self, settings, kinds):
        session = object()
        self.up.append(session)
        self.started.append(set(kinds))
        self.settings.append(settings)
        return session

    def stop(self, session):
        self.up.remove(session)


@pytest.fixture
def machine(monkeypatch):
    result = Machine()
    monkeypatch.setattr("headrace.orchestration.spark.start_session", result.start)
    monkeypatch.setattr("headrace.orchestration.spark.stop_session", result.stop)
    monkeypatch.setattr("headrace.orchestration.spark.jvm_alive", lambda session: session not in result.dead)
    return result


def run(work, config=None):
    """A run with one step that does `work` with the resource."""

    @dg.asset(required_resource_keys={SPARK})
    def own(context) -> None:
        work(getattr(context.resources, SPARK))

    resource = spark_resource.configured({"spark_config": config}) if config else spark_resource
    return dg.materialize(
        [own], resources={SPARK: resource}, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False
    )


def test_nothing_starts_until_somebody_asks(machine):
    seen = []
    assert run(lambda spark: seen.append(isinstance(spark, PySparkResource))).success
    assert seen == [True]
    assert machine.started == []


def test_an_asset_of_ones_own_gets_a_session_that_reads_delta_and_it_ends_with_the_run(machine):
    sessions = []
    assert run(lambda spark: sessions.extend([spark.spark_session, spark.spark_session])).success
    assert sessions[0] is sessions[1]
    assert machine.started == [{"delta"}]
    assert machine.up == []


@pytest.mark.parametrize("error", [ValueError, dg.DagsterExecutionInterruptedError])
def test_it_ends_with_a_run_that_fails_or_is_terminated(machine, error):
    def fail(spark):
        assert spark.spark_session in machine.up
        raise error

    try:
        assert not run(fail).success
    except dg.DagsterExecutionInterruptedError:
        assert error is dg.DagsterExecutionInterruptedError
    assert machine.up == []


def test_one_who_needs_more_extensions_gets_another_session(machine):
    spark = PipelineSparkResource(spark_config={})
    first = spark.session(Settings(), {"postgres"})
    second = spark.session(Settings(), {"delta"})
    third = spark.session(Settings(), {"postgres"})
    assert first is not second
    assert second is third
    assert machine.started == [{"postgres"}, {"postgres", "delta"}]
    assert machine.up == [second]


def test_a_step_after_the_jvm_has_died_gets_another_session(machine):
    spark = PipelineSparkResource(spark_config={})
    first = spark.session(Settings(), {"postgres"})
    machine.dead.append(first)
    second = spark.session(Settings(), {"postgres"})
    assert second is not first
    assert machine.up == [second]


def test_its_configuration_goes_over_that_of_the_settings(machine):
    run(
        lambda spark: spark.spark_session,
        {"spark.executor.memory": "3g", "spark.master": "spark://there:7077"},
    )
    assert machine.settings[0].spark.conf == {
        "spark.executor.memory": "3g",
        "spark.master": "spark://there:7077",
    }


def test_no_step_after_a_dead_jvm_gets_its_session(machine, monkeypatch):
    """The connection broke, and the JVM has not ended yet: it still counts as alive."""
    monkeypatch.setattr("headrace.orchestration.spark.explain_death", lambda *_: None)
    spark = PipelineSparkResource(spark_config={})
    first = spark.session(Settings(), {"postgres"})
    broken = SparkJvmError("the connection to Spark's JVM broke")
    with pytest.raises(SparkJvmError, match="broke"), spark.translate_errors(Settings()):
        raise broken
    assert machine.up == []
    assert spark.session(Settings(), {"postgres"}) is not first

"""What a stream writes into Dagster's event log, which Dagster never prunes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from helpers.dagster_runs import LAKE, PG
from helpers.pipeline_world import World
from pyspark.sql import SparkSession

from headrace.jobs.run.events import EpochCommitted, Until
from headrace.jobs.run.runner import run
from headrace.orchestration.build import build_definitions
from headrace.orchestration.instance import dagster_home
from headrace.orchestration.pipelines import Pipeline, read_pipeline
from headrace.orchestration.source_reports import observe_sources, report_sources
from headrace.orchestration.stream import StreamReporter
from headrace.pipeline.errors import TransientError
from headrace.pipeline.file.loader import load_pipeline
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts

KAFKA = dg.AssetKey(["kafka", "flights"])
HISTORY = dg.AssetKey(["clickhouse", "flights", "history"])
SECONDS_BETWEEN_EPOCHS = 5
WEEK, LIFETIME = 7 * 24 * 3600, 2 * 3600
"""Seconds. A shorter lifetime than the default of 6 h writes more: each run has a file and a last report."""
LIMIT = 100 * 2**20


def epoch(number: int) -> EpochCommitted:
    plan = EpochPlan(number, Phase.LIVE, {}, {}, "hash", datetime.now(UTC))
    counts = {name: WriteCounts(50, inserted=40, updated=9, deleted=1) for name in ("flights_pg", "lake")}
    return EpochCommitted(plan, counts, {"total": 0.5}, backlog=12)


@pytest.fixture
def instance(stand_in) -> Iterator[dg.DagsterInstance]:
    """An instance with the storage of `headrace ui`. The sources answer."""
    now = dg.MetadataValue.timestamp(datetime.now(UTC))
    newest = {"dagster/last_updated_timestamp": now, "age_seconds": 1.5}
    stand_in.observed = {KAFKA: newest | {"lag_offsets": 12}, HISTORY: newest}
    with dg.DagsterInstance.from_config(str(dagster_home())) as result:
        yield result


def stream(instance: dg.DagsterInstance, pipeline: Pipeline, seconds: int) -> dg.ExecuteInProcessResult:
    """A lifetime of a stream with an epoch every few seconds, in a moment."""

    @dg.op(out=dg.Out(dg.Nothing), required_resource_keys={"headrace_spark"})
    def live(context) -> None:
        now = [0.0]
        reporter = StreamReporter(context, pipeline, lambda: now[0])
        for number in range(1, seconds // SECONDS_BETWEEN_EPOCHS + 1):
            now[0] = float(number * SECONDS_BETWEEN_EPOCHS)
            reporter.on_event(epoch(number))
            reporter.on_tick()
        reporter.finish(SimpleNamespace(stop_reason="max_run_time", epochs=number, caught_up=True))  # type: ignore[arg-type]

    spark = SimpleNamespace(
        settings=lambda result: result, session=lambda *_: None, translate_errors=lambda _: nullcontext()
    )

    @dg.job(resource_defs={"headrace_spark": dg.ResourceDefinition.hardcoded_resource(spark)})
    def flights_stream() -> None:
        live()

    return flights_stream.execute_in_process(instance=instance)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def reports(instance: dg.DagsterInstance, key: dg.AssetKey, run_id: str) -> list[dg.AssetMaterialization]:
    """The materializations of an asset by a run, oldest first."""
    records = instance.fetch_materializations(key, limit=1000, ascending=True).records
    result = [record.asset_materialization for record in records if record.run_id == run_id]
    return [one for one in result if one]


def test_event_log_of_a_week_with_two_sinks_stays_small(instance, written) -> None:
    pipeline = read_pipeline(written())
    stream(instance, pipeline, 600)
    before = size(dagster_home())
    result = stream(instance, pipeline, LIFETIME)
    grown = size(dagster_home()) - before
    assert result.success
    assert len(reports(instance, PG, result.run_id)) >= LIFETIME // 300
    print(f"event log: {grown * WEEK / LIFETIME / 2**20:.0f} MB a week")
    assert grown * WEEK / LIFETIME < LIMIT


def test_event_log_has_numbers_for_plots_and_lineage_once_a_run(instance, written) -> None:
    pipeline = read_pipeline(written())
    for _ in range(2):
        result = stream(instance, pipeline, 600)
        for key in (PG, LAKE):
            actual = [report.metadata for report in reports(instance, key, result.run_id)]
            assert len(actual) >= 9
            assert ["dagster/column_lineage" in metadata for metadata in actual] == [
                True,
                *[False] * (len(actual) - 1),
            ]
            for metadata in actual:
                for name, value in (("rows_written", 600), ("rows_per_second", 100.0), ("lag_offsets", 12)):
                    assert metadata[name].value == value
                assert metadata["duration_seconds"].value == 6.0
                assert metadata["dagster/row_count"].value == 77


def test_event_log_has_a_check_again_only_if_its_result_changes(instance, written, stand_in) -> None:
    pipeline = read_pipeline(written())

    def evaluations(seconds: int) -> list[bool]:
        result = stream(instance, pipeline, seconds)
        return [
            actual.passed
            for actual in result.get_asset_check_evaluations()
            if (actual.asset_key, actual.check_name) == (PG, "row_count_matches")
        ]

    assert evaluations(1200) == [True, True], "the first one, and the one at the end"
    assert len(stand_in.audits) > 10
    answers = iter([*[True] * 3, *[False] * 3, *[True] * 30])
    real = stand_in.audit

    def audit(*args, **options):
        stand_in.failing = set() if next(answers) else {"row_count_matches"}
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.jobs.checks.audit.audit", audit)
        assert evaluations(1200) == [True, False, True, True]


def test_event_log_has_lag_and_age_of_the_sources(instance, written) -> None:
    pipeline = read_pipeline(written())
    stream(instance, pipeline, 3600)
    for key in (KAFKA, HISTORY):
        records = instance.fetch_observations(key, limit=100).records
        assert 4 <= len(records) <= 6
        metadata = records[0].asset_observation.metadata
        assert metadata["age_seconds"].value == 1.5
        assert isinstance(metadata["dagster/last_updated_timestamp"], dg.TimestampMetadataValue)
    assert (
        instance.fetch_observations(KAFKA, limit=1).records[0].asset_observation.metadata["lag_offsets"].value
        == 12
    )


def test_event_log_of_a_materialization_has_them_too(instance, written) -> None:
    job = build_definitions([written()]).resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance).success
    assert len(instance.fetch_observations(KAFKA, limit=10).records) == 1
    metadata = instance.get_latest_materialization_event(PG).asset_materialization.metadata
    assert {"rows_per_second", "duration_seconds"} <= set(metadata)


def test_event_log_goes_on_if_a_source_is_away(written, monkeypatch) -> None:
    logged: list[str] = []

    def away(_):
        msg = "no broker answers"
        raise TransientError(msg)

    monkeypatch.setattr("headrace.orchestration.source_reports.observe_sources", away)
    context = SimpleNamespace(log=SimpleNamespace(warning=lambda text, *values: logged.append(text % values)))
    report_sources(context, read_pipeline(written()))
    assert logged == ["event=sources_not_observed error=no broker answers"]


def test_a_pipeline_is_drawn_in_the_descriptions_of_its_sinks_and_its_stream(written) -> None:
    defs = build_definitions([written()])
    drawing = (
        "```\n"
        "flights: clickhouse flights.history, then kafka flights\n"
        "├─ clean: sql\n"
        "│  └─ flights_pg: postgres postgres.public.flights\n"
        "└─ lake: deltalake flights\n"
        "```"
    )
    spec = next(spec for spec in defs.resolve_all_asset_specs() if spec.key == PG)
    assert drawing in str(spec.description)
    assert drawing in str(defs.resolve_job_def("flights_stream").description)


def test_sources_say_their_lag_and_their_newest_data(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real servers: the topic has rows that the pipeline has not read."""
    for name, value in world.env().items():
        monkeypatch.setenv(name, value)
    assert run(load_pipeline(world.file), world.settings(), until=Until.CAUGHT_UP, spark=spark).caught_up
    pipeline = read_pipeline(world.file)
    table, topic = (asset.key for asset in pipeline.sources["src"])
    before = observe_sources(pipeline)
    assert before[topic]["lag_offsets"] == 0
    world.produce(list(world.changes(random.Random(3), 50)))
    result = observe_sources(pipeline)
    assert result[topic]["lag_offsets"] > 0
    for key in (table, topic):
        assert result[key]["age_seconds"] >= 0

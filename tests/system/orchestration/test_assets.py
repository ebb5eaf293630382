"""The step that writes: ranges, subsets, checks, failures. The run is fake, Dagster is real."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import dagster as dg
import pytest
from dagster import AssetCheckKey
from helpers.dagster_runs import DAILY, FLIGHTS, LAKE, PARTITIONS, PG

from headrace.connectors.ledger.factory import open_ledger
from headrace.jobs.run.events import CheckResult, PartitionCompleted, Until
from headrace.orchestration.build import build_definitions
from headrace.orchestration.options import PipelineOptions
from headrace.pipeline.errors import BlockedError, FileLocation, LeaseHeldError
from headrace.pipeline.protocol.epochs import EpochPlan, Phase, WriteCounts

MONTHS = [f"2013-{month:02d}-01" for month in range(1, 12)]
DAILY_PG = dg.AssetKey(["postgres", "public", "sales"])
CHECKS = ("exactly_once_epochs", "row_count_matches", "handoff_has_no_gap", "content_matches")


@dg.asset(
    key="report",
    deps=[PG],
    partitions_def=dg.MonthlyPartitionsDefinition("2013-01-01", end_date="2014-01-01"),
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def report() -> None:
    """Stands behind the pipeline in the same code location."""


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as result:
        yield result


@pytest.fixture
def materialize(written, stand_in, instance):
    """Runs a selection over a range of partitions, as the daemon's single-run backfill and the command line do."""

    def go(first=None, last=None, *, selection=None, text=FLIGHTS + PARTITIONS, tags=None):
        defs = dg.Definitions.merge(
            build_definitions([written(text)]),
            dg.Definitions(assets=[report] if "partitions" in text else []),
        )
        job = defs.resolve_implicit_global_asset_job_def()
        ranged = (
            {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
            if first
            else {}
        )
        return job.execute_in_process(
            instance=instance,
            tags=ranged | (tags or {}),
            raise_on_error=False,
            asset_selection=selection or [PG, LAKE],
        )

    return go


def partitions(instance, key):
    return sorted(instance.get_materialized_partitions(key))


def latest(instance, key):
    return instance.get_latest_materialization_event(key).asset_materialization.metadata


def statuses(instance, check, key=PG):
    history = instance.event_log_storage.get_asset_check_execution_history(
        AssetCheckKey(key, check), limit=50
    )
    return [(record.partition, record.status.value) for record in history]


def reason(result, step="flights_write"):
    return result.failure_data_for_node(step).error.message


class TestWindows:
    def test_a_range_is_one_run_of_the_lane(self, materialize, stand_in, instance):
        assert materialize("2013-01-01", "2013-11-01").success
        (requests,) = stand_in.calls
        assert requests["partitions"] == MONTHS
        assert requests["until"] is Until.HISTORY
        assert requests["launched_by"] == "dagster"
        assert partitions(instance, PG) == MONTHS == partitions(instance, LAKE)

    @pytest.mark.parametrize(
        ("keys", "first", "last", "asked_for"),
        [
            ("values: [us, eu, 'x y']", "us", "eu", ["us", "eu"]),
            ("values: [us, eu, 'x y']", "x y", None, ["x y"]),
            ("every: 50, end: 150", "50", "100", ["50", "100"]),
        ],
    )
    def test_values_and_numbers_are_partitions(self, materialize, stand_in, keys, first, last, asked_for):
        text = DAILY.partition("partitions")[0] + f"partitions: {{column: v, {keys}}}\n"
        assert materialize(first, last, text=text, selection=[DAILY_PG]).success
        assert stand_in.calls[0]["partitions"] == asked_for

    def test_the_lane_knows_the_run_by_its_id(self, materialize, stand_in):
        result = materialize("2013-03-01")
        assert [requests["run_id"] for requests in stand_in.calls] == [result.run_id]

    def test_run_tags_are_on_a_run_without_a_job(self, materialize, stand_in, instance, monkeypatch):  # noqa: ARG002
        """Tags that the launch set stay."""
        options = PipelineOptions(run_tags={"priority": "low", "team": "air"})
        monkeypatch.setitem(
            materialize.__globals__, "build_definitions", partial(build_definitions, options=options)
        )
        result = materialize("2013-03-01", tags={"team": "sea"})
        tags = instance.get_run_by_id(result.run_id).tags
        assert (tags["priority"], tags["team"], tags["headrace/pipeline"]) == ("low", "sea", "flights")

    @pytest.mark.parametrize(
        ("tags", "again"),
        [({}, True), ({"headrace/refresh": "false"}, False), ({"headrace/refresh": "true"}, True)],
    )
    def test_a_run_refreshes_unless_its_tag_says_no(self, materialize, stand_in, tags, again):
        text = DAILY.partition("schedule")[0].replace("end: open", "end: 2024-03-04")
        assert materialize("2024-03-01", text=text, tags=tags, selection=[DAILY_PG]).success
        (requests,) = stand_in.calls
        assert requests["refresh"] is again

    def test_what_cannot_be_refreshed_is_not_read_again(self, materialize, stand_in):
        text = FLIGHTS.replace("table: flights}", "table: flights, on_conflict: nothing}")
        assert materialize("2013-01-01", text=text + PARTITIONS).success
        assert stand_in.calls[0]["refresh"] is False

    def test_a_hybrid_source_is_refreshed_by_partition(self, materialize, stand_in):
        """Without partitions a run continues the stream."""
        assert materialize("2013-01-01").success
        assert materialize(text=FLIGHTS).success
        assert [call["refresh"] for call in stand_in.calls] == [True, False]

    def test_a_run_that_writes_nothing_is_an_observation(self, materialize, stand_in, instance):
        stand_in.epochs = 0
        assert materialize("2013-01-01").success, "Dagster has no event of this partition yet"
        assert partitions(instance, PG) == ["2013-01-01"] == partitions(instance, LAKE)
        known = latest(instance, PG)
        stand_in.rows = 0
        assert materialize("2013-01-01").success
        assert latest(instance, PG) == known
        (record,) = instance.fetch_observations(PG, limit=5).records
        assert record.partition_key == "2013-01-01"
        assert record.asset_observation.metadata["rows_written"].value == 0
        assert materialize("2013-01-01", tags={"dagster/backfill": "b"}).success
        assert latest(instance, PG) != known, "a backfill would count the partition as failed"

    def test_rows_of_each_partition_and_of_the_table(self, materialize, stand_in, instance):
        materialize("2013-01-01", "2013-02-01")
        metadata = latest(instance, PG)
        assert metadata["dagster/partition_row_count"].value == stand_in.rows
        assert metadata["dagster/row_count"].value == 77
        deps = metadata["dagster/column_lineage"].value.deps_by_column["late"]
        assert {(dep.asset_key.to_user_string(), dep.column_name) for dep in deps} == {
            ("clickhouse/flights/history", "delay"),
            ("kafka/flights", "delay"),
        }

    def test_rows_of_a_partition_are_those_of_all_runs_that_had_a_part_in_it(
        self, pipeline, materialize, instance
    ):
        ledger = open_ledger(pipeline.settings())
        lease = ledger.acquire("flights", "main", {}, ttl=60)
        ledger.begin(lease, lambda: {"n": 0})
        for number in (1, 2):
            plan = EpochPlan(
                number,
                Phase.HISTORY,
                {"n": number - 1},
                {"n": number},
                "h",
                datetime.now(UTC),
                window="2013-02-01",
            )
            ledger.plan(lease, plan, {})
            ledger.commit(
                lease,
                number,
                {
                    "flights_pg": WriteCounts(100, inserted=90, deleted=1),
                    "lake": WriteCounts(100, inserted=None),
                },
            )
        ledger.release(lease)
        ledger.close()
        materialize("2013-02-01")
        assert latest(instance, PG)["dagster/partition_row_count"].value == 178
        assert latest(instance, LAKE)["dagster/partition_row_count"].value == 200

    def test_windows_of_the_stream_are_refused_with_the_reason(self, materialize, stand_in, instance):
        result = materialize("2013-12-01", "2013-12-01")
        assert not result.success
        message = reason(result)
        assert "2013-12-01 is after the end of history" in message
        assert f"flights.yaml:{len(FLIGHTS.splitlines()) + 1}" in message
        assert "flights_stream" in message
        assert stand_in.calls == []
        assert partitions(instance, PG) == []

    def test_windows_of_history_are_loaded_before_those_of_the_stream_fail(self, materialize, stand_in):
        """The button for all partitions also selects those of the stream."""
        message = reason(materialize("2013-10-01", "2013-12-01"))
        assert "2013-12-01 is after the end of history" in message
        assert "History has loaded 2013-10-01 to 2013-11-01." in message
        assert [call["partitions"] for call in stand_in.calls] == [["2013-10-01", "2013-11-01"]]

    def test_a_partitioned_pipeline_is_not_run_as_a_whole(self, materialize, stand_in):
        assert "choose some (2013-01-01 to 2013-11-01)" in reason(materialize())
        assert stand_in.calls == []

    @pytest.mark.parametrize("failing", ["the run", "the checks", "the selection"])
    def test_queued_or_failed_runs_leave_complete_partitions_green(
        self, materialize, stand_in, instance, monkeypatch, failing
    ):
        """The ledger has two complete partitions, which an earlier run has reported."""
        assert materialize("2013-01-01", "2013-02-01").success
        monkeypatch.setattr(
            "headrace.orchestration.assets.completed_partitions", lambda *_: ["2013-01-01", "2013-02-01"]
        )
        error = BlockedError(
            "epoch 4 failed 3 times",
            node="flights_pg",
            place=FileLocation("flights.yaml", 9),
            hint="Correct the target.",
        )

        def fail(**_):
            raise error

        last = "2013-03-01"
        if failing == "the run":
            stand_in.during = fail
        elif failing == "the checks":
            monkeypatch.setattr("headrace.jobs.checks.audit.audit", lambda *_, **__: fail())
        else:
            last = "2013-12-01"
        result = materialize("2013-01-01", last)
        assert not result.success
        for key in (PG, LAKE):
            status = instance.get_status_by_partition(
                key, MONTHS, dg.MonthlyPartitionsDefinition("2013-01-01", end_date="2014-01-01")
            )
            assert [status[month].name for month in MONTHS[:3]] == ["MATERIALIZED", "MATERIALIZED", "FAILED"]
        data = result.failure_data_for_node("flights_write").user_failure_data
        if failing != "the selection":
            assert "epoch 4 failed 3 times" in data.description
            assert data.metadata["what to do"].value == "Correct the target."


class TestWithoutPartitions:
    def test_history_then_the_stream_until_caught_up(self, materialize, stand_in, instance):
        assert materialize(text=FLIGHTS).success
        assert [(requests["partitions"], requests["until"]) for requests in stand_in.calls] == [
            (None, Until.CAUGHT_UP)
        ]
        assert latest(instance, PG)["caught up"].value is True

    def test_job_mode_stops_after_history(self, materialize, stand_in):
        assert materialize(text=FLIGHTS + "job_mode: true\n").success
        assert [requests["until"] for requests in stand_in.calls] == [Until.HISTORY]


class TestSubsets:
    def test_one_sink_selected_writes_and_reports_all(self, materialize, stand_in, instance):
        assert materialize("2013-01-01", "2013-03-01", selection=[PG]).success
        assert len(stand_in.calls) == 1
        assert stand_in.audits == [["flights_pg", "lake"]]
        assert partitions(instance, LAKE) == partitions(instance, PG) == MONTHS[:3]
        for name in CHECKS:
            assert statuses(instance, name, LAKE) == [(None, "SUCCEEDED")]

    def test_checks_alone_ask_the_systems_and_write_nothing(self, written, stand_in, instance):
        job = build_definitions([written(FLIGHTS + PARTITIONS)]).resolve_implicit_global_asset_job_def()
        keys = [AssetCheckKey(PG, name) for name in CHECKS]
        result = job.get_subset(asset_selection=set(), asset_check_selection=set(keys)).execute_in_process(
            instance=instance
        )
        assert result.success
        assert stand_in.calls == []
        assert stand_in.audits == [["flights_pg"]]
        assert [check.passed for check in result.get_asset_check_evaluations()] == [True] * 4

    def test_rows_are_compared_only_where_that_check_is_selected(self, written, stand_in, instance):
        job = build_definitions([written(FLIGHTS + PARTITIONS)]).resolve_implicit_global_asset_job_def()
        for name in ("row_count_matches", "content_matches"):
            keys = {AssetCheckKey(PG, name)}
            assert (
                job.get_subset(asset_selection=set(), asset_check_selection=keys)
                .execute_in_process(instance=instance)
                .success
            )
        counted, compared = stand_in.contents
        assert counted is None
        assert (compared.full, compared.rows, compared.raises) == (False, None, False)
        assert len(stand_in.sessions) == 1, "counting rows in Postgres needs no Spark"


class TestChecks:
    def test_every_planned_evaluation_gets_its_answer(self, materialize, instance):
        materialize("2013-01-01", "2013-11-01")
        for name in CHECKS:
            assert sorted(statuses(instance, name), key=str) == sorted(
                [(None, "SUCCEEDED"), *((month, "SUCCEEDED") for month in MONTHS)], key=str
            )

    @pytest.mark.parametrize("name", CHECKS)
    def test_a_failing_one_stops_what_is_behind_it_in_the_same_run(
        self, materialize, stand_in, instance, name
    ):
        stand_in.failing = {name}
        result = materialize("2013-01-01", "2013-02-01", selection=[PG, LAKE, dg.AssetKey("report")])
        assert not result.success
        assert instance.get_latest_materialization_event(dg.AssetKey("report")) is None
        assert {status for _, status in statuses(instance, name)} == {"FAILED"}

    def test_all_passing_lets_it_run(self, materialize, instance):
        assert materialize("2013-01-01", "2013-02-01", selection=[PG, LAKE, dg.AssetKey("report")]).success
        assert partitions(instance, dg.AssetKey("report")) == MONTHS[:2]

    def test_rows_that_differ_stop_what_comes_after_and_name_the_keys(self, materialize, stand_in, instance):
        stand_in.failing = {"content_matches"}
        result = materialize("2013-01-01", selection=[PG, LAKE, dg.AssetKey("report")])
        assert not result.success
        assert partitions(instance, dg.AssetKey("report")) == []
        wrong = [
            check for check in result.get_asset_check_evaluations() if check.check_name == "content_matches"
        ]
        assert {(check.passed, check.severity) for check in wrong} == {(False, dg.AssetCheckSeverity.ERROR)}
        assert wrong[0].metadata["keys"].value == ["id=5: missing"]

    @pytest.mark.parametrize("name", ["handoff_has_no_gap", "content_matches"])
    def test_one_that_does_not_apply_passes_with_the_reason(self, materialize, stand_in, name):
        stand_in.not_applicable = {name}
        result = materialize("2013-01-01", selection=[PG, LAKE, dg.AssetKey("report")])
        assert result.success
        checks = {
            check.check_name: check
            for check in result.get_asset_check_evaluations()
            if check.asset_key == PG and check.partition is None
        }
        assert checks[name].passed
        assert checks[name].description == "said so"
        assert checks[name].metadata["applies"].value is False
        assert checks["row_count_matches"].metadata["rows"].value == 77


class TestDeclaredChecks:
    TEXT = (FLIGHTS + PARTITIONS).replace(
        "path: lake/flights}",
        "path: lake/flights, checks: {known: {not_null: id}, late: {unique: delay, severity: warning}}}",
    )

    @pytest.fixture
    def check_results(self, stand_in, monkeypatch):
        """Results of the declared checks, which the fake audit returns as well."""
        results = {
            "known": CheckResult("known", "lake", True, "no NULL in `id`"),
            "late": CheckResult(
                "late", "lake", False, "2 of 9 rows", {"samples": [{"id": 1, "delay": None}]}, "warning"
            ),
        }

        def audit(*args, **options):
            return [*stand_in.audit(*args, **options), *results.values()]

        monkeypatch.setattr("headrace.jobs.checks.audit.audit", audit)
        return results

    def test_declared_checks_are_asset_checks(self, written):
        specs = {
            spec.name: spec
            for definition in build_definitions([written(self.TEXT)]).assets or ()
            if isinstance(definition, dg.AssetsDefinition)
            for spec in definition.check_specs
            if spec.asset_key == LAKE and spec.name not in CHECKS
        }
        assert {name: spec.blocking for name, spec in specs.items()} == {"known": True, "late": False}
        assert specs["known"].description == "`not_null`, declared in flights.yaml:13."

    def test_declared_checks_warn_or_stop(self, materialize, stand_in, instance, check_results):
        selection = [PG, LAKE, dg.AssetKey("report")]
        result = materialize("2013-01-01", selection=selection, text=self.TEXT)
        assert result.success
        assert len(stand_in.audits) == 1, "evaluated once per run"
        checks = {
            check.check_name: check for check in result.get_asset_check_evaluations() if not check.partition
        }
        assert (checks["known"].passed, checks["late"].passed) == (True, False)
        assert checks["late"].severity is dg.AssetCheckSeverity.WARN
        assert checks["late"].metadata["samples"].records == [dg.TableRecord({"id": "1", "delay": "NULL"})]
        check_results["known"] = CheckResult("known", "lake", False, "1 of 9 rows have NULL in `id`")
        assert not materialize("2013-02-01", selection=selection, text=self.TEXT).success
        assert partitions(instance, dg.AssetKey("report")) == ["2013-01-01"]

    @pytest.mark.usefixtures("check_results")
    def test_declared_checks_of_sinks_that_were_not_selected(self, materialize, instance):
        assert materialize("2013-01-01", selection=[PG], text=self.TEXT).success
        assert statuses(instance, "known", LAKE) == [(None, "SUCCEEDED")]
        assert statuses(instance, "late", LAKE) == [(None, "FAILED")]


def test_only_errors_that_may_pass_are_tried_again(materialize, stand_in, monkeypatch):
    monkeypatch.setattr("headrace.orchestration.execution.RETRY_SECONDS", 0.0)
    failures = iter([LeaseHeldError("held by another run"), None])

    def fail_once(**request):
        if error := next(failures):
            raise error

    stand_in.during = fail_once
    assert materialize(text=FLIGHTS).success
    assert len(stand_in.calls) == 2


def test_window_events_survive_the_thread_in_order(materialize, stand_in, instance):
    stand_in.during = lambda **request: [
        request["listener"](PartitionCompleted("2013-01-01", {"flights_pg": count, "lake": count}))
        for count in range(50)
    ]
    materialize("2013-01-01")
    assert latest(instance, PG)["dagster/partition_row_count"].value == 49

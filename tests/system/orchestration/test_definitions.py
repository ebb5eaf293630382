"""The definitions of a code location before any run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from helpers.checkout import ROOT
from helpers.dagster_runs import DAILY, FLIGHTS, LAKE, PARTITIONS, PG

from headrace.orchestration.build import build_definitions, build_pipeline_definitions
from headrace.orchestration.component import PipelineComponent
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.discovery import find_pipeline_files


def summarize(defs: dg.Definitions) -> dict:
    """The part of a code location that a reviewer can read."""
    graph = defs.resolve_asset_graph()
    repository = defs.get_repository_def()
    return {
        "assets": {
            node.key.to_user_string(): {
                "deps": sorted(key.to_user_string() for key in node.parent_keys),
                "checks": sorted(key.name for key in node.check_keys),
                "kinds": sorted(node.kinds),
                "group": node.group_name,
                "runs": node.is_materializable,
                "partitions": len(node.partitions_def.get_partition_keys()) if node.partitions_def else 0,
            }
            for node in graph.asset_nodes
        },
        "jobs": sorted(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")),
        "schedules": {schedule.name: schedule.cron_schedule for schedule in repository.schedule_defs},
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
    }


EXPECTED = {
    "assets": {
        "clickhouse/flights/history": {
            "deps": [],
            "checks": [],
            "kinds": ["clickhouse", "source"],
            "group": "flights",
            "runs": False,
            "partitions": 0,
        },
        "kafka/flights": {
            "deps": [],
            "checks": [],
            "kinds": ["kafka", "source"],
            "group": "flights",
            "runs": False,
            "partitions": 0,
        },
        "postgres/public/flights": {
            "deps": ["clickhouse/flights/history", "kafka/flights"],
            "checks": ["content_matches", "exactly_once_epochs", "handoff_has_no_gap", "row_count_matches"],
            "kinds": ["postgres", "sink", "spark"],
            "group": "flights",
            "runs": True,
            "partitions": 12,
        },
    },
    "jobs": ["flights_history", "flights_operate", "flights_stream"],
    "schedules": {"flights_schedule": "15 3 * * *"},
    "sensors": ["flights_supervisor"],
}


ONWARD = """\
name: onward
sources:
  table: {type: kafka, topic: flights, primary_key: id, schema: {id: int64}}
sinks:
  copy: {type: postgres, from: table, table: copies}
"""


def test_snapshot(written):
    text = (
        FLIGHTS.replace("  lake: {type: delta, from: flights, path: lake/flights}\n", "")
        + PARTITIONS
        + "schedule: {cron: '15 3 * * *'}\n"
    )
    assert summarize(build_definitions([written(text)])) == EXPECTED


def test_the_example_that_ships():
    result = summarize(build_definitions([ROOT / "examples" / "flights.yaml"]))
    assert set(result["assets"]) == {
        "clickhouse/flights/history",
        "kafka/flights",
        "postgres/public/flights",
        "delta/flights",
    }
    assert result["jobs"] == ["flights_history", "flights_operate", "flights_stream"]


def test_sink_metadata_has_columns_table_and_the_line_in_the_file(written):
    path = written()
    lines = path.read_text().splitlines()
    metadata = build_definitions([path]).resolve_asset_graph().get(PG).metadata
    assert [(column.name, column.type) for column in metadata["dagster/column_schema"].columns] == [
        ("id", "BIGINT"),
        ("day", "TIMESTAMP"),
        ("delay", "INT"),
        ("late", "BOOLEAN"),
    ]
    assert metadata["dagster/table_name"] == "postgres.public.flights"
    reference = metadata["dagster/code_references"].code_references[0]
    assert reference.file_path == str(path)
    assert lines[reference.line_number - 1].startswith("  flights_pg:")


def test_a_sink_without_a_record_has_no_checks_and_its_own_key(written):
    defs = build_definitions([written(FLIGHTS + "  seen: {type: print, from: clean}\n")])
    node = defs.resolve_asset_graph().get(dg.AssetKey(["print", "flights", "seen"]))
    assert not node.check_keys


@pytest.mark.parametrize("option", ["on_conflict: nothing", "share: true"])
def test_a_sink_whose_rows_cannot_be_compared_lacks_that_check(written, option):
    text = FLIGHTS.replace("table: flights}", f"table: flights, {option}}}")
    graph = build_definitions([written(text)]).resolve_asset_graph()
    names = {key: {check.name for check in graph.get(key).check_keys} for key in (PG, LAKE)}
    assert names[LAKE] - names[PG] == {"content_matches"}


def test_sources_that_another_pipeline_writes_are_joined_not_declared_twice(written):
    graph = build_definitions([written(), written(ONWARD, "onward")]).resolve_asset_graph()
    assert graph.get(dg.AssetKey(["kafka", "flights"])).group_name == "sources"
    assert graph.get(dg.AssetKey(["kafka", "flights"])).child_keys >= {
        PG,
        dg.AssetKey(["postgres", "public", "copies"]),
    }


def test_a_dynamic_table_in_postgres_is_upstream_of_who_asks_it(written):
    text = FLIGHTS.replace(
        "transforms:\n",
        "transforms:\n  late: {type: dynamic_table, backend_type: Postgres, backend_entity_name:"
        " lists.carriers}\n"
        "  own: {type: dynamic_table, backend_type: InMemory, backend_entity_name: own, sql: SELECT carrier"
        " FROM flights}\n"
        "  known: {type: sql, sql: \"SELECT * FROM clean WHERE dynamic_table_check('late', carrier)"
        " OR dynamic_table_check('own', carrier)\"}\n",
    )
    text += "  known_pg: {type: postgres, from: known, table: known}\n"
    graph = build_definitions([written(text)]).resolve_asset_graph()
    node = graph.get(dg.AssetKey(["postgres", "lists", "carriers"]))
    assert (node.is_materializable, node.group_name) == (False, "flights")
    assert node.child_keys == {dg.AssetKey(["postgres", "public", "known"])}
    assert not [key for key in graph.get_all_asset_keys() if "own" in key.path]


class TestBrokenFiles:
    def test_others_still_load_and_the_mistake_is_readable(self, written):
        good, bad = (
            written(),
            written("name: bad\nsources: {}\nsinks:\n  out: {type: postgress, from: x}\n", "bad"),
        )
        result = summarize(build_definitions([bad, good], strict=False))
        assert {"broken/bad", "postgres/public/flights"} <= set(result["assets"])
        defs = build_definitions([bad, good], strict=False)
        spec = next(
            spec for spec in defs.resolve_all_asset_specs() if spec.key == dg.AssetKey(["broken", "bad"])
        )
        assert f"{bad}:4:" in str(spec.description)
        assert "did you mean `postgres`?" in str(spec.description)

    def test_the_broken_asset_fails_with_the_mistake(self, written):
        bad = written("name: bad\nsinks: [\n", "bad")
        defs = build_definitions([bad], strict=False)
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(raise_on_error=False)
        assert not result.success
        assert str(bad) in str(result.failure_data_for_node("broken__bad"))

    def test_broken_files_of_one_name_are_both_shown(self, written, tmp_path):
        good, paths = written(), []
        for folder in ("east", "west"):
            (tmp_path / folder).mkdir()
            paths.append(tmp_path / folder / "bad-file.yaml")
            paths[-1].write_text("name: bad\nsinks: [\n")
        result = build_definitions([*paths, good], strict=False)
        assert {"broken/east/bad-file", "broken/west/bad-file", "postgres/public/flights"} <= set(
            summarize(result)["assets"]
        )
        for path in paths:
            key = dg.AssetKey(["broken", path.parent.name, "bad-file"])
            spec = next(spec for spec in result.resolve_all_asset_specs() if spec.key == key)
            assert str(spec.metadata["mistakes"].value).startswith(f"{path}:")

    def test_broken_by_any_error_is_shown_with_its_place(self, written, monkeypatch):
        """A plugin, a driver or Dagster itself can fail in ways that Headrace does not know."""
        good, bad = written(), written(ONWARD, "onward")

        def fail(pipeline, *_):
            if pipeline.name == "onward":
                msg = "two ops have one name"
                raise dg.DagsterInvalidDefinitionError(msg)
            return real(pipeline)

        real = build_pipeline_definitions
        monkeypatch.setattr("headrace.orchestration.build.build_pipeline_definitions", fail)
        specs = {
            spec.key.to_user_string(): spec
            for spec in build_definitions([bad, good], strict=False).resolve_all_asset_specs()
        }
        assert f"{bad}:1: DagsterInvalidDefinitionError: two ops" in str(specs["broken/onward"].description)
        assert "postgres/public/flights" in specs
        with pytest.raises(UserError, match="two ops have one name"):
            build_definitions([bad])

    def test_no_broken_file_among_long_and_foreign_names(self, written):
        files = [
            written(ONWARD.replace("onward", name).replace("copies", f"copies{number}"), f"n{number}")
            for number, name in enumerate(("a" * 70, "a" * 71, "a-b"))
        ]
        jobs = summarize(build_definitions(files, strict=False))["jobs"]
        assert len(jobs) == 9
        assert not [
            asset
            for asset in summarize(build_definitions(files, strict=False))["assets"]
            if "broken" in asset
        ]

    def test_a_file_that_cannot_be_read_is_broken(self, written):
        good, bad = written(), written("", "bytes")
        bad.write_bytes(b"name: \xff\xfe\n")
        assert "broken/bytes" in summarize(build_definitions([bad, good], strict=False))["assets"]

    def test_strict_raises(self, written):
        with pytest.raises(UserError, match="not YAML"):
            build_definitions([written("name: bad\nsinks: [\n", "bad")])

    def test_two_pipelines_with_one_target(self, written):
        first, second = written(), written(FLIGHTS.replace("name: flights", "name: again"), "zweite")
        specs = {
            spec.key.to_user_string(): spec
            for spec in build_definitions([first, second], strict=False).resolve_all_asset_specs()
        }
        assert "which pipeline `flights`" in str(specs["broken/zweite"].description)

    def test_two_pipelines_with_one_name(self, written):
        first, second = written(), written(FLIGHTS.replace("table: flights}", "table: others}"), "zweite")
        specs = {
            spec.key.to_user_string(): spec
            for spec in build_definitions([first, second], strict=False).resolve_all_asset_specs()
        }
        assert "is taken by `flights`" in str(specs["broken/zweite"].description)


class TestSchedules:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{cron: '0 0 30 2 *'}", "can ever fire"),
            ("{cron: '0 0 31 4,6 *'}", "never fires"),
            ("{cron: '61 * * * *'}", "can ever fire"),
            ("{cron: 'often'}", "can ever fire"),
            ("{cron: '0 3 * * *', timezone: Mars/Base}", "time zone `Mars/Base` is not known"),
        ],
    )
    def test_one_that_can_never_fire_is_refused_with_its_place(self, written, line, message):
        path = written(FLIGHTS + f"schedule: {line}\n")
        with pytest.raises(UserError, match=message) as caught:
            build_definitions([path])
        assert str(caught.value).startswith(f"{path}:{len(FLIGHTS.splitlines()) + 1}:")

    @pytest.mark.parametrize("cron", ["*/5 * * * *", "0 0 29 2 *", "@daily"])
    def test_one_that_fires_is_taken(self, written, cron):
        defs = build_definitions(
            [written(FLIGHTS + f"schedule: {{cron: '{cron}', timezone: Europe/Vienna}}\n")]
        )
        assert defs.resolve_schedule_def("flights_schedule").cron_schedule == cron

    def test_partitioned_skips_until_the_history_is_complete(self, written):
        defs = build_definitions([written(FLIGHTS + PARTITIONS + "schedule: {cron: '15 3 * * *'}\n")])
        schedule = defs.resolve_schedule_def("flights_schedule")
        assert schedule.job_name == "flights_stream"
        with dg.instance_for_test() as instance, dg.build_schedule_context(instance=instance) as context:
            assert "history is not complete" in str(schedule.evaluate_tick(context).skip_message)

    def test_partitions_with_an_end_and_no_stream_leave_a_schedule_nothing_to_do(self, written):
        with pytest.raises(UserError, match="`schedule` has nothing to do") as caught:
            build_definitions([written(DAILY.replace("end: open", "end: 2024-04-01"))])
        assert "`end: open`" in (caught.value.hint or "")


class TestComponent:
    def test_in_a_project(self, written):
        path = written()
        with create_defs_folder_sandbox() as sandbox:
            folder = sandbox.scaffold_component(
                component_cls=PipelineComponent,
                defs_yaml_contents={
                    "type": "headrace.orchestration.PipelineComponent",
                    "attributes": {"path": str(path.parent), "source_assets": True},
                },
            )
            with sandbox.load_component_and_build_defs(defs_path=folder) as (_, defs):
                assert summarize(defs)["assets"]["kafka/flights"]["kinds"] == ["kafka", "source"]

    @pytest.mark.parametrize("state", [None, "running", "stopped"])
    def test_a_project_starts_no_stream_unasked(self, written, state):
        path = written(FLIGHTS + "schedule: {cron: '15 3 * * *'}\n")
        options = {} if state is None else {"supervisor": state, "schedules": state}
        with create_defs_folder_sandbox() as sandbox:
            folder = sandbox.scaffold_component(
                component_cls=PipelineComponent,
                defs_yaml_contents={
                    "type": "headrace.orchestration.PipelineComponent",
                    "attributes": {"path": str(path), **options},
                },
            )
            with sandbox.load_component_and_build_defs(defs_path=folder) as (_, defs):
                sensor = defs.resolve_sensor_def("flights_supervisor").default_status.value
                schedule = defs.resolve_schedule_def("flights_schedule").default_status.value
        assert sensor == schedule == ("RUNNING" if state == "running" else "STOPPED")

    def test_several_in_one_project_may_read_the_same_topic(self, written):
        written(ONWARD, "onward")
        folder = written().parent
        with create_defs_folder_sandbox() as sandbox:
            for name in ("flights", "onward"):
                sandbox.scaffold_component(
                    component_cls=PipelineComponent,
                    defs_path=name,
                    defs_yaml_contents={
                        "type": "headrace.orchestration.PipelineComponent",
                        "attributes": {"path": str(folder / f"{name}.yaml")},
                    },
                )
            with sandbox.build_all_defs() as defs:
                result = summarize(defs)
        assert {"flights_stream", "onward_stream"} <= set(result["jobs"])
        assert {"postgres/public/flights", "postgres/public/copies"} <= set(result["assets"])
        assert result["assets"]["postgres/public/copies"]["deps"] == ["kafka/flights"]

    def test_a_folder_stands_for_its_pipelines_without_other_yaml(self, written):
        path = written()
        (path.parent / "defs.yaml").write_text("type: x\n")
        (path.parent / "config.yaml").write_text("{}\n")
        assert find_pipeline_files([path.parent]) == [path]

    def test_dg_finds_it_by_the_package_s_entry_point(self):
        (entry,) = [
            one for one in entry_points(group="dagster_dg_cli.registry_modules") if one.name == "headrace"
        ]
        assert getattr(entry.load(), "PipelineComponent") is PipelineComponent  # noqa: B009  as dg looks it up
        assert "PipelineComponent" in dir(entry.load())

    def test_a_path_that_is_not_there(self, tmp_path):
        with pytest.raises(UserError, match="neither a pipeline file nor a folder"):
            find_pipeline_files([tmp_path / "none"])


@pytest.mark.parametrize("folder", ["with_pipelines", "empty"])
def test_loads_from_any_folder_without_spark_or_drivers(tmp_path, folder):
    """In a fresh process: from a folder with pipelines/ those, from any other one the examples of the checkout."""
    home = tmp_path / folder
    home.mkdir()
    if folder == "with_pipelines":
        (home / "pipelines").mkdir()
        (home / "pipelines" / "mine.yaml").write_text(FLIGHTS.replace("name: flights", "name: mine"))
    code = (
        "import sys, headrace.orchestration.definitions as d\n"
        "print(sorted(s.name for s in d.defs.get_repository_def().get_all_jobs() if"
        " s.name.endswith('_stream')))\n"
        "print([m for m in ('pyspark', 'adbc_driver_manager', 'confluent_kafka',"
        " 'clickhouse_connect', 'delta') if m in sys.modules])\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE")}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, text=True, check=True
    )
    names = "['mine_stream']" if folder == "with_pipelines" else "['flights_stream']"
    assert result.stdout.splitlines() == [names, "[]"], result.stderr
    assert list(home.rglob("*.db")) == []

"""Owners, tags, group, description and freshness of assets; options of the component; its scaffold."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from helpers.dagster_runs import FLIGHTS, LAKE, PG

from headrace.orchestration import PipelineComponent
from headrace.orchestration.build import build_definitions
from headrace.pipeline.errors import PipelineFileError, UserError

KEYS = """\
description: Flights of all airlines.
owners: [team:air, ops@example.com]
tags: {tier: gold}
group: aviation/daily
freshness: {max_age: 2h, warn_after: 1h}
"""
INLINE = """\
type: headrace.orchestration.PipelineComponent
attributes:
  pipelines:
    - name: first
      sources: {orders: {type: clickhouse, table_name: shop.orders, primary_key: id}}
      sinks:
        orders_pg: {type: postgres, from: orders, table: orders}
    - name: second
      sources: {users: {type: clickhouse, table_name: shop.users, primary_key: id}}
      sinks:
        users_pg: {type: postgres, from: users, table: users}
"""


def spec_of(defs: dg.Definitions, key: dg.AssetKey) -> dg.AssetSpec:
    return next(spec for spec in defs.resolve_all_asset_specs() if spec.key == key)


def load(attributes, check):
    """Pass the definitions of one component to `check`."""
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(
            component_cls=PipelineComponent,
            defs_yaml_contents={
                "type": "headrace.orchestration.PipelineComponent",
                "attributes": attributes,
            },
        )
        with sandbox.load_component_and_build_defs(defs_path=folder) as (_, defs):
            check(defs)


def test_keys_of_the_file_are_on_its_assets(written):
    defs = build_definitions([written(FLIGHTS + KEYS)])
    for key in (PG, LAKE):
        spec = spec_of(defs, key)
        assert spec.description is not None
        assert spec.description.startswith("Flights of all airlines.\n\nSink `")
        assert list(spec.owners) == ["team:air", "ops@example.com"]
        assert spec.tags["tier"] == "gold"
        assert spec.tags["headrace/pipeline"] == "flights"
        assert spec.group_name == "aviation/daily"
        assert spec.freshness_policy == dg.FreshnessPolicy.time_window(
            fail_window=timedelta(hours=2), warn_window=timedelta(hours=1)
        )


def test_freshness_by_deadlines(written):
    text = "freshness: {cron: 0 9 * * *, within: 3h, timezone: Europe/Berlin}\n"
    assert spec_of(build_definitions([written(FLIGHTS + text)]), PG).freshness_policy == (
        dg.FreshnessPolicy.cron(
            deadline_cron="0 9 * * *", lower_bound_delta=timedelta(hours=3), timezone="Europe/Berlin"
        )
    )


@pytest.mark.parametrize(
    ("freshness", "message"),
    [
        ("{cron: 0 99 * * *, within: 3h}", "`freshness.cron`: `0 99 * * *` is no cron line"),
        ("{cron: 0 9 * * *, within: 2d}", "`freshness.within`: 2d is longer than the time between deadlines"),
        (
            "{cron: 0 9 * * *, within: 3h, timezone: Mars/X}",
            "`freshness.timezone`: `Mars/X` is not a name of the tz database",
        ),
    ],
)
def test_a_wrong_deadline_names_its_line(written, freshness, message):
    with pytest.raises(UserError) as caught:
        build_definitions([written(f"{FLIGHTS}freshness: {freshness}\n")])
    assert message in str(caught.value)
    assert f"flights.yaml:{len(FLIGHTS.splitlines()) + 1}" in str(caught.value)


def test_keys_do_not_change_the_compiled_pipeline(written):
    from headrace.pipeline.file.loader import load_pipeline

    plain = load_pipeline(written(FLIGHTS)).hash
    assert load_pipeline(written(FLIGHTS + KEYS)).hash == plain


def test_component_options_are_below_those_of_the_file(written):
    written(FLIGHTS + KEYS)
    path = written(
        FLIGHTS.replace("name: flights", "name: onward")
        .replace("table: flights", "table: onward")
        .replace("lake/flights", "lake/onward"),
        "onward",
    )
    attributes = {
        "path": str(path.parent),
        "owners": ["team:platform"],
        "tags": {"tier": "silver", "domain": "air"},
        "group": "imports",
        "freshness": {"max_age": "1d"},
        "pool": "warehouse",
        "run_tags": {"priority": "low"},
    }

    def check(defs):
        own, other = spec_of(defs, PG), spec_of(defs, dg.AssetKey(["postgres", "public", "onward"]))
        assert (own.group_name, other.group_name) == ("aviation/daily", "imports")
        assert (list(own.owners), list(other.owners)) == (["team:air", "ops@example.com"], ["team:platform"])
        assert (own.tags["tier"], other.tags["tier"]) == ("gold", "silver")
        assert own.tags["domain"] == other.tags["domain"] == "air"
        assert other.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(days=1))
        for name in ("flights_stream", "flights_history"):
            assert defs.resolve_job_def(name).tags["priority"] == "low"
            assert defs.resolve_job_def(name).tags["headrace/pipeline"] == "flights"
        for op in ("flights_write", "onward_write"):
            job = defs.resolve_implicit_global_asset_job_def()
            assert job.graph.node_named(op).definition.pool == "warehouse"

    load(attributes, check)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"owners": ["bob"]}, "`owners`: `bob` is neither an e-mail address nor a team"),
        ({"freshness": {"max_age": "10s"}}, "`freshness`: `max_age` must be at least 1m"),
        ({"pool": "a b"}, "`pool`: `a b` must be a text without blanks"),
        ({"path": None}, "the component has neither `path` nor `pipelines`"),
        ({"pipelines": [{"sources": {}}]}, "`pipelines[0]` has no `name`"),
    ],
)
def test_a_wrong_option_names_the_file_of_the_component(written, attributes, message):
    with pytest.raises(Exception) as caught:  # noqa: PT011  Dagster wraps the error of a component
        load({"path": str(written())} | attributes, lambda _: None)
    error = caught.value
    while not isinstance(error, UserError):
        assert error.__cause__ is not None, error
        error = error.__cause__
    assert message in str(error)
    assert "defs.yaml" in str(error)


def test_inline_pipelines(tmp_path):
    from headrace.pipeline.file.inline import parse_inline_pipeline
    from headrace.pipeline.file.loader import PipelineFile

    def parse(text: str) -> list[PipelineFile]:
        from ruamel.yaml import YAML

        path = tmp_path / "defs.yaml"
        path.write_text(text)
        bodies = YAML(typ="safe").load(text)["attributes"]["pipelines"]
        return [
            parse_inline_pipeline(body, str(path), ("attributes", "pipelines", at))
            for at, body in enumerate(bodies)
        ]

    second = parse(INLINE)[1]
    assert (second.name, second.place("sinks", "users_pg").line) == ("second", 11)
    with pytest.raises(PipelineFileError) as caught:
        parse(INLINE.replace("from: users", "from: usrs"))
    assert "defs.yaml:11:36: node 'users_pg': reads `usrs`" in str(caught.value)


def test_component_with_inline_pipelines():
    from ruamel.yaml import YAML

    def check(defs):
        keys = {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}
        assert {"postgres/public/orders", "postgres/public/users"} <= keys

    load(YAML(typ="safe").load(INLINE)["attributes"], check)


@pytest.mark.slow  # three processes of dg; daily tests load the component
def test_scaffolded_component_is_valid(tmp_path):
    """`dg scaffold defs` writes files that `dg check` accepts."""
    package = tmp_path / "src" / "proj"
    (package / "defs").mkdir(parents=True)
    for folder in (package, package / "defs"):
        (folder / "__init__.py").touch()
    (package / "definitions.py").write_text(
        "from pathlib import Path\n"
        "from dagster import definitions, load_from_defs_folder\n\n\n"
        "@definitions\n"
        "def defs():\n"
        "    return load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "proj"\nversion = "0"\n\n[tool.dg]\ndirectory_type = "project"\n\n'
        '[tool.dg.project]\nroot_module = "proj"\n'
    )
    paths = [str(tmp_path / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "DAGSTER_HOME": str(tmp_path)}
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")

    def run_dg(*arguments: str) -> None:
        result = subprocess.run(
            [str(Path(sys.executable).with_name("dg")), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr

    run_dg("scaffold", "defs", "headrace.orchestration.PipelineComponent", "x")
    run_dg("check", "yaml")
    run_dg("check", "defs")

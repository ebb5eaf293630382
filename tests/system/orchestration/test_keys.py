"""Asset keys: they differ where resources differ, and are short where one name is one resource."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from helpers.dagster_runs import FLIGHTS, LAKE, PG

from headrace.orchestration.asset_keys import choose_keys
from headrace.orchestration.build import build_definitions
from headrace.orchestration.component import PipelineComponent
from headrace.orchestration.pipelines import PhysicalAsset

KAFKA = "  s: {type: kafka, topic: t, primary_key: id, schema: {id: int64}}\n"


def physical(name: str, *scope: str, kind: str = "delta") -> PhysicalAsset:
    description = {"kind": kind, "asset_key": [kind, *name.split("/")], "scope": scope, "table_name": name}
    return PhysicalAsset.from_description(description, (kind, "p", "s"))


def keys(*assets: PhysicalAsset, style: str = "short") -> list[str]:
    chosen = choose_keys(assets, style)  # type: ignore[arg-type]
    return ["/".join(chosen[asset.address].path) for asset in assets]


@pytest.mark.parametrize(
    ("assets", "expected"),
    [
        ([physical("orders", "lake", "bronze")], ["delta/orders"]),
        ([physical("orders", "lake", "bronze")] * 2, ["delta/orders"] * 2),
        (
            [physical("orders", "lake", "bronze"), physical("orders", "lake", "silver"), physical("x", "l")],
            ["delta/bronze/orders", "delta/silver/orders", "delta/x"],
        ),
        (
            [physical("orders", "a", "lake"), physical("orders", "b", "lake")],
            ["delta/a/lake/orders", "delta/b/lake/orders"],
        ),
        (
            [
                physical("public/t", "db1:5432", "shop", kind="postgres"),
                physical("public/t", "db2:5432", "shop", kind="postgres"),
            ],
            ["postgres/db1_5432/shop/public/t", "postgres/db2_5432/shop/public/t"],
        ),
        (
            [physical("t", "x"), physical("t", "y"), physical("x/t", "z")],
            ["delta/x/t", "delta/y/t", "delta/z/x/t"],
        ),
        ([physical("a-b", "x"), physical("a_b", "y")], ["delta/x/a-b", "delta/y/a_b"]),
    ],
)
def test_keys_have_the_parts_in_which_resources_differ(assets, expected) -> None:
    assert keys(*assets) == expected


def test_keys_in_full_do_not_depend_on_other_resources() -> None:
    one, two = physical("orders", "lake", "bronze"), physical("orders", "lake", "silver")
    assert keys(one, style="full") == ["delta/lake/bronze/orders"] == keys(one, two, style="full")[:1]


def test_keys_of_addresses_that_differ_in_forbidden_characters_differ() -> None:
    first, second = keys(physical("käse", "lake"), physical("kåse", "lake"))
    assert first != second
    for key in (first, second):
        assert dg.AssetSpec(key.split("/"))


def delta(name: str, *paths: str) -> str:
    sinks = "".join(
        f"  o{number}: {{type: delta, from: s, path: {path}}}\n" for number, path in enumerate(paths)
    )
    return f"name: {name}\nsources:\n{KAFKA}sinks:\n{sinks}"


def assets(defs: dg.Definitions) -> set[str]:
    defs.get_repository_def()
    return {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}


def test_keys_of_two_paths_with_one_end_differ(written) -> None:
    both = build_definitions([written(delta("both", "lake/bronze/orders", "lake/silver/orders"), "both")])
    assert {"delta/bronze/orders", "delta/silver/orders", "kafka/t"} == assets(both)
    first = written(delta("first", "lake/bronze/orders"), "first")
    second = written(delta("second", "lake/silver/orders"), "second")
    assert "delta/orders" in assets(build_definitions([first]))
    assert {"delta/bronze/orders", "delta/silver/orders"} < assets(build_definitions([first, second]))


def test_keys_of_paths_that_dagster_does_not_accept_are_valid(written) -> None:
    path = written(delta("odd", "lake/day=1", "lake/kä se", "lake/a-b", "lake/a_b"), "odd")
    result = assets(build_definitions([path]))
    assert len(result) == 5
    assert "delta/day_1" in result


def test_keys_join_a_sink_and_the_source_that_reads_it_on_one_server(written, monkeypatch) -> None:
    writer = FLIGHTS + "  hot: {type: kafka, from: clean, topic: hot}\n"
    reader = f"name: reader\nsources:\n{KAFKA.replace('topic: t', 'topic: hot')}sinks:\n  o: {{type: print, from: s}}\n"
    paths = [written(writer), written(reader, "reader")]
    graph = build_definitions(paths).resolve_asset_graph()
    assert graph.get(dg.AssetKey(["kafka", "hot"])).child_keys
    monkeypatch.setenv("HEADRACE__KAFKA_SINK__BROKERS", "elsewhere:9092")
    result = assets(build_definitions(paths))
    assert "kafka/elsewhere_9092/hot" in result
    assert "kafka/hot" not in result


def test_keys_are_full_if_the_component_says_so(written) -> None:
    path = written()
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(
            component_cls=PipelineComponent,
            defs_yaml_contents={
                "type": "headrace.orchestration.PipelineComponent",
                "attributes": {"path": str(path), "asset_keys": "full"},
            },
        )
        with sandbox.load_component_and_build_defs(defs_path=folder) as (_, defs):
            result = assets(defs)
    assert "postgres/127.0.0.1_5432/postgres/public/flights" in result


def test_keys_of_a_graph_s_nodes_tell_source_from_sink(written) -> None:
    graph = build_definitions([written()]).resolve_asset_graph()
    assert graph.get(PG).kinds == {"postgres", "spark", "sink"}
    assert graph.get(LAKE).kinds == {"deltalake", "spark", "sink"}
    assert graph.get(dg.AssetKey(["kafka", "flights"])).kinds == {"kafka", "source"}

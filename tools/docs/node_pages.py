"""The pages of docs/reference/pipeline-file: the top level of the file, one per type of node, an index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import option_tables
from pydantic import BaseModel

from headrace.pipeline.compat import streamling
from headrace.pipeline.model import nodes
from headrace.pipeline.model.capabilities import Delivery, SinkCapabilities, SourceCapabilities, Visibility
from headrace.pipeline.model.checks import SinkCheckConfig
from headrace.pipeline.model.connectors import sink_entries, source_entries, stream_entries
from headrace.pipeline.model.telemetry import Telemetry
from headrace.pipeline.validation.messages import PARTS

UNIONS: Mapping[str, Any] = dict(
    zip(PARTS, (nodes.AnySourceConfig, nodes.TransformConfig, nodes.AnySinkConfig), strict=True)
)
_WRITTEN = (
    "<!-- Written by `make docs` from pipeline/model/nodes.py and tools/docs/parts/{part}. Change"
    " those. -->\n"
)
_FIRST = ("Example", "Options", "Guarantee", "Types", "Rights")
_READERS = {
    Visibility.EPOCH: "whole epochs",
    Visibility.SPLIT: "splits of an epoch",
    Visibility.PARTITION: "partitions of an epoch",
    Visibility.ROW: "single rows",
}


def node_types(part: str) -> dict[str, type[BaseModel]]:
    """Return the models of a part of the file by `type`."""
    union = get_args(UNIONS[part])[0]
    models = get_args(union) or (union,)
    return {get_args(model.model_fields["type"].annotation)[0]: model for model in models}


def pages(parts: Path) -> dict[str, str]:
    """Return all pages by path below docs/reference/pipeline-file. `parts` contains prose and examples."""
    texts = {
        "index.md": _index(),
        "pipeline.md": _page("The pipeline file", nodes.PipelineModel, parts, "pipeline", {}),
    }
    for part in PARTS:
        for node_type, model in node_types(part).items():
            texts[f"{part}/{node_type}.md"] = _page(
                f"`{node_type}` {part[:-1]}",
                model,
                parts,
                f"{part}/{node_type}",
                {"Guarantee": _guarantee(part, node_type)},
            )
    return texts


def _page(title: str, model: type[BaseModel], parts: Path, name: str, generated: Mapping[str, str]) -> str:
    """Return one page. In each section generated text comes before the text of its part."""
    intro, written = _read_sections(parts / f"{name}.md")
    example = parts / f"{name}.yaml"
    example_block = f"```yaml\n{example.read_text(encoding='utf-8')}```\n" if example.exists() else ""
    options = "\n".join(option_tables.tables(model, 3, nodes.without_effect(*name.split("/"))))
    sections = dict.fromkeys(_FIRST, "") | {"Example": example_block, "Options": options, **generated}
    for heading, text in written.items():
        sections[heading] = "\n".join(filter(None, (sections.get(heading, ""), text)))
    body = "\n".join(f"## {heading}\n\n{text}" for heading, text in sections.items() if text)
    whole = f"# {title}\n\n{_WRITTEN.format(part=name + '.md')}\n{option_tables.summary(model)}\n\n{intro}\n{body}"
    return re.sub(r"\n{3,}(?!def )", "\n\n", whole)


def _read_sections(path: Path) -> tuple[str, dict[str, str]]:
    """Return the text before the first heading of a part, and the text below each heading."""
    if not path.exists():
        return "", {}
    intro, *rest = re.split(r"^## (.+)\n+", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return intro.lstrip(), {
        heading: text.rstrip("\n") + "\n" for heading, text in zip(rest[::2], rest[1::2], strict=True)
    }


def _guarantee(part: str, kind: str) -> str:
    if part == "sinks":
        rows = _sink_rows(sink_entries()[kind].capabilities)
    elif part == "sources" and (entry := source_entries().get(kind)):
        rows = _source_rows(entry.capabilities, has_stream=kind in stream_entries())
    else:
        return ""
    return "| | |\n|---|---|\n" + "".join(f"| {what} | {text} |\n" for what, text in rows)


def _sink_rows(capabilities: SinkCapabilities) -> Iterator[tuple[str, str]]:
    exact = capabilities.delivery is Delivery.EXACTLY_ONCE
    yield (
        "A row arrives",
        "exactly once: rows and commit record are one atomic act"
        if exact and capabilities.visibility is Visibility.EPOCH
        else "exactly once: an interrupted epoch is completed or removed first"
        if exact
        else "at least once: the sink has no commit record; repeated requests have the same idempotency keys"
        if capabilities.idempotency_keys
        else "at least once: the sink has no commit record",
    )
    splits = capabilities.direct is Visibility.SPLIT
    direct = "; splits during a bulk copy of history" if splits else ""
    yield "Readers see", _READERS[capabilities.visibility] + direct
    operations = (
        "inserts, updates and deletes"
        if capabilities.delete
        else "inserts and updates"
        if capabilities.upsert
        else "inserts"
    )
    yield "Operations", operations
    fences = "refused: the target compares generations in the same act"
    waits = "not detected: the next run waits for the end of the lease and for `commit_timeout_seconds` (5 s)"
    yield "Writes of an older run", fences if capabilities.fences else waits
    if not exact:
        return
    yield "A missing target", "is created" if capabilities.creates_target else "stops the run"
    counts = "by operation; the check `row_count_matches` applies"
    yield (
        "Changes are counted",
        counts
        if capabilities.counts_changes
        else "as rows only; the check `row_count_matches` does not apply",
    )


def _source_rows(capabilities: SourceCapabilities, *, has_stream: bool = False) -> Iterator[tuple[str, str]]:
    bounded = "bounded: history, or unbounded: a stream" if has_stream else "bounded: history"
    yield "Kind", bounded if capabilities.bounded else "unbounded: a stream"
    if capabilities.bounded:
        yield (
            "Snapshot",
            "yes: a split gives the same rows at every read"
            if capabilities.stable_snapshot
            else "no: no other program may write during the read",
        )
    yield "`job_mode`", "supported" if capabilities.job_mode else "refused"
    if capabilities.bounded:
        yield (
            "Load path",
            "bulk copy if the transform allows it, otherwise Spark" if capabilities.direct else "Spark",
        )


def _index() -> str:
    telemetry = "\n".join([f"## Telemetry\n\n{_TELEMETRY}\n", *option_tables.tables(Telemetry, 3)])
    checks = "\n".join([f"## Checks\n\n{_CHECKS}\n", *option_tables.tables(SinkCheckConfig, 3)])
    return "\n".join([_INDEX_HEAD, *(_available(part) for part in PARTS), telemetry, checks, _not_yet()])


_INDEX_HEAD = f"""# Pipeline file reference

{_WRITTEN.format(part="").replace(" and tools/docs/parts/", ", pipeline/compat/streamling.py and the connectors")}
[The pipeline file](pipeline.md) describes the top level. Each type of node has a page. See [Types](../types.md) for types of columns and the
[Cookbook](../../guides/cookbook.md) for complete files. `headrace validate --schema` prints a JSON Schema for editors.
"""


_TELEMETRY = (
    "`telemetry` of any node configures [its metrics](../../guides/monitor.md#metrics). It changes no row."
)

_CHECKS = (
    "`checks` of a `clickhouse`, `delta`, `iceberg` or `postgres` sink are [checks of the rows](../checks.md#declared-checks)"
    " in the target: a map of names to checks, each with one rule. They change no row."
)


def _available(part: str) -> str:
    rows = "".join(
        f"| [{kind}]({part}/{kind}.md) | {_first_line(model)} | {_promise(part, kind)} |\n"
        for kind, model in node_types(part).items()
    )
    return f"## {part.capitalize()}\n\n| type | description | guarantee |\n|---|---|---|\n{rows}"


def _first_line(model: type[BaseModel]) -> str:
    return " ".join(option_tables.summary(model).split("\n\n")[0].split()).replace("|", "\\|")


def _promise(part: str, kind: str) -> str:
    if part == "sinks":
        return str(sink_entries()[kind].capabilities.delivery).replace("_", " ")
    if part == "transforms":
        return "per row; a replay gives the same rows"
    if (entry := source_entries().get(kind)) is None:
        return "that of its phases, with an exact handoff"
    if not entry.capabilities.bounded:
        return "the same range gives the same rows"
    return "a snapshot" if entry.capabilities.stable_snapshot else "no snapshot"


def _not_yet() -> str:
    """Return the keys of Streamling's files that Headrace does not support."""
    keys = "".join(f"| `{key}` | {instead} |\n" for key, instead in streamling.KEYS.items())
    return f"""## Not available yet

`headrace validate` reports these with an alternative. A key on the page of a node is available there.

| key | instead |
|---|---|
{keys}
Other types come from [plugins](../../guides/plugins.md): `headrace plugin list` prints the installed ones. Those of Streamling's community
({", ".join(f"`{name}`" for name in sorted(streamling.PLUGINS))}) are not available.
"""

"""Compares a pipeline file with the position of its pipeline: allowed and refused changes.

The comparison is pure. It uses the file, a position and the pipeline of the last committed epoch, and reads
no other system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headrace.pipeline.errors import PipelineStateError
from headrace.pipeline.file.loader import PipelineFile, hash_of
from headrace.pipeline.model.graph import key_of
from headrace.pipeline.model.nodes import PipelineModel
from headrace.pipeline.model.partitions import (
    OPEN,
    IntegerPartitionsConfig,
    PartitionsConfig,
    TimePartitionsConfig,
    ValuePartitionsConfig,
)
from headrace.pipeline.protocol import positions
from headrace.pipeline.protocol.epochs import Json, Position, content_ref
from headrace.pipeline.protocol.partitions import describe_keys, window_keys
from headrace.pipeline.protocol.source_identity import identity_changes, source_identity


@dataclass(frozen=True, slots=True)
class FileChanges:
    """`refused` are changes that the pipeline cannot follow, each with its line.

    `notes` are effects of the others.
    """

    refused: list[PipelineStateError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *result: PipelineStateError | str) -> None:
        """Add the results of a check."""
        for one in result:
            if isinstance(one, str):
                self.notes.append(one)
            else:
                self.refused.append(one)


def file_changes(
    file: PipelineFile,
    position: Position,
    former: Json | None = None,
    identity: Callable[[str], Json | None] = lambda _: None,
) -> FileChanges:
    """Compare a file with the position at which its next epoch starts.

    `former` is the compiled pipeline of the last committed epoch, or None before the first. `identity`
    returns the identity of a source when its position was created, by the hash in the position. It returns
    None if that is lost.
    """
    changes = FileChanges()
    changes.add(*_sources(file, position, identity))
    if not changes.refused:
        changes.add(*_partitions(file, position))
    if former is not None:
        changes.add(*_sinks(file, former))
        if not changes.refused:
            changes.add(*_effects(file, former))
    return changes


# --- sources


def _sources(
    file: PipelineFile, position: Position, identity: Callable[[str], Json | None]
) -> Iterator[PipelineStateError | str]:
    identities = {name: source_identity(node) for name, node in file.model.sources.items()}
    for name, now in identities.items():
        here = position.get(name)
        if here is None:
            yield _added_source_error(file, name, position, identity)
        elif "source" not in here or ("history" in here) != bool(
            positions.bounded_phases(file.model.sources[name])
        ):
            yield _unlike(file, name, here, identity)
        elif (former := identity(here["source"])) is None:
            if here["source"] != content_ref(now):
                yield _refusal(
                    file, (name,), "is not the source that its position was made with", _former(file)
                )
        else:
            for path, had, has in identity_changes(former, now):
                yield _fixed_key_error(file, name, path, had, has)


def _added_source_error(
    file: PipelineFile, name: str, position: Position, identity: Callable[[str], Json | None]
) -> PipelineStateError:
    now = source_identity(file.model.sources[name])
    rest = {other: here.get("source") for other, here in position.items() if other not in file.model.sources}
    alike = next((other for other, ref in rest.items() if ref and identity(ref) == now), None)
    if alike is not None:
        return _refusal(
            file,
            (name,),
            f"was called `{alike}` before, and positions are kept by name",
            f"Call it `{alike}` again.",
        )
    msg = "was added to a pipeline that has begun: its history would be written over newer rows of the others"
    return _refusal(file, (name,), msg, "Give it a pipeline and a target of its own.")


def _unlike(
    file: PipelineFile, name: str, here: Json, identity: Callable[[str], Json | None]
) -> PipelineStateError:
    former = identity(here["source"]) if "source" in here else None
    if former is None:
        return _refusal(file, (name,), "has a position in the ledger that this release does not read", "")
    return _fixed_key_error(file, name, ("type",), former["type"], file.model.sources[name].type)


def _fixed_key_error(
    file: PipelineFile, name: str, path: tuple[str | int, ...], had: Any, has: Any
) -> PipelineStateError:
    key = next(str(part) for part in reversed(path) if isinstance(part, str))
    if key == "bounded_sources":
        had, has = ([_name_of_table(part) for part in parts] for parts in (had, has))
    msg = f"`{key}` cannot change from {_format_value(had)} to {_format_value(has)}: {_why(path)}"
    return _refusal(
        file,
        (name, *path),
        msg,
        f"Restore the former value, `{key}: {_bare(had)}`." if had is not None else f"Remove `{key}`.",
    )


def _why(path: tuple[str | int, ...]) -> str:
    if path[0] == "unbounded_source" or path[-1] in ("topic", "starting_offsets"):
        return "the stream's offsets are those of the first start"
    if path[0] in ("offset_table", "handoff_lag", "cursor"):
        return "the fence between history and stream was fixed at the first start"
    if path[-1] == "type":
        return "its position is that of the former type"
    return (
        "its history was pinned at the first start, so rows of two versions would be mixed, or the"
        " change would have no effect"
    )


def _name_of_table(part: Json) -> str:
    return str(part.get("table_name") or part.get("path") or part["type"])


def _format_value(value: Any) -> str:
    return "nothing" if value is None else f"`{_bare(value)}`"


def _bare(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_bare(one)}' for key, one in value.items())}}}"
    return f"[{', '.join(_bare(one) for one in value)}]" if isinstance(value, list) else str(value)


def _refusal(file: PipelineFile, path: tuple[str | int, ...], msg: str, hint: str) -> PipelineStateError:
    name = str(path[0])
    reset = _reset(file, "follow the change" if hint else "go on")
    return PipelineStateError(
        f"source `{name}`: {msg}", hint=f"{hint} {reset}".strip(), place=file.place("sources", *path)
    )


def _former(file: PipelineFile) -> str:
    return f"Restore the former version of {file.path}."


# --- sinks


def _sinks(file: PipelineFile, former: Json) -> Iterator[PipelineStateError]:
    """Yield changes of the target or the primary key of a sink.

    Both are fixed after the first epoch, because rows of earlier epochs are in that target under that key.
    """
    try:
        model = PipelineModel.model_validate(former)
    except ValidationError:  # a plugin that is no longer installed; the current file does not need it
        model = None
    now = file.compiled()["sinks"]
    for name, has in now.items():
        if (had := former["sinks"].get(name)) is None:
            continue
        for key in ("type", *getattr(file.model.sinks[name], "target_keys", ())):
            if had.get(key) != has.get(key):
                change = (
                    f"`{key}` cannot change from {_format_value(had.get(key))} to"
                    f" {_format_value(has.get(key))}"
                )
                msg = f"sink `{name}`: {change}: earlier rows are in the former target"
                hint = (
                    f"Give the new target another sink name; `headrace replay {file.path} --sink NAME"
                    " --from 1` then writes the earlier epochs."
                )
                yield PipelineStateError(
                    msg,
                    hint=f"{hint} {_reset(file, 'fill the new target instead')}",
                    place=file.place("sinks", name, key),
                )
                break
        else:
            if (
                model is not None
                and (keys := (key_of(model, name), key_of(file.model, name)))
                and keys[0] != keys[1]
            ):
                spelled = [", ".join(key) or "none" for key in keys]
                change = f"the primary key cannot change from `{spelled[0]}` to `{spelled[1]}`"
                msg = f"sink `{name}`: {change}: earlier rows were written by the former one"
                hint = f"Restore the former primary_key. {_reset(file, 'follow the change')}"
                yield PipelineStateError(msg, hint=hint, place=file.place("sinks", name))


# --- what takes effect


def _effects(file: PipelineFile, former: Json) -> Iterator[str]:
    """Name the nodes whose change takes effect from the next epoch."""
    now = file.compiled()
    if hash_of(now) == hash_of(former):
        return
    removed = [name for name in former["sources"] if name not in now["sources"]]
    for name in removed:
        yield (
            f"source `{name}` is no longer in the file: its rows stay, and it goes on from where it was"
            " if it is put back"
        )
    nodes = {
        part: (former.get(part) or {}, now.get(part) or {}) for part in ("sources", "transforms", "sinks")
    }
    changed = [name for had, has in nodes.values() for name in has if name in had and had[name] != has[name]]
    if changed:
        names = ", ".join(f"`{name}`" for name in changed)
        yield (
            f"{names} changed: the next epochs follow the new file, rows of earlier epochs stay as they"
            " were written"
        )


# --- partitions


def _partitions(file: PipelineFile, position: Position) -> Iterator[PipelineStateError | str]:
    """Yield changes of the partitions.

    A partition is identified by its first day, its first number or its value. Column, length and start are
    therefore fixed once a partition has begun.
    """
    begun = {
        name: here
        for name, here in position.items()
        if name in file.model.sources and positions.has_begun(here)
    }
    for name, here in begun.items():
        former, now = here["history"]["by"], positions.partitions_json(file.model.partitions)
        if not positions.is_cut_alike(former, now):
            yield _partitions_error(file, name, here)
        elif former is None or now is None:
            continue
        elif not isinstance(file.model.partitions, TimePartitionsConfig):
            if former != now:
                yield from _compare_values(file, name, here, positions.stream_begun(position))
        elif _last(former) != _last(now):
            yield from _compare_history_end(file, name, here, position)


def _partitions_error(file: PipelineFile, name: str, here: Json) -> PipelineStateError:
    former = here["history"]["by"]
    where = f"by `{spell_partitions(former)}`" if former else "without partitions"
    msg = (
        f"`partitions` cannot change any more: the history of source `{name}` was begun {where}, and"
        " would be read twice or left out"
    )
    restore = (
        f"Restore the former value: `partitions: {spell_partitions(former)}`"
        if former
        else "Remove `partitions` again"
    )
    return PipelineStateError(
        msg,
        hint=f"{restore}. {_reset(file, 'cut the history in another way')}",
        place=file.place("partitions"),
    )


def _compare_history_end(
    file: PipelineFile, name: str, here: Json, position: Position
) -> Iterator[PipelineStateError | str]:
    former, now = here["history"]["by"], positions.partitions_json(file.model.partitions)
    assert now is not None  # noqa: S101  the caller compared it
    place = file.place("partitions", "history_end" if "history_end" in now else "end")
    if _last(now) == OPEN:
        yield (
            f"history has no end any more: a later partition of source `{name}` is read when it has passed,"
            " from a new snapshot"
        )
    elif _last(former) != OPEN and _last(now) > _last(former):
        if positions.stream_begun(position):
            msg = (
                f"history cannot be extended from {_last(former)} to {_last(now)}: the stream has begun,"
                f" and history rows of source `{name}` would be written over newer rows of the stream"
            )
            hint = (
                f"Set `history_end: {_last(former)}` in `partitions`: later partitions are the stream's."
                f" {_reset(file, 'read more history')}"
            )
            yield PipelineStateError(msg, hint=hint, place=place)
        else:
            yield (
                f"history now ends at {_last(now)}: later windows of source `{name}` are read from the"
                " snapshot of the pipeline's first start"
            )
    elif positions.is_unbounded(file.model.sources[name]):
        msg = (
            f"history cannot end at {_last(now)} instead of {_last(former)}: the stream begins where the"
            f" history of source `{name}`"
            " ended at its first start, so rows of the days between would be in neither"
        )
        hint = (
            f"Restore the former value: `partitions: {spell_partitions(former)}`."
            f" {_reset(file, 'read less history')}"
        )
        yield PipelineStateError(msg, hint=hint, place=place)
    elif cut := sorted(key for key in here["history"].get("open", {}) if key >= _last(now)):
        msg = f"history cannot end at {_last(now)}: window {cut[0]} of source `{name}` is partly read"
        hint = (
            f"Restore the former value: `partitions: {spell_partitions(former)}`."
            f" {_reset(file, 'read less history')}"
        )
        yield PipelineStateError(msg, hint=hint, place=place)
    else:
        yield (
            f"history now ends at {_last(now)}: later windows of source `{name}` are not read; rows that"
            " are in the sinks stay"
        )


def _compare_values(
    file: PipelineFile, name: str, here: Json, stream_begun: bool
) -> Iterator[PipelineStateError | str]:
    """Yield the effects of another list of values, or of another end of ranges of integers.

    The snapshots of the history have no rows of added partitions, so these are read from new ones.
    """
    model, former = file.model, here["history"]["by"]
    by: PartitionsConfig = TypeAdapter(PartitionsConfig).validate_python(former)
    place = file.place("partitions", "values" if isinstance(by, ValuePartitionsConfig) else "end")
    restore = f"Restore the former value: `partitions: {spell_partitions(former)}`."
    before, now = window_keys(by), positions.windows_of(model)
    added = [key for key in now if key not in before]
    done = positions.completed_partitions(model.model_copy(update={"partitions": by}), {name: here})
    if lost := [key for key in before if key not in now and key not in done]:
        msg = f"partition {lost[0]} of source `{name}` cannot be removed: no sink has all rows of it"
        yield PipelineStateError(msg, hint=f"{restore} {_reset(file, 'leave it out')}", place=place)
    elif added and positions.is_unbounded(model.sources[name]):
        msg = (
            f"partition {added[0]} cannot be added to the history of source `{name}`: the stream begins where"
            " the history ended at its first start"
        )
        yield PipelineStateError(msg, hint=f"{restore} {_reset(file, 'read more history')}", place=place)
    elif added and stream_begun:
        msg = (
            f"partition {added[0]} cannot be added: the stream has begun, and history rows of source `{name}`"
            " would be written over newer rows of the stream"
        )
        yield PipelineStateError(msg, hint=f"{restore} {_reset(file, 'read more history')}", place=place)
    elif added:
        yield f"partitions of source `{name}` are read from a new snapshot: {describe_keys(added)}"
    elif len(now) < len(before):
        yield f"removed partitions of source `{name}` are not read again; rows that are in the sinks stay"


def spell_partitions(partitions: Mapping[str, Any]) -> str:
    """Return partitions as a line of YAML, in the order of the documentation."""
    models = (TimePartitionsConfig, IntegerPartitionsConfig, ValuePartitionsConfig)
    keys = dict.fromkeys(key for model in models for key in model.model_fields if key in partitions)
    return f"{{{', '.join(f'{key}: {_spell(partitions[key])}' for key in keys)}}}"


def _spell(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _last(partitions: Json) -> str:
    return partitions.get("history_end") or partitions["end"]


def _reset(file: PipelineFile, aim: str) -> str:
    return f"To {aim}, start over with a new snapshot: `headrace reset {file.path}`."

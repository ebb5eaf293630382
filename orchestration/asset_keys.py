"""Asset keys of physical resources: short where one name means one resource, longer where it does not."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import dagster as dg

from headrace.orchestration.pipelines import PhysicalAsset, Pipeline, to_asset_key

KeyStyle = Literal["short", "full"]
"""`short`: outer parts of an address only where they distinguish resources. `full`: always all parts."""
Address = tuple[str, ...]


def assign_keys(pipelines: Sequence[Pipeline], style: KeyStyle = "short") -> list[Pipeline]:
    """Return the pipelines with asset keys that differ where their resources differ.

    With `short` a key depends on all pipelines: if another resource has the name, both keys get the part of
    the address in which they differ.
    """
    keys = choose_keys((asset for pipeline in pipelines for asset in _assets(pipeline)), style)
    return [_with_keys(pipeline, keys) for pipeline in pipelines]


def choose_keys(assets: Iterable[PhysicalAsset], style: KeyStyle = "short") -> Mapping[Address, dg.AssetKey]:
    """Return a key per address. Two addresses never have one key."""
    by_name: dict[str, dict[Address, Address]] = defaultdict(dict)
    for asset in assets:
        by_name[_identifier(asset.name)][asset.address] = asset.name
    keys: dict[Address, dg.AssetKey] = {}
    taken: set[str] = set()
    for names in by_name.values():
        chosen = next(_candidates(names, style, taken))
        taken |= {_identifier(parts) for parts in chosen.values()}
        keys |= {address: to_asset_key(parts) for address, parts in chosen.items()}
    return keys


def _candidates(
    names: Mapping[Address, Address], style: KeyStyle, taken: Collection[str]
) -> Iterator[Mapping[Address, Address]]:
    """Yield the shortest parts that distinguish the addresses of one name."""
    most = max(len(address) - len(name) for address, name in names.items())
    for outer in range(most if style == "full" else 0, most + 1):
        parts = {
            address: (address[0], *address[1 : len(address) - len(name) + 1][-outer:], *name[1:])
            if outer
            else name
            for address, name in names.items()
        }
        result = {_identifier(one) for one in parts.values()}
        if len(result) == len(parts) and not result & set(taken):
            yield parts
    # Addresses that differ only in characters that a key cannot have.
    yield {
        address: (*address, hashlib.sha256("\0".join(address).encode()).hexdigest()[:8]) for address in names
    }


def _identifier(parts: Address) -> str:
    """Return Dagster's name for a key inside an op, where different keys must have different names."""
    return "__".join(re.sub(r"\W", "_", part) for part in to_asset_key(parts).path)


def _assets(pipeline: Pipeline) -> Iterator[PhysicalAsset]:
    yield from pipeline.sinks.values()
    yield from pipeline.dynamic_tables.values()
    for assets in pipeline.sources.values():
        yield from assets


def _with_keys(pipeline: Pipeline, keys: Mapping[Address, dg.AssetKey]) -> Pipeline:
    def rename(asset: PhysicalAsset) -> PhysicalAsset:
        return replace(asset, key=keys[asset.address])

    return replace(
        pipeline,
        sinks={name: rename(asset) for name, asset in pipeline.sinks.items()},
        sources={name: tuple(map(rename, assets)) for name, assets in pipeline.sources.items()},
        dynamic_tables={name: rename(asset) for name, asset in pipeline.dynamic_tables.items()},
    )

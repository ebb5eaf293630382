"""Compares two sets of rows by a digest per bucket, and finds the keys that differ in unequal buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKETS = 64
SHOWN = 10
_PLAIN = ("map", "array", "struct", "variant")


@dataclass(frozen=True, slots=True)
class ContentDifference:
    """The differences of two sets of rows. `keys` are at most `SHOWN` of them, as text."""

    expected: int
    found: int
    buckets: int
    differing: int = 0
    keys: tuple[str, ...] = ()


def compare(
    expected: DataFrame, actual: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> ContentDifference:
    """Compare the `columns` of two frames, by key or, without one, as multisets of rows."""
    wanted = {field.name: field.dataType for field in expected.schema}
    expected_rows, actual_rows = normal(expected, columns, wanted), normal(actual, columns, wanted)
    by = list(key or columns)
    expected_digests, actual_digests = (
        _digests(expected_rows, columns, by),
        _digests(actual_rows, columns, by),
    )
    differing = sorted(
        bucket
        for bucket in expected_digests.keys() | actual_digests.keys()
        if expected_digests.get(bucket) != actual_digests.get(bucket)
    )
    rows = (
        sum(count for count, _ in expected_digests.values()),
        sum(count for count, _ in actual_digests.values()),
    )
    if not differing:
        return ContentDifference(*rows, 0)
    total, keys = _name_keys(expected_rows, actual_rows, columns, by, differing, keyed=bool(key))
    return ContentDifference(*rows, len(differing), total, keys)


def normal(
    rows: DataFrame, columns: Sequence[str], types: Mapping[str, Any], keep: Sequence[str] = ()
) -> DataFrame:
    """Return the columns in these types, with one zero, and nested values as text.

    `keep` are columns that stay as they are.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def column(name: str) -> Column:
        kind = types[name]
        result = F.col(f"`{name}`").cast(kind)
        if kind.typeName() in ("float", "double"):
            return F.when(result == 0, F.lit(0.0).cast(kind)).otherwise(result).alias(name)
        return (result.cast("string") if kind.typeName() in _PLAIN else result).alias(name)

    return rows.select(*(column(name) for name in columns), *keep)


def _bucket(by: Sequence[str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.pmod(F.xxhash64(*(F.col(f"`{name}`") for name in by)), F.lit(BUCKETS)).cast("int")


def _digests(rows: DataFrame, columns: Sequence[str], by: Sequence[str]) -> dict[int, tuple[int, Any]]:
    """(rows, digest) of each bucket.

    The digest does not depend on the order; a null is a value of its own.
    """
    from pyspark.sql import functions as F  # noqa: N812

    parts = [part for name in columns for part in (F.col(f"`{name}`"), F.col(f"`{name}`").isNull())]
    digest = F.sum(F.xxhash64(*parts).cast("decimal(38,0)"))
    result = (
        rows.groupBy(_bucket(by).alias("bucket"))
        .agg(F.count("*").alias("rows"), digest.alias("digest"))
        .collect()
    )
    return {row["bucket"]: (row["rows"], row["digest"]) for row in result}


def _name_keys(
    expected_rows: DataFrame,
    actual_rows: DataFrame,
    columns: Sequence[str],
    by: Sequence[str],
    buckets: Sequence[int],
    *,
    keyed: bool,
) -> tuple[int, tuple[str, ...]]:
    """Return how many keys differ in these buckets, and some of them as text."""
    from pyspark.sql import functions as F  # noqa: N812

    names = {name: f"k{place}" for place, name in enumerate(by)}

    def group_rows(rows: DataFrame, side: str) -> DataFrame:
        inside = rows.where(_bucket(by).isin(list(buckets)))
        values = F.struct(*(F.col(f"`{name}`").alias(f"v{place}") for place, name in enumerate(columns)))
        listed = F.collect_list(values) if keyed else F.count("*")
        return inside.groupBy(*(F.col(f"`{name}`").alias(alias) for name, alias in names.items())).agg(
            listed.alias(side)
        )

    one, other = group_rows(expected_rows, "expected"), group_rows(actual_rows, "found")
    condition = [one[alias].eqNullSafe(other[alias]) for alias in names.values()]
    keys = [F.coalesce(one[alias], other[alias]).alias(alias) for alias in names.values()]
    joined = one.join(other, condition, "full_outer").select(*keys, "expected", "found")
    differing = joined.where(~F.col("expected").eqNullSafe(F.col("found"))).persist()
    try:
        total = differing.count()
        shown = differing.orderBy(*names.values()).limit(SHOWN).collect()
    finally:
        differing.unpersist(blocking=False)
    words = []
    for row in shown:
        key = {name: row[alias] for name, alias in names.items()}
        expected, result = (
            [()] * (side or 0) if not keyed else side or [] for side in (row["expected"], row["found"])
        )
        words.append(describe_difference(key, expected, result, columns, keyed=keyed))
    return total, tuple(words)


def describe_difference(
    key: Mapping[str, Any],
    expected: Sequence[Sequence[Any]],
    rows: Sequence[Sequence[Any]],
    columns: Sequence[str],
    *,
    keyed: bool,
) -> str:
    """Return `id=5: missing`, `id=5: name, amount differ`. Values outside the key are not shown."""
    key_text = ", ".join(f"{name}={value}" for name, value in key.items())
    if not keyed:
        return f"{key_text}: {len(rows)} times, expected {len(expected)}"
    if not expected:
        return f"{key_text}: extra"
    if not rows:
        return f"{key_text}: missing"
    if len(rows) != len(expected):
        return f"{key_text}: {len(rows)} rows, expected {len(expected)}"
    wrong = [name for place, name in enumerate(columns) if _differs(expected[0][place], rows[0][place])]
    return f"{key_text}: {', '.join(wrong)} differ{'s' if len(wrong) == 1 else ''}"


def _differs(one: Any, other: Any) -> bool:
    return one != other and not (one != one and other != other)  # noqa: PLR0124  two NaN are one value

"""The contracts of dynamic tables, and the SQL function over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headrace.connectors.spark_plan import expressions, inner
from headrace.jobs.spark.errors import as_headrace_error
from headrace.pipeline.errors import SchemaError
from headrace.pipeline.protocol.epochs import EpochPlan
from headrace.pipeline.sql.dynamic_tables import FUNCTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pc: Any = pyarrow.compute  # its functions are made at import, which pyright cannot see


class ValueLookup(ABC):
    """Looks up values on a worker. Picklable; it is opened at the first lookup on the worker."""

    @abstractmethod
    def contains(self, values: list[str]) -> list[bool]:
        """Return for each of these distinct strings whether the table has it.

        Raises a HeadraceError if it cannot be read.
        """


class DynamicTableBackend(ABC):
    """One dynamic table of a pipeline in the driver.

    The thread that creates the frames of an epoch fills it and looks it up.
    """

    @abstractmethod
    def prepare(self) -> None:
        """Open the table, and check that it can be filled and queried.

        Raises UserError or TransientError that names the node.
        """

    def needs_values(self, plan: EpochPlan) -> bool:
        """Return whether the values of this epoch must be added.

        Not in a replay, which looks up the values of that time.
        """
        del plan
        return True

    def has_values(self, plan: EpochPlan) -> bool:
        """Return whether an earlier attempt at this epoch is known to have added its values."""
        del plan
        return False

    @abstractmethod
    def fill(self, plan: EpochPlan, values: pa.Array) -> None:
        """Add the distinct strings of an epoch durably. A second call changes nothing."""

    @abstractmethod
    def lookup(self, plan: EpochPlan) -> ValueLookup:
        """Return the lookup for this epoch's rows, which includes the epoch's own values.

        Returns the same object until the values change.
        """

    def close(self) -> None:  # noqa: B027  not everything opens something
        """Close what was opened."""


class EmptyLookup(ValueLookup):
    """An empty lookup, with which SQL is analysed."""

    def contains(self, values: list[str]) -> list[bool]:
        """See `Lookup`."""
        return [False] * len(values)


def register(spark: SparkSession, lookups: Mapping[str, ValueLookup]) -> None:
    """Let `dynamic_table_check('table', value)` look up these tables in the session's SQL.

    This affects SQL that the session analyses from now on.
    """
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.types import BooleanType

    # Dropped first, since Spark warns of a function that takes another's place.
    spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {FUNCTION}")
    spark.udf.register(FUNCTION, arrow_udf(checker(lookups), BooleanType()))  # type: ignore[arg-type]


def checker(lookups: Mapping[str, ValueLookup]) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """Return the lookup function over Arrow arrays.

    It returns null for null, and checks any element of a list.
    """
    known = dict(lookups)

    def dynamic_table_check(table: pa.Array, value: pa.Array) -> pa.Array:
        if not len(value):
            return pa.array([], pa.bool_())
        lookup = known[table[0].as_py()]
        if pa.types.is_list(value.type) or pa.types.is_large_list(value.type):
            return _any(lookup, value)
        return _each(lookup, value)

    return dynamic_table_check


def _each(lookup: ValueLookup, values: pa.Array) -> pa.Array:
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.bool_())
    coded = values.dictionary_encode()
    return pa.array(lookup.contains(coded.dictionary.to_pylist()), pa.bool_()).take(coded.indices)


def _any(lookup: ValueLookup, lists: pa.Array) -> pa.Array:
    """Return whether a list has any value of the table. Elements that are null are ignored."""
    result = pc.fill_null(_each(lookup, pc.list_flatten(lists)), fill_value=False)
    rows = pc.list_parent_indices(lists).filter(result)
    hits = pc.is_in(pa.array(range(len(lists)), rows.type), value_set=rows)
    return pc.if_else(lists.is_null(), pa.scalar(None, pa.bool_()), hits)


def check_arguments(frame: DataFrame, node: str) -> None:
    """Raise SchemaError if a call in an analysed frame has another argument than strings or lists of them."""
    for result in expressions(frame):
        if result.nodeName() == "PythonUDF" and result.name() == FUNCTION:
            kind: str = inner(result.children())[1].dataType().catalogString()
            if kind not in ("string", "array<string>", "void", "array<void>"):
                msg = f"{FUNCTION} takes a string or a list of strings, not {kind}"
                raise SchemaError(msg, hint="Cast it: CAST(column AS STRING).", node=node)


def distinct_texts(frame: DataFrame, node: str) -> pa.Array:
    """Return the distinct strings of a frame's only column.

    Raises failures in Spark as a HeadraceError that names the node.
    """
    try:
        named = frame.toDF("value")  # an expression's own name may hold dots, by which no column is found
        column = named.where(named["value"].isNotNull()).distinct().toArrow().column(0)
    except Exception as error:
        raise as_headrace_error(error, node=node) from error
    return pa.concat_arrays(column.cast(pa.string()).chunks) if column.num_chunks else texts([])


def texts(values: Sequence[str]) -> pa.Array:
    """Texts as Arrow."""
    return pa.array(values, pa.string())

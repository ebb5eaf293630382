"""The definition of functions as data, and the registry of built-in functions and those of plugins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from importlib import import_module
from typing import Any

from sqlglot import exp

from headrace.pipeline.errors import UserError


class Group(StrEnum):
    """The heading of a function on the documentation page."""

    STRINGS = "strings"
    JSON = "JSON in text"
    ARRAYS = "arrays"
    BYTES = "hashes and bytes"
    WIDE = "256-bit integers"
    CLOCK = "clock and ids"
    PLUGIN = "plugins"


class DialectScope(StrEnum):
    """The dialects of `sql` transforms in which a name has the meaning of the registry."""

    EVERYWHERE = "every dialect"
    SPARK = "every dialect; Spark's own function"
    DATAFUSION = "`datafusion`; in `spark` the name is Spark's own function"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call in a statement. `args` are the expanded arguments. `options` are clauses such as `on_empty`.

    `node` names the transform, `place` counts the calls of the statement from 0, `now` is the epoch's planned
    time. `shared` means that Spark computes a repeated expression once, as it does for values that a column
    needs in every row.
    """

    name: str
    args: Sequence[exp.Expr]
    options: Mapping[str, exp.Expr] = field(default_factory=dict)
    node: str = ""
    place: int = 0
    now: datetime | None = None
    shared: bool = False


Builder = Callable[[FunctionCall], exp.Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of `sql` transforms.

    Exactly one of `sql` and `arrow` is set. `sql` is a template in Spark SQL with the arguments as `_1`, `_2`
    and so on, or a callable that makes the expression. `arrow` is "module:function". It takes one
    `pyarrow.Array` per argument and returns one of the same length and of the Spark type `returns`. The
    module must be importable in Spark's workers. An Arrow function of strings reports a wrong row by a string
    that begins with `ERROR`. The row fails the epoch only if that value is used.
    """

    name: str
    signature: str
    group: Group
    meaning: str
    result: str
    """The type in text form. `uint256` and `int256` also make an output column one of these types."""
    examples: Sequence[tuple[str, str]]
    """Calls with their results as Spark casts them to a string (NULL for none). The first is the example."""
    errors: Sequence[tuple[str, str]] = ()
    """Calls that fail, with their message."""
    sql: str | Builder = ""
    arrow: str = ""
    returns: str = "string"
    cast: str = ""
    """The Spark type that an Arrow function's checked text is cast to."""
    least: int = 1
    most: int | None = 1
    defaults: Sequence[str] = ()
    """Defaults for the last arguments of a template."""
    aliases: Sequence[str] = ()
    where: DialectScope = DialectScope.EVERYWHERE
    only_from: int = 0
    """The number of arguments from which the call is this function and not Spark's own."""

    def __post_init__(self) -> None:
        if bool(self.sql) == bool(self.arrow):
            msg = f"function `{self.name}` needs either an expression or an Arrow function"
            raise ValueError(msg)

    @property
    def kind(self) -> str:
        """The implementation of the function."""
        return "Arrow" if self.arrow else "expression"


OTHERS = "datafusion"
"""The dialect in which Spark's names have the meaning of the registry."""
_PREFIX = "hr_df_"
"""The prefix of such a name in a parsed statement of that dialect. It is then no name of Spark's."""
ERROR = "!"
"""The prefix of an Arrow function's result string if the row is wrong."""
ARROW = "hr_fn_"
"""The prefix of an Arrow function's name in Spark."""

_MODULES = ("clocks", "strings", "patterns", "json", "json_construct", "arrays", "bytes", "int256")
_found: dict[str, Function] = {}
_loaded: list[str] = []
_loading = threading.RLock()
"""Held while the built-in functions are registered. Their modules may look up functions meanwhile."""


def register(function: Function) -> None:
    """Register a function under its name and aliases. It replaces an earlier function of the same name.

    For plugins: `register(Function(name="twice", signature="twice(int)", group=Group.PLUGIN, sql="_1 * 2",
    ...))`.
    """
    for name in (function.name, *function.aliases):
        key = name.lower()
        _found[_PREFIX + key if function.where is DialectScope.DATAFUSION else key] = function


def _load() -> None:
    """Register the built-in functions once. Functions that plugins registered before keep their names."""
    with _loading:
        if _loaded:
            return
        _loaded.append("")
        earlier = dict(_found)
        for module in _MODULES:
            for function in import_module(f"headrace.pipeline.functions.{module}").FUNCTIONS:
                register(function)
        _found.update(earlier)


def functions() -> Mapping[str, Function]:
    """Return every function under each of its names, in lower case."""
    _load()
    return _found


def distinct() -> Iterable[Function]:
    """Return every function once."""
    return {id(one): one for one in functions().values()}.values()


def find_function(name: str, arguments: int = 0) -> Function | None:
    """Return the function of a name in a parsed statement. None if it is Spark's own or unknown."""
    result = functions().get(name.lower())
    if result is None and (result := functions().get(_PREFIX + name.lower())) is not None:
        return result if result.only_from and arguments >= result.only_from else None
    return None if result is None or result.where is DialectScope.SPARK else result


def parsed_names(dialect: str) -> Mapping[str, Callable[[list[Any]], exp.Expr]]:
    """Return entries for the `FUNCTIONS` of a dialect's parser. They keep the calls as they are written.

    The keys are Headrace's own function names in capitals.
    """
    result = {}
    for key, function in functions().items():
        name = key.removeprefix(_PREFIX)
        if function.where is DialectScope.EVERYWHERE or (
            function.where is DialectScope.DATAFUSION and dialect == OTHERS
        ):
            result[name.upper()] = _builder(key if dialect == OTHERS else name)
        elif function.only_from and dialect == "spark":
            result[name.upper()] = _builder(name)
    return result


def _builder(name: str) -> Callable[[list[Any]], exp.Expr]:
    return lambda args: exp.Anonymous(this=name, expressions=args)


def display_name(name: str) -> str:
    """Return a function's name as the user writes it."""
    return name.lower().removeprefix(_PREFIX)


def suggestable_names() -> tuple[str, ...]:
    """Return the names of all functions, and of Spark's most common ones."""
    return (*dict.fromkeys(map(display_name, functions())), "dynamic_table_check", *_SPARKS)


_SPARKS = (
    "abs", "array", "array_contains", "cast", "ceil", "coalesce", "concat", "concat_ws", "date_format",
    "date_trunc", "element_at", "explode", "filter", "floor", "from_json", "from_unixtime", "get_json_object",
    "greatest", "if", "ifnull", "initcap", "least", "left", "length", "lower", "lpad", "ltrim", "map", "md5",
    "named_struct", "nullif", "nvl", "replace", "reverse", "right", "round", "rpad", "rtrim", "sha2", "size",
    "struct", "substr", "substring", "substring_index", "timestamp_micros", "timestamp_millis",
    "timestamp_seconds", "to_date", "to_json", "to_timestamp", "to_timestamp_ntz", "transform", "trim",
    "try_add", "try_cast", "try_divide", "try_element_at", "try_to_timestamp", "unbase64", "unix_millis",
    "unix_timestamp", "upper", "xxhash64", "year",
)  # fmt: skip


def check_count(function: Function, call: FunctionCall) -> None:
    """Raise UserError if a call has too few or too many arguments."""
    count = len(call.args)
    if count < function.least or (function.most is not None and count > function.most):
        most = "or more" if function.most is None else f"to {function.most}"
        wanted = f"{function.least}" if function.least == function.most else f"{function.least} {most}"
        msg = (
            f"`{display_name(call.name)}` takes {wanted} argument{'' if wanted == '1' else 's'}, found"
            f" {count}"
        )
        raise UserError(msg, hint=f"It is called as {function.signature}.", node=call.node)

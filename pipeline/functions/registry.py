"""What a function is, as data, and the list of all of them: the built-in ones and those that plugins register."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from importlib import import_module

from sqlglot import exp

from headrace.pipeline.errors import UserError


class Group(StrEnum):
    """The heading below which a function stands on the page of functions."""

    STRINGS = "strings"
    JSON = "JSON"
    ARRAYS = "arrays"
    BYTES = "hashes and bytes"
    WIDE = "256-bit integers"
    CLOCK = "clock and ids"
    PLUGIN = "plugins"


class Where(StrEnum):
    """In which dialects of `sql` transforms a name has the meaning that is written here."""

    EVERYWHERE = "every dialect"
    SPARK = "every dialect; Spark's own function"
    DATAFUSION = "`datafusion`; in `spark` the name is Spark's own function"


@dataclass(frozen=True, slots=True)
class Call:
    """One call in a statement. `args` are the arguments, expanded already; `options` are clauses such as `on_empty`.

    `node` names the transform, `place` counts the calls of the statement from 0, `now` is the epoch's planned time.
    """

    name: str
    args: Sequence[exp.Expr]
    options: Mapping[str, exp.Expr] = field(default_factory=dict)
    node: str = ""
    place: int = 0
    now: datetime | None = None


Builder = Callable[[Call], exp.Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of `sql` transforms.

    Exactly one of `sql` and `arrow` is given. `sql` is a template in Spark SQL with the arguments as `_1`, `_2` and so on, or a
    callable that makes the expression. `arrow` is "module:function": it takes one `pyarrow.Array` per argument and returns one of the
    same length and of the Spark type `returns`; the module must be importable in Spark's workers. An Arrow function of text says that
    a row is wrong by a text that begins with `ERROR`; the row fails the epoch only if that value is used.
    """

    name: str
    signature: str
    group: Group
    meaning: str
    result: str
    """In words for the page; `uint256` and `int256` also make an output column one of these types."""
    examples: Sequence[tuple[str, str]]
    """A call, and its result as Spark casts it to text (NULL for none). The first is the example, the others are edge cases."""
    errors: Sequence[tuple[str, str]] = ()
    """A call that fails, and what its message says."""
    sql: str | Builder = ""
    arrow: str = ""
    returns: str = "string"
    cast: str = ""
    """The Spark type that an Arrow function's checked text is cast to."""
    least: int = 1
    most: int | None = 1
    defaults: Sequence[str] = ()
    """What stands for the last arguments of a template where they are left out."""
    aliases: Sequence[str] = ()
    where: Where = Where.EVERYWHERE
    only_from: int = 0
    """The number of arguments from which on the call is this function and not Spark's own of that name."""

    def __post_init__(self) -> None:
        if bool(self.sql) == bool(self.arrow):
            msg = f"function `{self.name}` needs either an expression or an Arrow function"
            raise ValueError(msg)

    @property
    def kind(self) -> str:
        """How it runs."""
        return "Arrow" if self.arrow else "expression"


ERROR = "!"
"""What the text of an Arrow function begins with where the row is an error."""
ARROW = "hr_fn_"
"""What the name of an Arrow function begins with inside of Spark."""

_MODULES = ("clock", "strings", "json", "arrays", "bytes", "wide")
_found: dict[str, Function] = {}
_loaded: list[str] = []


def register(function: Function) -> None:
    """Adds a function, by its name and aliases; a later one takes the place of an earlier one with that name.

    For plugins: `register(Function(name="twice", signature="twice(int)", group=Group.PLUGIN, sql="_1 * 2", ...))`.
    """
    for name in (function.name, *function.aliases):
        _found[name.lower()] = function


def _load() -> None:
    """The built-in functions, once; plugins that came before keep their names."""
    if _loaded:
        return
    _loaded.append("")
    earlier = dict(_found)
    for module in _MODULES:
        for function in import_module(f"headrace.pipeline.functions.{module}").FUNCTIONS:
            register(function)
    _found.update(earlier)


def functions() -> Mapping[str, Function]:
    """Every function by each of its names, in lower case."""
    _load()
    return _found


def distinct() -> Iterable[Function]:
    """Every function once."""
    return dict.fromkeys(map(id, functions().values())) and {id(one): one for one in functions().values()}.values()


def named(name: str, dialect: str = "spark", arguments: int = 0) -> Function | None:
    """The function that a name means in a dialect, None where it is Spark's own or there is none."""
    found = functions().get(name.lower())
    if found is None or found.where is Where.SPARK:
        return None
    if found.where is Where.DATAFUSION and dialect != "datafusion" and not (found.only_from and arguments >= found.only_from):
        return None
    return found


def written() -> frozenset[str]:
    """The names, in upper case, that a parser must leave as they are written."""
    return frozenset(name.upper() for name, function in functions().items() if function.where is not Where.SPARK)


def check_count(function: Function, call: Call) -> None:
    """Raises UserError where a call has too few or too many arguments."""
    count = len(call.args)
    if count < function.least or (function.most is not None and count > function.most):
        most = "or more" if function.most is None else f"to {function.most}"
        wanted = f"{function.least}" if function.least == function.most else f"{function.least} {most}"
        msg = f"`{call.name}` takes {wanted} argument{'' if wanted == '1' else 's'}, found {count}"
        raise UserError(msg, hint=f"It is called as {function.signature}.", node=call.node)

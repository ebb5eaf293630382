"""Functions of the user's own packages: loaded by name if the settings allow their module."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace.pipeline.errors import UserError


def load_function(path: str, node: str) -> Callable[..., Any]:
    """Return the function at `package.module:name`.

    Raises UserError if there is none, or if the module does not load.
    """
    module, _, name = path.partition(":")
    try:
        result: Any = import_module(module)
    except Exception as error:  # noqa: BLE001  errors of the user's module are reported to the user
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name
            and (module == error.name or module.startswith(f"{error.name}."))
        ):
            msg = f"there is no module `{error.name}` for `function: {path}`"
            hint = "Install its package where Headrace and Spark's workers run, or set PYTHONPATH for them."
            raise UserError(msg, hint=hint, node=node) from None
        msg = f"the module `{module}` does not load: {describe_user_error(error, module)}"
        raise UserError(msg, hint="Fix the module.", node=node) from None
    for part in name.split("."):
        result = getattr(result, part, None)
    if not callable(result):
        msg = f"there is no function `{name}` in the module `{module}`"
        raise UserError(msg, hint="Correct `function`, which is `package.module:name`.", node=node)
    return result


def check_options(
    function: Callable[..., Any],
    path: str,
    options: Mapping[str, Any],
    node: str,
    before: str = "",
    *arguments: object,
) -> None:
    """Raise UserError for options that the function does not accept after `arguments`.

    `before` names the arguments in the message. A function without a signature is not checked.
    """
    try:
        takes = inspect.signature(function)
    except ValueError:
        return
    try:
        takes.bind(*arguments, **options)
    except TypeError as error:
        msg = f"`{path}` cannot be called with {before}these `options`: {error}"
        raise UserError(msg, hint=f"It is {path.rpartition(':')[2]}{takes}.", node=node) from None


def describe_user_error(error: BaseException, module: str) -> str:
    """Return an exception's message, and the line of the user's code that raised it.

    That is the last frame in the module's package.
    """
    package = module.split(".", maxsplit=1)[0]
    outside = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if "importlib" not in frame.f_code.co_filename
        and not str(frame.f_globals.get("__name__")).startswith("headrace.")
    ]
    own = [(name, line) for name, line in outside if f"/{package}/" in name or Path(name).stem == package]
    file, line = (own or outside or [("", 0)])[-1]
    where = f" ({file}:{line})" if file else ""
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"


def check_allowed(function: str, allow: Sequence[str], node: str) -> None:
    """Raise UserError for a function of a module that the settings do not allow.

    A pipeline file alone must not be able to run any code.
    """
    module = function.partition(":")[0]
    if not any(module == one or module.startswith(f"{one}.") for one in allow):
        msg = f"the settings do not allow Python from `{module}` (allowed: {', '.join(allow) or 'nothing'})"
        package = module.split(".", maxsplit=1)[0]
        hint = (
            f"Add to config.yaml: python_transforms: {{allow: [{package}]}}; or set"
            f" HEADRACE__PYTHON_TRANSFORMS__ALLOW={package}."
        )
        raise UserError(msg, hint=hint, node=node)

"""Secrets by reference: `{env: NAME}` or `{file: PATH}` in place of a password.

They are resolved when settings are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SecretStr

KINDS = ("env", "file")
"""The types of references: an environment variable, or a file that contains only the secret."""


class Reference:
    """A reference in place of a secret.

    It is one value with any number of keys: layers never merge two references.
    """

    __slots__ = ("written",)

    def __init__(self, written: Mapping[str, Any]) -> None:
        self.written = dict(written)

    def secret(self) -> str:
        """Return the secret. Raise ValueError, without any value, if the reference cannot be resolved."""
        kinds = [kind for kind in KINDS if isinstance(self.written.get(kind), str)]
        if len(self.written) != 1 or not kinds:
            msg = "must be a text, or one of {env: NAME} and {file: PATH}"
            raise ValueError(msg)
        name = self.written[kinds[0]]
        return _variable(name) if kinds[0] == "env" else _file(Path(name).expanduser())


def _variable(name: str) -> str:
    result = os.environ.get(name)
    if not result:
        msg = f"refers to the variable {name}, which is {'not set' if result is None else 'empty'}"
        raise ValueError(msg)
    return result


def _file(path: Path) -> str:
    try:
        result = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = (
            "is not there"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read: {getattr(error, 'strerror', '') or 'no text'}"
        )
        msg = f"refers to the file {path}, which {reason}"
        raise ValueError(msg) from None
    result = result.removesuffix("\n").removesuffix("\r")  # editors and `echo` add one at the end of a file
    if not result:
        msg = f"refers to the file {path}, which is empty"
        raise ValueError(msg)
    return result


def mask_secret(value: Any) -> Any:
    """Return a secret setting in a form that is safe to show: a reference or a masked string.

    A reference is a mapping, or in a variable its JSON text.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            result = json.loads(value)
        except ValueError:
            result = None
        value = (
            result if isinstance(result, dict) and len(result) == 1 and next(iter(result)) in KINDS else value
        )
    if isinstance(value, Mapping):
        return Reference(value)
    return SecretStr(value) if isinstance(value, str) else value


def _looked_up(value: Any) -> Any:
    result = mask_secret(value)
    return result.secret() if isinstance(result, Reference) else result


Secret = Annotated[SecretStr, BeforeValidator(_looked_up)]
"""A setting that is never shown, set directly or by reference."""

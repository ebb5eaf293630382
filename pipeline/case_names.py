"""Choosing tests by name, as pytest's -k does: parts of names with `and`, `or`, `not` and brackets, in any case."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Chooser = Callable[[Sequence[str]], bool]
"""Whether a test is chosen, by its own name and those of what it is in."""

_TOKEN = re.compile(r"\s*(?:([()])|([^\s()]+))")


def chooser(text: str) -> Chooser:
    """What an expression chooses. Raises ValueError, with where it goes wrong, for what is none."""
    reader = _Reader(text)
    found = reader.either()
    reader.end()
    return found


class _Reader:
    """One way through an expression, by descent."""

    def __init__(self, text: str) -> None:
        self._tokens = [(match[1] or match[2], match.end(1 if match[1] else 2)) for match in _TOKEN.finditer(text)]
        self._at = 0

    def either(self) -> Chooser:
        """`a or b`."""
        parts = [self._both()]
        while self._takes("or"):
            parts.append(self._both())
        return lambda names: any(part(names) for part in parts)

    def end(self) -> None:
        """Nothing may follow."""
        if self._at < len(self._tokens):
            self._wrong("the end, `and` or `or`")

    def _both(self) -> Chooser:
        parts = [self._one()]
        while self._takes("and"):
            parts.append(self._one())
        return lambda names: all(part(names) for part in parts)

    def _one(self) -> Chooser:
        if self._takes("not"):
            inner = self._one()
            return lambda names: not inner(names)
        if self._takes("("):
            inner = self.either()
            if not self._takes(")"):
                self._wrong("`)`")
            return inner
        if self._at == len(self._tokens) or self._tokens[self._at][0] in ("and", "or", ")"):
            self._wrong("a part of a name")
        part = self._tokens[self._at][0].lower()
        self._at += 1
        return lambda names: any(part in name.lower() for name in names)

    def _takes(self, word: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at][0] == word
        self._at += found
        return found

    def _wrong(self, wanted: str) -> None:
        if self._at == len(self._tokens):
            msg = f"{wanted} is missing at the end"
        else:
            word, end = self._tokens[self._at]
            msg = f"{wanted} is expected, found `{word}` at character {end - len(word) + 1}"
        raise ValueError(msg)

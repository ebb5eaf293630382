"""Classes of the session's JVM by their full names."""

from __future__ import annotations

from typing import Any


def java_class(jvm: Any, name: str) -> Any:
    """Return a class by its full name, such as `org.apache.hadoop.fs.Path`. `jvm` is the session's view.

    This takes one call. With attributes (`jvm.org.apache`), the JVM searches all jars for a class with the
    name of each package, which takes milliseconds.
    """
    return getattr(jvm, name)

"""The jars to which ivy.xml resolves, with their digests: `jars.lock`, written by `make lock`.

The first line has the digest of ivy.xml. A line has the configuration, the coordinates, the size in bytes,
and the digest of a jar.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from headrace.pipeline.errors import ServiceError

_HEAD = "# ivy.xml "


@dataclass(frozen=True, slots=True, order=True)
class LockedJar:
    """A jar of the configuration `group`."""

    group: str
    organisation: str
    module: str
    revision: str
    size: int
    digest: str

    @property
    def path(self) -> str:
        """The jar's place in a folder of jars."""
        return f"{self.group}/{self.organisation}_{self.module}-{self.revision}.jar"

    @property
    def dependency(self) -> str:
        """The jar in an Ivy file, without what it depends on."""
        values = {"org": self.organisation, "name": self.module, "rev": self.revision}
        attributes = " ".join(f"{name}={quoteattr(value)}" for name, value in values.items())
        return f'<dependency {attributes} conf="{self.group}->default" transitive="false"/>'


def read_lock(path: Path) -> list[LockedJar]:
    """Return the jars of a lock file."""
    jars = []
    for line in path.read_text().splitlines()[1:]:
        group, coordinates, size, digest = line.split()
        organisation, module, revision = coordinates.split(":")
        jars.append(LockedJar(group, organisation, module, revision, int(size), digest))
    return jars


def read_ivy_digest(path: Path) -> str:
    """Return the digest of the Ivy file from which a lock file was written."""
    return path.read_text().partition("\n")[0].removeprefix(_HEAD)


def write_lock(path: Path, ivy: Path, folder: Path) -> None:
    """Write the lock file for the jars of a folder `group/organisation/module/revision`."""
    lines = [f"{_HEAD}{compute_digest(ivy)}"]
    for jar in sorted(folder.glob("*/*/*/*/*.jar")):
        group, *coordinates = jar.parent.relative_to(folder).parts
        lines.append(f"{group} {':'.join(coordinates)} {jar.stat().st_size} {compute_digest(jar)}")
    path.write_text("\n".join([*lines, ""]))


def compute_digest(path: Path) -> str:
    """Return the digest of a file, as lock files have it."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def check_jars(jars: Iterable[LockedJar], folder: Path) -> None:
    """Raise ServiceError if a jar of the folder is missing or is not the one of the lock file."""
    for jar in jars:
        path = folder / jar.path
        if not path.is_file() or compute_digest(path) != jar.digest:
            state = "another content than in jars.lock" if path.is_file() else "not arrived"
            msg = f"the jar {jar.organisation}:{jar.module}:{jar.revision} has {state}"
            raise ServiceError(msg, hint="Does a mirror replace jars? Set HEADRACE_IVY_SETTINGS to another.")


def divide_jars(jars: Iterable[LockedJar], number: int) -> list[list[LockedJar]]:
    """Divide jars into at most `number` parts of similar size, the same ones each time."""
    parts: list[list[LockedJar]] = [[] for _ in range(number)]
    for jar in sorted(jars, key=lambda jar: (-jar.size, jar)):
        # A jar also costs the requests for its descriptors.
        min(parts, key=lambda part: sum(jar.size + 2_000_000 for jar in part)).append(jar)
    return [part for part in parts if part]


def format_ivy_file(jars: Sequence[LockedJar]) -> str:
    """Return an Ivy file of exactly these jars."""
    groups = "".join(f"<conf name={quoteattr(group)}/>" for group in sorted({jar.group for jar in jars}))
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '<info organisation="headrace" module="part"/>',
            f"<configurations>{groups}</configurations>",
            "<dependencies>",
            *(jar.dependency for jar in jars),
            "</dependencies>",
            "</ivy-module>",
        ]
    )

"""`headrace init`: a folder with a pipeline that runs at once, from a template."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template

from rich.prompt import Prompt

from headrace.console import err, out
from headrace.pipeline.errors import UserError

_WORD = re.compile(r"[a-z][a-z0-9_]{0,47}")


class TemplateName(StrEnum):
    """The templates, by the names of their folders."""

    CLICKHOUSE_KAFKA_POSTGRES = "clickhouse-kafka-postgres"
    KAFKA_DELTA = "kafka-delta"
    FILES_ICEBERG = "files-iceberg"


class Servers(StrEnum):
    """Where the pipeline's servers come from."""

    LOCAL = "local"
    CONTAINERS = "containers"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a template is about. `columns` are those that the key cannot be called, `services` what starts the local servers that it needs."""

    about: str
    name: str
    key: str
    columns: frozenset[str]
    services: str = ""
    look: str = ""


KINDS: Mapping[TemplateName, Kind] = {
    TemplateName.CLICKHOUSE_KAFKA_POSTGRES: Kind(
        "orders from a ClickHouse table and a Kafka topic into Postgres",
        "orders",
        "id",
        frozenset({"customer", "cents", "amount", "placed_at"}),
        "headrace services up",
        look='\n\n```bash\nheadrace services psql -c "SELECT count(*), sum(amount) FROM $name"\n```',
    ),
    TemplateName.KAFKA_DELTA: Kind(
        "readings of sensors from a Kafka topic into a Delta table",
        "readings",
        "sensor",
        frozenset({"celsius", "fahrenheit", "measured_at"}),
        "headrace services up kafka",
    ),
    TemplateName.FILES_ICEBERG: Kind(
        "sales from CSV files into an Iceberg table",
        "sales",
        "id",
        frozenset({"shop", "cents", "euros", "sold_at"}),
    ),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; None is what is asked on a terminal, and else the default."""

    template: TemplateName | None = None
    name: str | None = None
    key: str | None = None
    servers: Servers | None = None


def init(folder: Path, wanted: Wanted, *, ask: bool) -> None:
    """Writes a template's files to a folder. Raises UserError, and has written nothing, where one of them is there already."""
    template, name, key, servers = _answers(wanted, ask=ask and sys.stdin.isatty())
    texts = render(template, name, key, servers)
    write_new(folder, texts, "Choose another folder: headrace init DIR. Or another name: --name NAME.")
    console = out()
    console.print(f"{folder}: {KINDS[template].about}", markup=False)
    for path in texts:
        console.print(f"  {path}", markup=False)
    console.print("Next:" if folder == Path() else f"Next, in {folder}:", markup=False)
    for line in _commands(texts["README.md"]):
        console.print(f"  {line}", markup=False)


def render(template: TemplateName, name: str, key: str, servers: Servers) -> dict[str, str]:
    """The files of a template by their paths. Raises UserError for a name or a key that cannot be."""
    kind = KINDS[template]
    _check("name", name, frozenset())
    _check("key", key, kind.columns)
    local = servers is Servers.LOCAL
    values = {
        "name": name,
        "key": key,
        "comment": "# " if local else "",
        "hint": ": take the # away to use them" if local else "",
        "servers": kind.services if local else "docker compose up -d --wait",
        "look": Template(kind.look).substitute(name=name) if local else "",
    }
    found = {}
    for part in ("common", template):
        for file in sorted((files("headrace") / "templates" / part).iterdir(), key=lambda file: file.name):
            if file.is_file():
                found[_target(file.name, name)] = Template(file.read_text(encoding="utf-8")).substitute(values)
    return dict(sorted(found.items()))


def _target(file: str, name: str) -> str:
    renamed = {"gitignore": ".gitignore", "pipeline.yaml": f"pipelines/{name}.yaml", "pipeline.test.yaml": f"pipelines/{name}.test.yaml"}
    return renamed.get(file, file)


def _check(what: str, value: str, taken: frozenset[str]) -> None:
    if not _WORD.fullmatch(value):
        msg = f"`{value}` cannot be the {what}: it names tables, topics and columns everywhere"
        raise UserError(msg, hint="Lower-case letters, digits and `_`, beginning with a letter; at most 48.")
    if value in taken:
        msg = f"`{value}` cannot be the {what}: the template has a column of that name"
        raise UserError(msg, hint=f"Its columns are {', '.join(sorted(taken))}.")


def _answers(wanted: Wanted, *, ask: bool) -> tuple[TemplateName, str, str, Servers]:
    """What was given, asked for, or the default, in this order."""
    template = wanted.template
    if template is None:
        if ask:
            for choice, kind in KINDS.items():
                err().print(f"  {choice}: {kind.about}", markup=False)
        template = TemplateName(_asked("Template", next(iter(KINDS)), ask=ask, choices=list(KINDS)))
    kind = KINDS[template]
    name = wanted.name or _asked("Name of the pipeline", kind.name, ask=ask, check=lambda text: _check("name", text, frozenset()))
    key = wanted.key or _asked("Its key column", kind.key, ask=ask, check=lambda text: _check("key", text, kind.columns))
    servers = wanted.servers
    if servers is None:
        servers = Servers(_asked("Servers", Servers.LOCAL, ask=ask and bool(kind.services), choices=list(Servers)))
    return template, name, key, servers


def _asked(what: str, default: str, *, ask: bool, choices: list[str] | None = None, check: Callable[[str], None] = lambda _: None) -> str:
    """The answer to one question, put again until it can be one."""
    while ask:
        answer = Prompt.ask(what, console=err(), choices=choices and [str(choice) for choice in choices], default=str(default))
        try:
            check(answer)
        except UserError as error:
            err().print(str(error), markup=False, soft_wrap=True)
        else:
            return answer
    return default


def write_new(folder: Path, texts: Mapping[str, str], hint: str) -> None:
    """Writes files by their paths in a folder. Raises UserError, with `hint`, and has written nothing, where one is there already."""
    there = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    if there:
        msg = f"{', '.join(str(folder / path) for path in there)} {'is' if len(there) == 1 else 'are'} there already; nothing was written"
        raise UserError(msg, hint=hint)
    written: list[Path] = []
    try:
        for path, text in texts.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:  # whatever came meanwhile stays as it is
                written.append(target)
                file.write(text)
    except OSError as error:
        for target in written:
            target.unlink(missing_ok=True)
        msg = f"{error.filename or folder} cannot be written: {error.strerror}; nothing was written"
        raise UserError(msg, hint=hint.partition(" Or ")[0]) from None


def _commands(readme: str) -> list[str]:
    """The commands of a README, in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]

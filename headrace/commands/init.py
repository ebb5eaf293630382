"""`headrace init`: create a ready-to-run pipeline from a template."""

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

from headrace.console import stderr_console, stdout_console
from headrace.pipeline.errors import UserError

_WORD = re.compile(r"[a-z][a-z0-9_]{0,47}")


class TemplateName(StrEnum):
    """The templates, by the names of their folders."""

    CLICKHOUSE_KAFKA_POSTGRES = "clickhouse-kafka-postgres"
    KAFKA_DELTA = "kafka-delta"
    FILES_ICEBERG = "files-iceberg"


class Servers(StrEnum):
    """The servers of the pipeline: local processes or containers."""

    LOCAL = "local"
    CONTAINERS = "containers"


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """Properties of a template.

    `columns` are names that the key cannot have, and `start_command` starts the local servers that it needs.
    """

    description: str
    name: str
    key: str
    columns: frozenset[str]
    start_command: str = ""
    inspect_command: str = ""


TEMPLATES: Mapping[TemplateName, TemplateSpec] = {
    TemplateName.CLICKHOUSE_KAFKA_POSTGRES: TemplateSpec(
        "orders from a ClickHouse table and a Kafka topic into Postgres",
        "orders",
        "id",
        frozenset({"customer", "cents", "amount", "placed_at"}),
        "headrace services up",
        inspect_command='\n\n```bash\nheadrace services psql -c "SELECT count(*), sum(amount) FROM'
        ' $name"\n```',
    ),
    TemplateName.KAFKA_DELTA: TemplateSpec(
        "readings of sensors from a Kafka topic into a Delta table",
        "readings",
        "sensor",
        frozenset({"celsius", "fahrenheit", "measured_at"}),
        "headrace services up kafka",
    ),
    TemplateName.FILES_ICEBERG: TemplateSpec(
        "sales from CSV files into an Iceberg table",
        "sales",
        "id",
        frozenset({"shop", "cents", "euros", "sold_at"}),
    ),
}


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of the command. None means: prompt on a terminal, else the default."""

    template: TemplateName | None = None
    name: str | None = None
    key: str | None = None
    servers: Servers | None = None


def init(folder: Path, options: InitOptions, *, ask: bool) -> None:
    """Write a template's files to a folder. Raise UserError, without writing anything, if a file exists."""
    template, name, key, servers = _choose_options(options, ask=ask and sys.stdin.isatty())
    texts = render(template, name, key, servers)
    write_new_files(folder, texts, "Choose another folder: headrace init DIR. Or another name: --name NAME.")
    console = stdout_console()
    console.print(f"{folder}: {TEMPLATES[template].description}", markup=False)
    for path in texts:
        console.print(f"  {path}", markup=False)
    console.print("Next:" if folder == Path() else f"Next, in {folder}:", markup=False)
    for line in _readme_commands(texts["README.md"]):
        console.print(f"  {line}", markup=False)


def render(template: TemplateName, name: str, key: str, servers: Servers) -> dict[str, str]:
    """Return the files of a template by path. Raise UserError for an invalid name or key."""
    spec = TEMPLATES[template]
    _check_word("name", name, frozenset())
    _check_word("key", key, spec.columns)
    local = servers is Servers.LOCAL
    values = {
        "name": name,
        "key": key,
        "comment": "# " if local else "",
        "hint": ": take the # away to use them" if local else "",
        "servers": spec.start_command if local else "docker compose up -d --wait",
        "look": Template(spec.inspect_command).substitute(name=name) if local else "",
    }
    rendered = {}
    for part in ("common", template):
        for file in sorted((files("headrace") / "templates" / part).iterdir(), key=lambda file: file.name):
            if file.is_file():
                rendered[_target_path(file.name, name)] = Template(
                    file.read_text(encoding="utf-8")
                ).substitute(values)
    return dict(sorted(rendered.items()))


def _target_path(file: str, name: str) -> str:
    renamed = {
        "gitignore": ".gitignore",
        "pipeline.yaml": f"pipelines/{name}.yaml",
        "pipeline.test.yaml": f"pipelines/{name}.test.yaml",
    }
    return renamed.get(file, file)


def _check_word(what: str, value: str, taken: frozenset[str]) -> None:
    if not _WORD.fullmatch(value):
        msg = f"`{value}` cannot be the {what}: it names tables, topics and columns everywhere"
        raise UserError(msg, hint="Lower-case letters, digits and `_`, beginning with a letter; at most 48.")
    if value in taken:
        msg = f"`{value}` cannot be the {what}: the template has a column of that name"
        raise UserError(msg, hint=f"Its columns are {', '.join(sorted(taken))}.")


def _choose_options(options: InitOptions, *, ask: bool) -> tuple[TemplateName, str, str, Servers]:
    """Return the options: given, entered at a prompt, or the default, in this order."""
    template = options.template
    if template is None:
        if ask:
            for choice, spec in TEMPLATES.items():
                stderr_console().print(f"  {choice}: {spec.description}", markup=False)
        template = TemplateName(_prompt("Template", next(iter(TEMPLATES)), ask=ask, choices=list(TEMPLATES)))
    spec = TEMPLATES[template]
    name = options.name or _prompt(
        "Name of the pipeline", spec.name, ask=ask, check=lambda text: _check_word("name", text, frozenset())
    )
    key = options.key or _prompt(
        "Its key column", spec.key, ask=ask, check=lambda text: _check_word("key", text, spec.columns)
    )
    servers = options.servers
    if servers is None:
        servers = Servers(
            _prompt("Servers", Servers.LOCAL, ask=ask and bool(spec.start_command), choices=list(Servers))
        )
    return template, name, key, servers


def _prompt(
    what: str,
    default: str,
    *,
    ask: bool,
    choices: list[str] | None = None,
    check: Callable[[str], None] = lambda _: None,
) -> str:
    """Prompt until the answer is valid. Without `ask` return the default."""
    while ask:
        answer = Prompt.ask(
            what,
            console=stderr_console(),
            choices=choices and [str(choice) for choice in choices],
            default=str(default),
        )
        try:
            check(answer)
        except UserError as error:
            stderr_console().print(str(error), markup=False, soft_wrap=True)
        else:
            return answer
    return default


def write_new_files(folder: Path, texts: Mapping[str, str], hint: str) -> None:
    """Write files to a folder. Raise UserError with `hint`, without writing anything, if one exists."""
    existing = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    if existing:
        msg = (
            f"{', '.join(str(folder / path) for path in existing)}"
            f" {'is' if len(existing) == 1 else 'are'} there already; nothing was written"
        )
        raise UserError(msg, hint=hint)
    written: list[Path] = []
    try:
        for path, text in texts.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open(
                "x", encoding="utf-8"
            ) as file:  # "x" does not overwrite a file that appeared meanwhile
                written.append(target)
                file.write(text)
    except OSError as error:
        for target in written:
            target.unlink(missing_ok=True)
        msg = f"{error.filename or folder} cannot be written: {error.strerror}; nothing was written"
        raise UserError(msg, hint=hint.partition(" Or ")[0]) from None


def _readme_commands(readme: str) -> list[str]:
    """Return the shell commands of a README in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]

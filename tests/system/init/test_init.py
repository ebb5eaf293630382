"""`headrace init`: the files are valid, consistent, and run."""

from __future__ import annotations

import ast
import os
import pty
import re
import secrets
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from helpers.checkout import ROOT
from helpers.forked_process import run_command
from helpers.spark_settings import PRODUCT_SPARK_ENVIRONMENT
from ruamel.yaml import YAML

from headrace.commands.init import TEMPLATES, Servers, TemplateName, render
from headrace.commands.plugin import NewPluginType
from headrace.pipeline.config.settings import load_settings
from headrace.pipeline.errors import UserError
from headrace.pipeline.file.discovery import find_pipeline_files
from headrace.pipeline.file.loader import parse_pipeline
from headrace.services import Services

HEADRACE = (sys.executable, "-m", "headrace")
BOTH = pytest.mark.parametrize("servers", list(Servers))
SERVED = pytest.mark.parametrize(
    "template", [template for template, kind in TEMPLATES.items() if kind.start_command]
)
EACH = pytest.mark.parametrize("template", list(TemplateName))


def clean() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADRACE", "STREAMLING", "COLUMNS"))
    }


def headrace(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(*args, env=clean() | env, cwd=cwd)


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@EACH
@BOTH
def test_every_file_parses_and_no_placeholder_is_left(template: TemplateName, servers: Servers) -> None:
    texts = render(template, "carts", "nr", servers)
    assert {
        "pipelines/carts.yaml",
        "pipelines/carts.test.yaml",
        "config.yaml",
        "README.md",
        ".gitignore",
        "seed.py",
    } <= set(texts)
    for path, text in texts.items():
        assert "$" not in text, path
        assert text.endswith("\n"), path
        if path.endswith(".yaml"):
            YAML(typ="safe").load(text)
        if path.endswith(".py"):
            ast.parse(text)
    file = parse_pipeline(texts["pipelines/carts.yaml"], "carts.yaml")
    assert file.name == "carts"
    tests = YAML(typ="safe").load(texts["pipelines/carts.test.yaml"])
    nodes = {*file.model.sources, *file.model.transforms, *file.model.sinks}
    assert tests["pipeline"] == "carts.yaml"
    assert len(tests["tests"]) >= 2
    for case in tests["tests"].values():
        assert {*case["given"], *case["expect"]} <= nodes
        assert all(
            "nr" in row
            for part in ("given", "expect")
            for node in case[part].values()
            for row in node["rows"]
        )


@EACH
def test_a_key_cannot_be_called_as_a_column(template: TemplateName) -> None:
    texts = render(template, "carts", "zz", Servers.LOCAL)
    (source,) = parse_pipeline(texts["pipelines/carts.yaml"], "x").model.sources.values()
    for text in re.findall(r"schema:\n((?: +\w+: \w+\n)+)", texts["pipelines/carts.yaml"]):
        assert {name for name in re.findall(r"(\w+):", text) if name != "zz"} <= TEMPLATES[template].columns
    assert source.primary_key == ("zz",)
    for column in TEMPLATES[template].columns:
        with pytest.raises(UserError, match="has a column of that name"):
            render(template, "carts", column, Servers.LOCAL)


@pytest.mark.parametrize(
    "name", ["", "Orders", "1st", "a-b", "a.b", "a b", "x" * 49, "ä", "a'; DROP TABLE t", "../up"]
)
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    for pair in ((name, "id"), ("orders", name)):
        with pytest.raises(UserError, match="cannot be the"):
            render(TemplateName.CLICKHOUSE_KAFKA_POSTGRES, *pair, Servers.LOCAL)


@SERVED
def test_compose_agrees_with_the_settings(
    template: TemplateName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = render(template, "carts", "id", Servers.CONTAINERS)
    compose = YAML(typ="safe").load(texts["compose.yaml"])["services"]
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - clean().keys():
        monkeypatch.delenv(name)
    Path("config.yaml").write_text(texts["config.yaml"])
    settings = load_settings()
    keys = set(YAML(typ="safe").load(texts["config.yaml"]))
    assert keys == {
        {"clickhouse": "clickhouse_source", "kafka": "kafka_source", "postgres": "postgres_sink"}[name]
        for name in compose
    }
    for service in compose.values():
        assert re.fullmatch(r"[a-z/-]+:\d+(\.\d+)+", service["image"]), "an image without an exact tag"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["healthcheck"]["test"]
    ports = {name: service["ports"][0].split(":")[1] for name, service in compose.items()}
    assert settings.kafka_source.brokers == f"127.0.0.1:{ports['kafka']}"
    assert (
        compose["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
        == f"PLAINTEXT://{settings.kafka_source.brokers}"
    )
    if "clickhouse" in compose:
        env = compose["clickhouse"]["environment"]
        assert urlsplit(settings.clickhouse_source.url).netloc == f"127.0.0.1:{ports['clickhouse']}"
        assert (env["CLICKHOUSE_USER"], env["CLICKHOUSE_PASSWORD"]) == (
            settings.clickhouse_source.user,
            settings.clickhouse_source.password.get_secret_value(),
        )
    if "postgres" in compose:
        env, sink = compose["postgres"]["environment"], settings.postgres_sink
        assert (sink.host, str(sink.port)) == ("127.0.0.1", ports["postgres"])
        assert (env["POSTGRES_USER"], env["POSTGRES_PASSWORD"], env["POSTGRES_DB"]) == (
            sink.user,
            sink.password.get_secret_value(),
            sink.db,
        )
    local = render(template, "carts", "id", Servers.LOCAL)["config.yaml"]
    assert YAML(typ="safe").load(local) is None, "local servers are found by themselves"
    assert [line.removeprefix("# ") for line in local.splitlines()[-len(keys) :]] == texts[
        "config.yaml"
    ].splitlines()[-len(keys) :]


def test_images_are_those_of_the_project() -> None:
    own = YAML(typ="safe").load((ROOT / "docker/compose.yaml").read_text())["services"]
    for template, kind in TEMPLATES.items():
        texts = render(template, "a", "b", Servers.LOCAL)
        assert ("compose.yaml" in texts) == bool(kind.start_command)
        for name, service in (
            YAML(typ="safe").load(texts.get("compose.yaml", "services: {}"))["services"].items()
        ):
            assert service["image"] == own[name]["image"]


@EACH
def test_it_writes_what_can_be_validated_at_once(template: TemplateName, tmp_path: Path) -> None:
    result = headrace("init", "new/place", "--template", template, "--name", "carts", "--yes", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    folder = tmp_path / "new/place"
    assert tree(folder) == render(template, "carts", TEMPLATES[template].key, Servers.LOCAL)
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    command, _ = re.findall(r"headrace (validate .+)", result.stdout)
    done = headrace(*command.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in find_pipeline_files([folder / "pipelines"])] == ["carts.yaml"], (
        "Dagster takes the tests for a pipeline"
    )
    assert f"headrace {command}" in (folder / "README.md").read_text()


def test_nothing_is_asked_where_nobody_can_answer(tmp_path: Path) -> None:
    result = headrace("init", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert tree(tmp_path) == render(TemplateName.CLICKHOUSE_KAFKA_POSTGRES, "orders", "id", Servers.LOCAL)
    assert "\nNext:\n" in result.stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines/orders.yaml").symlink_to("nowhere")
    (tmp_path / "README.md").write_text("mine")
    result = headrace("init", "--yes", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith(
        "error[HR100]: README.md, pipelines/orders.yaml are there already; nothing was written\n"
    )
    assert tree(tmp_path) == {"README.md": "mine"}
    assert (tmp_path / "pipelines/orders.yaml").is_symlink()
    (tmp_path / "README.md").unlink()
    (tmp_path / "pipelines/orders.yaml").unlink()
    assert headrace("init", "--yes", cwd=tmp_path).returncode == 0
    assert "7 " not in headrace("init", "--yes", cwd=tmp_path).stdout


def test_a_folder_that_cannot_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "pipelines").write_text("a file")
    result = headrace("init", "--yes", cwd=tmp_path)
    assert result.returncode == 1
    assert "nothing was written" in result.stderr
    assert tree(tmp_path) == {"pipelines": "a file"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--template", "mysql"),
            "'mysql' is not one of clickhouse-kafka-postgres, kafka-delta, files-iceberg",
        ),
        (("--servers", "cloud"), "'cloud' is not one of local, containers"),
    ],
)
def test_an_unknown_choice_is_wrong_usage(args: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = headrace("init", *args, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert not tree(tmp_path)


class Terminal:
    """A command on a terminal, with answers as a person gives them."""

    def __init__(self, cwd: Path, *args: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*HEADRACE, *args],
            cwd=cwd,
            env=clean() | {"NO_COLOR": "1", "TERM": "dumb"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.output = ""

    def answer(self, question: str, text: str) -> None:
        """Waits for the question, then answers it."""
        before = len(self.output)
        while question not in self.output[before:]:
            self.output += self._more()
        os.write(self.master, f"{text}\n".encode())

    def end(self) -> int:
        """Everything that is still said, and the exit code."""
        while more := self._more(end="ok"):
            self.output += more
        os.close(self.master)
        return self.process.wait(timeout=300)

    def _more(self, end: str = "") -> str:
        try:
            result = os.read(self.master, 4096).decode()
        except OSError:  # Linux: nobody is at the other side any more
            result = ""
        assert result or end, f"it ended with {self.output!r}"
        return result


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "asked"
    folder.mkdir()
    return folder


def test_questions_on_a_terminal_until_the_answer_can_be_one(place: Path) -> None:
    terminal = Terminal(place, "init")
    terminal.answer("Template", "kafka-delta")
    terminal.answer("Name of the pipeline", "Not A Name")
    terminal.answer("Name of the pipeline", "meters")
    terminal.answer("key column", "celsius")
    terminal.answer("key column", "")
    terminal.answer("Servers", "containers")
    assert terminal.end() == 0, terminal.output
    assert "`Not A Name` cannot be the name" in terminal.output
    assert "has a column of that name" in terminal.output
    assert tree(place) == render(TemplateName.KAFKA_DELTA, "meters", "sensor", Servers.CONTAINERS)


def test_what_is_given_is_not_asked(place: Path) -> None:
    terminal = Terminal(place, "init", "--template", "kafka-delta", "--key", "meter", "--servers", "local")
    terminal.answer("Name of the pipeline", "")
    assert terminal.end() == 0, terminal.output
    assert "Template" not in terminal.output
    assert "Servers" not in terminal.output
    assert tree(place) == render(TemplateName.KAFKA_DELTA, "readings", "meter", Servers.LOCAL)


def test_yes_asks_nothing_on_a_terminal(place: Path) -> None:
    terminal = Terminal(place, "init", "--yes")
    assert terminal.end() == 0, terminal.output
    assert tree(place) == render(TemplateName.CLICKHOUSE_KAFKA_POSTGRES, "orders", "id", Servers.LOCAL)


def test_templates_are_part_of_the_package() -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "headrace"
    ]
    packaged_files = {
        path for pattern in packaged for path in (ROOT / "headrace").glob(pattern) if path.is_file()
    }
    files = {path for path in (ROOT / "headrace/templates").rglob("*") if path.is_file()}
    assert {path.parent.name for path in files} == {
        "common",
        *TemplateName,
        "plugin-common",
        *(f"plugin-{kind}" for kind in NewPluginType),
    }
    assert packaged_files == files


# --- a whole run by the commands of the README


def readme(folder: Path) -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.slow  # docs/get-started/quickstart.md is the daily sample: it runs such commands
@EACH
def test_the_commands_of_the_readme_lead_to_the_rows(
    template: TemplateName, services: Services, tmp_path: Path
) -> None:
    name = f"made_{secrets.token_hex(4)}"
    env = {
        "HEADRACE_HOME": str(services.home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    } | PRODUCT_SPARK_ENVIRONMENT
    made = headrace("init", "--template", template, "--name", name, "--key", "nr", cwd=tmp_path, **env)
    assert made.returncode == 0, made.stderr
    commands = readme(tmp_path)
    assert [f"  {line}" for line in commands] == made.stdout.split("Next:\n")[1].splitlines()
    for line in commands:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=clean() | env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    CHECKS[template](services, tmp_path, name)


def _orders(services: Services, _folder: Path, name: str) -> None:
    wanted = {number: (f"c{number % 100}", number * 7 % 5000) for number in range(10_000)}
    wanted |= {10_000: ("c1", 500), 10_001: ("c2", 900), 7: ("c7", 1)}
    del wanted[8]
    with psycopg.connect(services.postgres.conninfo()) as connection:
        rows = connection.execute(f"SELECT nr, customer, amount * 100 FROM {name}").fetchall()  # type: ignore[arg-type]
        connection.execute(f"DROP TABLE {name}")  # type: ignore[arg-type]
    assert {nr: (customer, int(cents)) for nr, customer, cents in rows} == wanted
    assert len(rows) == len(wanted)


def _readings(_services: Services, folder: Path, name: str) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    result = (
        QueryBuilder()
        .register("readings", DeltaTable(folder / "lake" / name))
        .execute("SELECT nr, celsius, fahrenheit FROM readings")
    )
    rows = pa.table(result.read_all()).to_pylist()
    last = {f"s{number % 50}": number % 40 - 5.0 for number in range(1000)}
    assert {row["nr"]: (row["celsius"], row["fahrenheit"]) for row in rows} == {
        nr: (c, c * 9 / 5 + 32) for nr, c in last.items()
    }
    assert len(rows) == 50


def _sales(_services: Services, folder: Path, name: str) -> None:
    code = (
        "import sys\nfrom headrace.pipeline.config.settings import load_settings\n"
        "from headrace.jobs.spark.session import start_session, stop_session\n"
    )
    code += "spark = start_session(load_settings(), ['iceberg'])\n"
    code += (
        "for k, v in {'': 'org.apache.iceberg.spark.SparkCatalog', '.type': 'hadoop', '.warehouse':"
        " 'warehouse'}.items():\n"
    )
    code += "    spark.conf.set(f'spark.sql.catalog.lake{k}', v)\n"
    code += (
        "rows = spark.sql(f'SELECT nr, shop, CAST(euros * 100 AS INT) FROM"
        " lake.shop.{sys.argv[1]}').collect()\n"
    )
    code += "print([tuple(row) for row in rows]); stop_session(spark)"
    done = subprocess.run(
        [sys.executable, "-c", code, name],
        cwd=folder,
        env=clean() | PRODUCT_SPARK_ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wanted = [
        (m * 1000 + i, ("NORTH", "SOUTH")[i % 2], i + 1) for m in (1, 2, 3) for i in range(1000) if i % 10
    ]
    assert sorted(ast.literal_eval(done.stdout.splitlines()[-1])) == wanted
    assert len(wanted) == 2700


CHECKS = {
    TemplateName.CLICKHOUSE_KAFKA_POSTGRES: _orders,
    TemplateName.KAFKA_DELTA: _readings,
    TemplateName.FILES_ICEBERG: _sales,
}

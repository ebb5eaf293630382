"""The contents of the installed package.

Built from an sdist, installed beside nothing of the checkout, started from another folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from helpers.checkout import ROOT

LOCKS = ("requirements.lock", "requirements-dev.lock")
ROOMS = ("orchestration", "jobs", "connectors", "pipeline")


def tracked() -> set[str]:
    """Files of the package that git knows, by the path that they are installed under."""
    listed = subprocess.run(
        ["git", "ls-files", "headrace", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return {
        path if path.startswith("headrace/") else f"headrace/{path}"
        for path in listed
        if path not in {f"headrace/{room}" for room in ROOMS}
    }


@pytest.fixture(scope="module")
def clean_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fresh clone has: the tracked files, links as links, nothing that was built here before."""
    copy = tmp_path_factory.mktemp("clone")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    archive = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=names, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=copy, input=archive, check=True)
    return copy


@pytest.fixture(scope="module")
def built(clean_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel made from what is in the sdist."""
    out, unpacked = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("unpacked")
    build = [sys.executable, "-m", "build", "--no-isolation"]
    subprocess.run(
        [*build, "--sdist", "--outdir", str(out), str(clean_copy)], check=True, capture_output=True
    )
    (sdist,) = out.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(unpacked)], check=True)
    (source,) = unpacked.iterdir()
    subprocess.run([*build, "--wheel", "--outdir", str(out), str(source)], check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def test_wheel_has_every_tracked_file_once_and_no_other(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        kinds = {info.filename: info.external_attr >> 16 & 0o170000 for info in archive.infolist()}
    assert len(names) == len(set(names))
    assert set(names) == tracked()
    assert set(kinds.values()) == {0o100000}, "the wheel holds something that is no plain file"


def test_sdist_holds_rooms_as_real_folders(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        members = {
            member.name.split("/", 1)[1]: member for member in archive.getmembers() if "/" in member.name
        }
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert tracked() <= set(members)


def test_the_installed_command_works_from_another_folder(built: tuple[Path, Path], tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place, symlinks=True)
    site = next(place.glob("lib/python*/site-packages"))
    # Dependencies of this environment, seen after the new one's own packages; the editable install's hook is
    # not among them.
    (site / "dependencies.pth").write_text(f"{_without_headrace(tmp_path)}\n")
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--python",
        str(place / "bin" / "python"),
    ]
    subprocess.run([*install, str(built[1])], check=True, capture_output=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE", "PYTHON"))}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(command: str, *args: str) -> str:
        done = subprocess.run(
            [place / "bin" / command, *args],
            cwd=elsewhere,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert (
        run(
            "python",
            "-c",
            "import headrace, headrace.jobs.spark.jars as j; print(headrace.__file__, j.__file__)",
        ).count(str(site))
        == 2
    )
    assert "Run pipelines" in run("headrace", "--help")
    assert ": valid" in run("headrace", "validate", str(site / "headrace" / "demo" / "flights.yaml"))
    read = (
        "from importlib.resources import files; print((files('headrace.jobs.spark') / 'ivy.xml').read_text())"
    )
    assert "spark-sql-kafka" in run("python", "-c", read)


def _without_headrace(tmp_path: Path) -> Path:
    """This environment's packages, linked one by one, without this project."""
    view = tmp_path / "dependencies"
    view.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "headrace" not in path.name and path.suffix != ".pth":
            (view / path.name).symlink_to(path)
    return view


def test_the_two_lock_files_agree() -> None:
    """`make demo` installs the first, developers both: whatever is in both is the same release."""
    pins = [
        set(re.findall(r"^[\w.-]+==[^\s;\\]+", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS
    ]
    names = [{pin.partition("==")[0] for pin in result} for result in pins]
    assert "pytest-xdist" in names[1] - names[0]
    assert names[0] < names[1]
    assert pins[0] <= pins[1]

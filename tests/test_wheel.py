"""The wheel has everything that gpq needs, and installs in an empty environment without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import gpq

pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
ROOT = Path(__file__).parents[1]
OFFLINE = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
SCRIPTS = f"goodput_queue-{gpq.__version__}.data/data/share/man/man1"


def run(*argv: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, argv)), env=env or OFFLINE, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def committed(*below: str) -> list[str]:
    """What git knows there."""
    return run("git", "ls-files", *below).splitlines()


def test_it_has_every_module_and_the_agent_and_the_types(files: set[str]) -> None:
    agent = [path.removeprefix("agent/") for path in committed("agent/gpq_agent")]
    assert {*committed("gpq/**.py", "gpq/schemas", "gpq/completions", "gpq/views"), *agent} <= files
    assert {"gpq/py.typed", "gpq_agent/py.typed"} <= files


def test_it_has_the_examples_that_the_demo_runs(files: set[str]) -> None:
    assert {f"gpq/{path}" for path in committed("examples")} <= files


def test_it_has_a_manual_page_for_each_command(files: set[str]) -> None:
    pages = {path.removeprefix("gpq/man/") for path in committed("gpq/man") if path.endswith(".1")}
    assert {f"{SCRIPTS}/{page}" for page in pages} <= files
    assert "gpq.1" in pages


def test_its_metadata_match_the_project(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [path for path in archive.namelist() if path.endswith(".dist-info/METADATA")]
        metadata = message_from_string(archive.read(name).decode())
        licences = [path for path in archive.namelist() if path.endswith("licenses/LICENSE")]
    assert (metadata["Name"], metadata["Version"]) == ("goodput-queue", gpq.__version__)
    assert metadata["Requires-Python"] == ">=3.10"
    assert len(licences) == 1
    assert (ROOT / "README.md").read_text() in metadata.get_payload() + "\n"


def test_gpq_and_its_agent_have_one_version() -> None:
    import gpq_agent

    assert gpq_agent.__version__ == gpq.__version__
    assert f"## {gpq.__version__} - " in (ROOT / "CHANGELOG.md").read_text()


def test_it_installs_in_an_empty_environment_without_a_network(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    bare = {"PATH": f"{home}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    asked = "import gpq, gpq_agent.wire, importlib.metadata as m; print(gpq.__file__, m.version('goodput-queue'))"
    assert run(python, "-c", asked, env=bare, cwd=tmp_path).split() == [
        str(next(home.glob("lib/python*/site-packages/gpq/__init__.py"))),
        gpq.__version__,
    ]
    # TAB needs no dependency. Everything else says what is missing, without a traceback.
    assert "submit" in run(home / "bin" / "gpq", "__complete", "bash", "sub", env=bare, cwd=tmp_path)
    other = subprocess.run(
        [home / "bin" / "gpq", "submit", "--help"], env=bare, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (other.returncode, other.stderr.startswith("gpq: ")) == (1, True)
    assert (home / "share" / "man" / "man1" / "gpq.1").is_file()

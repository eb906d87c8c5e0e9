"""Every example in the documents works: the tests run what a page types in order, and parse the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpq.cli.app import command, names
from gpq.config import parse
from gpq.policies.registry import POLICIES
from tests.docs.blocks import Block, blocks, commands, pages, words
from tests.e2e.harness import Daemon
from tests.words.texts import ROOT

FILES = Path(__file__).parent / "files"
SECONDS = 120
ALL = [block for page in pages() for block in blocks(page)]
SHOWN = sorted({(str(page.relative_to(ROOT)), line, text) for page in pages() for line, text in commands(page)})
LANGUAGES = {
    "sh",
    "console",
    "python",
    "diff",
    "toml",
    "yaml",
    "text",
    "mermaid",
    "json",
    "{eval-rst}",
    "{include}",
    "{toctree}",
}
TYPED = sorted({block.page for block in ALL if block.language == "sh"})


def test_every_block_says_what_it_is() -> None:
    assert [(block.page, block.line, block.language) for block in ALL if block.language not in LANGUAGES] == []


@pytest.mark.parametrize("page", TYPED)
def test_the_commands_of_a_page_work_in_order(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(FILES, folder)
    with Daemon(nodes={"gpu1": 4, "gpu2": 4}) as daemon:
        environment = {
            **daemon.environment(),
            "HOME": str(tmp_path),
            "PATH": f"{_tools(tmp_path)}:{os.environ['PATH']}",
        }
        try:
            for block in ALL:
                if block.page == page and block.language == "sh":
                    _run(block, folder, environment)
        finally:
            # the page stopped this daemon, and another one started
            if daemon.process is None or daemon.process.poll() is not None:
                _shell("gpq daemon stop", folder, environment)


def _tools(folder: Path) -> Path:
    """A folder for PATH with this gpq, and with this interpreter as `python`."""
    tools = folder / "bin"
    tools.mkdir()
    for name, program in (("gpq", f'{sys.executable} -m gpq "$@"'), ("python", f'{sys.executable} "$@"')):
        (tools / name).write_text(f"#!/bin/sh\nexec {program}\n")
        (tools / name).chmod(0o755)
    return tools


def _run(block: Block, folder: Path, environment: dict[str, str]) -> None:
    for line in block.text.splitlines():
        expected = int(line.rpartition("# exits ")[2]) if "# exits " in line else 0
        done = _shell(line, folder, environment)
        assert done.returncode == expected, f"{block.page}: {line}\n{done.stdout}{done.stderr}"


def _shell(line: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("page", "line", "text"), SHOWN)
def test_gpq_accepts_every_command_that_a_page_shows(page: str, line: int, text: str) -> None:
    typed = words(text)
    if typed is None or len(typed) < 2 or typed[1].startswith("-") or typed[1].isupper():
        return
    name, *arguments = typed[1:]
    assert name in names(), text
    found = command(name)
    inner = getattr(found, "commands", None)
    if inner is not None and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in inner, text
        found, inner = inner[arguments[0]], None
        arguments = arguments[1:]
    if not arguments or "--help" in arguments or inner is not None:
        return  # `gpq why` in a sentence only names the command
    if all(word.startswith("-") for word in arguments):  # `gpq logs --json` only names an option
        assert {*arguments} - {"--"} <= {name for parameter in found.params for name in parameter.opts}, text
        return
    with found.make_context(f"gpq {name}", list(arguments)):
        pass


@pytest.mark.parametrize(
    "block",
    [block for block in ALL if block.language in ("python", "toml", "yaml")],
    ids=lambda block: f"{block.page}:{block.line}",
)
def test_an_excerpt_of_a_file_is_valid(block: Block) -> None:
    if block.language == "python":
        compile(block.text, block.page, "exec")
    elif block.language == "yaml":
        assert yaml.safe_load(block.text)
    elif not block.text.startswith("[project]"):  # a pyproject.toml
        parse(block.text, policies=POLICIES)


def test_the_script_of_the_readme_trains_before_and_after_its_six_lines(tmp_path: Path) -> None:
    [block] = [block for block in ALL if block.page == "README.md" and block.language == "diff"]
    lines = block.text.splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    after = [line[1:] for line in lines if not line.startswith("-")]
    assert sum(line.startswith("+") for line in lines) == 6
    for number, script in enumerate((before, after)):
        path = tmp_path / f"script{number}.py"
        path.write_text("\n".join([*script, "print('loss', loss.item())"]).replace("(10)", "(1)"))
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "agent"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, path], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("loss ")

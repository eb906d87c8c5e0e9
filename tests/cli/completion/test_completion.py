"""What `gpq __complete` offers and what it costs. test_completion_shells tests the shells themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpq.cli import complete
from gpq.rpc.requests import Complete
from tests.cli.completion import LINES
from tests.cli.conftest import ROOT, Gpq
from tests.cli.served import Made, job, serving
from tests.generated.printed import PRINTED


def offered(gpq: Gpq, shell: str, *words: str) -> tuple[int, list[str]]:
    """What `gpq __complete` prints for the words after `gpq`. The last word is unfinished."""
    said = gpq("__complete", shell, *words)
    assert said.stderr == ""
    return said.returncode, said.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["st"], ["status"]),
        (["daemon", "st"], ["start", "stop", "status"]),
        (["status", "--co"], ["--color"]),
        (["status", "--color", "a"], ["auto", "always"]),
        (["status", "--color", "=", "n"], ["never"]),
        (["status", "--color", "="], ["auto", "always", "never"]),
        (["status", "--state", "c"], ["completed", "cancelled"]),
        (["cancel", ""], ["1", "2"]),
        (["cancel", "1,"], ["1,2"]),
        (["cancel", "1", ""], ["2"]),
        (["cancel", "--timeout", "5m", "2", ""], ["1"]),
        (["cancel", "--", "2", ""], ["1"]),
        (["show", "1", ""], []),  # `show` takes one job
        (["show", "1", "--js"], ["--json"]),
        (["completion", "--", ""], ["bash", "zsh", "fish"]),
        (["logs", "1", "--node", ""], ["1", "2"]),  # asks for servers, but the fake daemon has one list
        (
            ["nodes", ""],
            ["list", "add", "remove", "drain", "undrain", "reserve", "unreserve", "clean", "--help", "1", "2"],
        ),
        (["nodes", "1", "--js"], ["--json"]),
        (["nodes", "--js"], ["--json"]),
        (["nodes", "add", "--from"], ["--from-ssh-config"]),
        (["nodes", "remove", ""], ["1", "2"]),
        (["nodes", "drain", ""], ["1", "2"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["demo", "--policy", "s"], ["srtf", "sia", "slaq"]),
        (["simulate", "--policy", "sr"], ["srtf"]),
        (["simulate", "--policy", "fifo,s"], ["fifo,srtf", "fifo,sia", "fifo,slaq"]),
        (["submit", "--signal", "USR"], ["USR1", "USR2"]),
        (["schema", "h"], ["hold", "history"]),
        (["schema", "no"], ["nodes", "notify"]),
        (["schema", "nodes", "un"], ["undrain", "unreserve"]),
        (["schema", "daemon", ""], ["status"]),
        (["schema", "status", ""], []),
        (["schema", "nonsense", ""], []),
        (["schema", "--"], ["--help"]),
        (["nonsense", ""], []),
        (["daemon", "nonsense", ""], []),
    ],
)
def test_words_are_completed(gpq: Gpq, made: Made, words: list[str], found: list[str]) -> None:
    assert offered(gpq, "bash", *words) == (0, found)


@pytest.mark.parametrize(
    "words",
    [
        ["submit", ""],
        ["submit", "--gpus", "2", "tr"],
        ["submit", "train.py", "--da"],
        ["check", ""],
        ["check", "--steps", "9", "train.py", "--da"],
        ["submit", "./run.sh", "--", ""],
        ["config", "check", ""],
    ],
)
def test_file_names_are_left_to_the_shell(gpq: Gpq, made: Made, words: list[str]) -> None:
    assert offered(gpq, "zsh", *words) == (complete.FILES, [])


@pytest.mark.parametrize("words", [["--", ""], ["--gpus", "2", "--", "py"], ["--", "cat", "--fast", "--", "x"]])
def test_words_after_two_dashes_are_left_to_the_shell_as_a_command(gpq: Gpq, made: Made, words: list[str]) -> None:
    assert offered(gpq, "fish", "submit", *words) == (complete.COMMAND, [])


def test_jobs_are_offered_with_their_name_and_state(gpq: Gpq, made: Made) -> None:
    assert offered(gpq, "zsh:80", "show", "") == (0, ["1\t1  -- train-1 running", "2\t2  -- train-2 pending"])
    assert offered(gpq, "zsh:16", "show", "2") == (0, ["2\t2  -- train-2 p"])
    assert offered(gpq, "fish", "show", "") == (0, ["1\ttrain-1 running", "2\ttrain-2 pending"])
    rows = ["1  train-1 running", "2  train-2 pending"]
    assert offered(gpq, "bash:80", "show", "") == (0, [f"{row:40}" for row in rows])
    assert offered(gpq, "bash:80", "show", "2") == (0, ["2"])


def test_the_daemon_gets_the_command_and_the_words_on_the_line(gpq: Gpq, made: Made) -> None:
    for words in (["cancel", "3-7", "train", "9,1"], ["submit", "--after", "12:ok,"], ["nodes", "drain", ""]):
        offered(gpq, "zsh", *words)
    assert made.asked == [
        Complete("jobs", "1", "cancel", ["3-7", "train", "9"]),
        Complete("jobs", "", "submit", ["12"]),
        Complete("nodes"),
    ]


def test_bash_gets_ids_first_and_names_after_their_first_letter(gpq: Gpq, home: Path) -> None:
    jobs = [job(1, name="train"), job(12, name="3d-unet")]
    with serving(home, jobs, names=True):
        for words, found in ((("",), ["1", "12"]), (("1",), ["1", "12"]), (("t",), ["train"]), (("3",), ["3d-unet"])):
            assert offered(gpq, "bash", "cancel", *words) == (0, found)
        assert len(offered(gpq, "fish", "cancel", "")[1]) == 4


def test_completion_without_a_daemon_is_silent_and_starts_none(gpq: Gpq, home: Path) -> None:
    assert offered(gpq, "bash", "cancel", "") == (0, [])
    assert not (home / "gpq.sock").exists()
    assert not (home / "gpq.db").exists()


def test_job_names_cannot_harm_the_shell(gpq: Gpq, home: Path) -> None:
    with serving(home, [job(1, name="\x1b]0;x\x07$(touch pwned)")]):
        for shell in ("bash", "zsh", "fish"):
            said = gpq("__complete", shell, "show", "")
            assert "\x1b" not in said.stdout
            assert len(said.stdout.splitlines()) == 1


def schema_words(*words: str) -> list[tuple[str, str]]:
    found = complete.candidates(["schema", *words], "zsh")
    assert not isinstance(found, int)
    return found


def test_only_commands_with_a_schema_are_offered() -> None:
    offered = []
    for name, _ in schema_words(""):
        inner = [word for word, _ in schema_words(name, "")]
        offered += [f"{name} {word}" for word in inner] or [name]
    assert sorted(offered) == sorted(PRINTED)


@pytest.mark.parametrize(
    "words",
    [
        ["__complete", "bash:80", "cancel", ""],
        ["__complete", "bash", "schema", ""],
        ["__complete", "bash", "schema", "nodes", ""],
        ["completion", "bash"],
    ],
)
def test_completion_imports_nothing_slow(gpq: Gpq, made: Made, words: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gpq", *words]
    said = subprocess.run(command, env=gpq.environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines() if line.startswith("import time:")}
    assert ("gpq.cli.complete" if words[0] == "__complete" else "gpq.cli.shell_scripts") in imported
    assert not imported & {"typer", "rich", "msgspec", "dataclasses", "argparse", "re", "json", "socket", "typing"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_page_the_help_and_the_script_name_the_same_line(gpq: Gpq, shell: str) -> None:
    page, help, script = (
        (ROOT / "docs" / "install.md").read_text(),
        gpq("completion", "--help"),
        gpq("completion", shell),
    )
    for text in (page, help.stdout, script.stdout):
        assert LINES[shell] in text

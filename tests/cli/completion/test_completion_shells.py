"""Completion in real shells on a terminal. The tests press keys in bash, zsh and fish as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.completion import LINES
from tests.cli.conftest import Gpq
from tests.cli.served import Made, job, serving
from tests.cli.terminals import Terminal

SHELLS = ["bash", "zsh", "fish"]
BARE = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}
NOW = {
    "bash": "source <(gpq completion bash)",
    "zsh": "source <(gpq completion zsh)",
    "fish": "gpq completion fish | source",
}


class Shell(Terminal):
    """A shell that waits for keys. Its home directory and working directory are the home directory of the test."""

    def __init__(self, gpq: Gpq, name: str, *options: str, **environ: str) -> None:
        found = shutil.which(name)
        assert found, f"install {name} to test its completion"
        (gpq.home / ".local/share/fish/generated_completions").mkdir(
            parents=True, exist_ok=True
        )  # otherwise fish generates them
        environment = {**gpq.environment, "PS1": "> ", "COLUMNS": "80", **environ}
        before = os.getcwd()
        os.chdir(gpq.home)
        try:
            super().__init__(environment, shell=[found, *options, "-i"], lines=40)
        finally:
            os.chdir(before)
        self.does("")

    def does(self, line: str) -> None:
        """Runs a line and waits for the next prompt."""
        ready = self.text.count("ready") + 1
        self.press(f"{line}{'; ' if line else ''}echo re''ady\r")
        self.until(
            lambda _: self.text.count("ready") == ready and not self.rows[self.picture.cursor.y].endswith("ready")
        )

    def tab(self, typed: str, *shown: str, times: int = 1) -> None:
        """Types text, presses TAB, waits for the words and deletes the text again."""
        self.press(typed + "\t" * times)
        self.shows(*shown)
        self.press("\x15\r")


@pytest.fixture
def crowd(gpq: Gpq, home: Path) -> Gpq:
    """Some files, and a daemon that offers jobs in no alphabetical order. Two jobs have the same description."""
    script = home / "run_me.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (home / "data.csv").touch()
    return gpq


JOBS = [job(12, "pending", name="train"), job(3, "pending", name="train"), job(7, name="eval")]


@pytest.mark.parametrize("name", SHELLS)
def test_the_documented_line_turns_completion_on_in_every_new_shell(gpq: Gpq, made: Made, name: str) -> None:
    subprocess.run([name, *BARE[name], "-c", LINES[name]], env=gpq.environment, cwd=gpq.home, check=True)
    with Shell(gpq, name) as shell:
        shell.tab("gpq statu", "gpq status")
        shell.tab("gpq cancel ", "train-1 running", "train-2 pending", times=2 if name == "bash" else 1)


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_without_gpq_starts_as_usual(gpq: Gpq, name: str) -> None:
    subprocess.run([name, *BARE[name], "-c", LINES[name]], env=gpq.environment, cwd=gpq.home, check=True)
    with Shell(gpq, name, PATH="/usr/bin:/bin") as shell:
        assert "gpq" not in shell.text
        shell.press("gpq statu\t")
        shell.shows("gpq statu")
        shell.press("\x15")
        shell.does("")
        assert "not found" not in shell.text
        assert "Unknown" not in shell.text


@pytest.mark.parametrize("name", SHELLS)
def test_a_bare_shell_completes_immediately(gpq: Gpq, made: Made, name: str) -> None:
    with Shell(gpq, name, *BARE[name]) as shell:
        shell.does(NOW[name])
        shell.tab("gpq statu", "gpq status")
        assert "not found" not in shell.text


def test_zsh_loads_completion_from_a_folder_of_functions(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "functions").mkdir()
    (home / "functions/_gpq").write_text(gpq("completion", "zsh").stdout)
    (home / ".zshrc").write_text("fpath=(~/functions $fpath)\nautoload -Uz compinit\ncompinit -i\n")
    with Shell(gpq, "zsh") as shell:
        shell.tab("gpq statu", "gpq status")  # loads the completion
        shell.tab("gpq cancel ", "1  -- train-1 running", "2  -- train-2 pending")


@pytest.mark.parametrize("name", SHELLS)
def test_gpq_in_an_inactive_environment_completes_by_its_path(gpq: Gpq, made: Made, name: str) -> None:
    with Shell(gpq, name, *BARE[name], PATH="/usr/bin:/bin") as shell:
        shell.does(NOW[name].replace("gpq", "~/bin/gpq", 1))
        shell.tab("~/bin/gpq statu", "~/bin/gpq status")
        shell.tab(f"{gpq.home}/bin/gpq statu", f"{gpq.home}/bin/gpq status")


@pytest.mark.parametrize("name", SHELLS)
def test_jobs_keep_the_order_of_the_daemon_and_their_own_descriptions(gpq: Gpq, home: Path, name: str) -> None:
    with serving(home, JOBS), Shell(gpq, name, *BARE[name]) as shell:
        shell.does(NOW[name])
        shell.tab("gpq cancel ", "12 ", "train pending", "eval running", times=2 if name == "bash" else 1)
        if name == "fish":  # fish shows several in a row
            places = [shell.text.index(word) for word in ("12  (", "3  (", "7  (")]
            assert places == sorted(places), shell.text
        else:
            between = {"bash": "  ", "zsh": "  -- "}[name]
            rows = [f"12{between}train pending", f"3 {between}train pending", f"7 {between}eval running"]
            assert rows == [row for row in shell.rows if row[:1].isdigit()]


@pytest.mark.parametrize("name", SHELLS)
def test_commands_and_then_files_complete_after_two_dashes(crowd: Gpq, made: Made, name: str) -> None:
    with Shell(crowd, name, *BARE[name]) as shell:
        shell.does(NOW[name])
        (crowd.home / "bin/gpq_trial_command").write_text("#!/bin/sh\n")
        (crowd.home / "bin/gpq_trial_command").chmod(0o755)
        shell.does("hash -r" if name != "fish" else "true")
        shell.tab("gpq submit --gpus 1 -- gpq_tri", "-- gpq_trial_command")
        shell.tab("gpq submit -- ./ru", "-- ./run_me.sh")
        shell.tab("gpq submit -- cat da", "-- cat data.csv")
        shell.tab("gpq submit -- env cat da", "-- env cat data.csv")
        shell.tab("gpq submit run_", "submit run_me.sh")

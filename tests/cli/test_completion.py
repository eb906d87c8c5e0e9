"""Completion in real shells: bash, zsh and fish are driven as a person's TAB drives them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpq.cli import complete
from gpq.cli.schemas import PRINTED
from tests.cli.conftest import ROOT, Gpq
from tests.cli.served import Made, job, serving


def offered(gpq: Gpq, shell: str, *words: str) -> tuple[int, list[str]]:
    """What `gpq __complete` prints for the words after `gpq`, the last being unfinished."""
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
        (["cancel", "1,"], ["1,1", "1,2"]),
        (["logs", "1", "--node", ""], ["1", "2"]),  # asks for nodes; the made daemon has one list
        (["nodes", ""], ["list", "add", "remove", "drain", "undrain", "reserve", "unreserve", "--help", "1", "2"]),
        (["nodes", "1", "--js"], ["--json"]),
        (["nodes", "--js"], ["--json"]),
        (["nodes", "add", "--from"], ["--from-ssh-config"]),
        (["nodes", "remove", ""], ["1", "2"]),
        (["nodes", "drain", ""], ["1", "2"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["demo", "--policy", "s"], ["sia", "slaq", "srtf"]),
        (["simulate", "--policy", "sr"], ["srtf"]),
        (["simulate", "--policy", "fifo,s"], ["fifo,sia", "fifo,slaq", "fifo,srtf"]),
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
def test_words_complete(gpq: Gpq, made: Made, words: list[str], found: list[str]) -> None:
    assert offered(gpq, "bash", *words) == (0, found)


@pytest.mark.parametrize(
    "words",
    [
        ["submit", ""],
        ["submit", "--gpus", "2", "tr"],
        ["submit", "train.py", "--da"],
        ["submit", "--", ""],
        ["config", "check", ""],
    ],
)
def test_file_names_are_left_to_the_shell(gpq: Gpq, made: Made, words: list[str]) -> None:
    assert offered(gpq, "zsh", *words) == (complete.FILES, [])


def test_jobs_come_with_their_name_and_state(gpq: Gpq, made: Made) -> None:
    assert offered(gpq, "zsh", "show", "") == (0, ["1:train-1 running", "2:train-2 pending"])
    assert offered(gpq, "fish", "show", "") == (0, ["1\ttrain-1 running", "2\ttrain-2 pending"])


def test_without_a_daemon_completion_is_silent_and_starts_none(gpq: Gpq, home: Path) -> None:
    assert offered(gpq, "bash", "cancel", "") == (0, [])
    assert not (home / "gpq.sock").exists()
    assert not (home / "gpq.db").exists()


def test_what_jobs_call_themselves_cannot_reach_the_shell(gpq: Gpq, home: Path) -> None:
    with serving(home, [job(1, name="\x1b]0;x\x07$(touch pwned)")]):
        for shell in ("bash", "zsh", "fish"):
            said = gpq("__complete", shell, "show", "")
            assert "\x1b" not in said.stdout
            assert len(said.stdout.splitlines()) == 1


def test_what_has_a_schema_is_offered_and_nothing_else() -> None:
    offered = []
    for name, _ in complete.candidates(["schema", ""]) or ():
        inner = [word for word, _ in complete.candidates(["schema", name, ""]) or ()]
        offered += [f"{name} {word}" for word in inner] or [name]
    assert sorted(offered) == sorted(PRINTED)


@pytest.mark.parametrize("words", [["cancel", ""], ["schema", ""], ["schema", "nodes", ""]])
def test_completion_imports_nothing_that_costs(gpq: Gpq, made: Made, words: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gpq", "__complete", "bash", *words]
    said = subprocess.run(command, env=gpq.environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines() if line.startswith("import time:")}
    assert "gpq.cli.complete" in imported
    assert not imported & {"typer", "rich", "msgspec", "dataclasses", "argparse", "re", "json", "socket", "typing"}


def test_bash_completes(gpq: Gpq, made: Made) -> None:
    program = """
        source <(gpq completion bash)
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _gpq; printf '%s|' "${COMPREPLY[@]}"; echo; }
        try gpq sta
        try gpq cancel ''
        try gpq status --color = a
        try gpq logs --fol
        complete -p gpq
    """
    assert run("bash", program, gpq, "--norc").splitlines() == [
        "status|",
        "1|2|",
        "auto|always|",
        "--follow|",
        "complete -F _gpq gpq",
    ]


def test_bash_offers_file_names_for_a_script(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train_me.py").touch()
    assert "train_me.py" in on_keys(
        "bash --norc --noprofile -i", "source <(gpq completion bash)\n", "gpq submit train_\t", gpq
    )


def test_zsh_completes(gpq: Gpq, made: Made) -> None:
    setup = "PROMPT='> '; autoload -U compinit; compinit -u -D; source <(gpq completion zsh)\n"
    shown = on_keys("zsh -f -i", setup, "gpq cancel \t", gpq)
    assert "train-1 running" in shown
    assert "train-2 pending" in shown
    assert "gpq status" in on_keys("zsh -f -i", setup, "gpq statu\t", gpq)


def test_fish_completes(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train_me.py").touch()
    program = """
        gpq completion fish | source
        complete -C 'gpq show '
        complete -C 'gpq statu'
        complete -C 'gpq submit train_'
    """
    lines = run("fish", program, gpq, "--no-config").splitlines()
    assert lines[:2] == ["1\ttrain-1 running", "2\ttrain-2 pending"]
    assert lines[2].startswith("status\tthe queue")
    assert lines[3] == "train_me.py"


def run(shell: str, program: str, gpq: Gpq, *options: str) -> str:
    assert shutil.which(shell), f"install {shell}: its completion is to be tested"
    said = subprocess.run(
        [shell, *options, "-c", program],
        env=gpq.environment,
        cwd=gpq.home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.stderr == ""
    return said.stdout


def on_keys(command: str, setup: str, keys: str, gpq: Gpq) -> str:
    """The screen text of an interactive shell after `keys`."""
    import os
    import pty
    import select
    import time

    name = command.split()[0]
    assert shutil.which(name), f"install {name}: its completion is to be tested"
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(gpq.home)
        os.execvpe(name, command.split(), {**gpq.environment, "COLUMNS": "80", "PS1": "> "})
    written = b""

    def wait_for(word: bytes) -> None:
        nonlocal written
        until = time.monotonic() + 60
        while word not in written:
            assert time.monotonic() < until, written
            if select.select([master], [], [], 1.0)[0]:
                written += os.read(master, 65536)

    try:
        os.write(master, setup.encode() + b"echo re''ady\n")
        wait_for(b"ready\r\n")
        written = b""
        os.write(master, keys.encode())
        quiet = 0
        while quiet < 3:  # three seconds without a word, once something but the echo of the keys came
            if select.select([master], [], [], 1.0)[0]:
                written += os.read(master, 65536)
                quiet = 0
            else:
                quiet += 1
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(master)
    return written.decode(errors="replace")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_prints_the_script_of_the_repository(gpq: Gpq, shell: str) -> None:
    assert gpq("completion", shell).stdout == (ROOT / f"completions/gpq.{shell}").read_text()

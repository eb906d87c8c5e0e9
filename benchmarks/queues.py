"""gpq, task-spooler and Slurm with many known jobs, and the commands that a user types there: for
`benchmarks/cli.py --beside`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recovery import slurm, spooler
from tests.lab.kinds import PLAIN
from tests.lab.lab import Lab
from tests.lab.machine import search_path
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
SLURM_COMPLETION = Path("/usr/share/bash-completion/completions/slurm-wlm")
PACKAGES = {"tsp": spooler.PACKAGES, "slurm": slurm.PACKAGES}
KINDS = ("status", "all rows", "submit", "one TAB")
ABOUT = (
    "User and system time of whole processes, children included: `gpq status`, `tsp`, `squeue`;"
    " `gpq submit --hold`, `tsp sleep`, `sbatch --hold`; one TAB after `gpq cancel` and `scancel`"
    " in a bash that reads the completion first (task-spooler has none). Beside each figure: over"
    " `python -c pass`. gpq lists all jobs with GPUs, up to 200 that wait and the latest 20 that"
    ' ended; `squeue` and `tsp` list all, as `gpq status --all` does ("all rows").'
)
CLIENTS = 4  # that fill a queue at once
# The parts of the package bash-completion that Slurm's completion uses.
WORDS = (
    "function _get_comp_words_by_ref { cur=${COMP_WORDS[COMP_CWORD]};"
    ' prev=${COMP_WORDS[COMP_CWORD-1]}; cword=$COMP_CWORD; words=("${COMP_WORDS[@]}"); }'
)


@dataclass(frozen=True)
class Asked:
    """Commands by purpose ("status", "submit", "one TAB"). `known`: the state of the jobs."""

    system: str
    known: str
    env: Mapping[str, str]
    commands: Mapping[str, Sequence[str]]


def tab(completion: Path, function: str, *words: str) -> list[str]:
    """A bash that reads a completion and completes the last word, like one TAB in a new shell."""
    typed = " ".join(f"'{word}'" for word in words)
    return [
        "bash",
        "--norc",
        "-c",
        (
            f"{WORDS}; source {completion}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1};"
            f' {function}; [ "${{#COMPREPLY[@]}}" -gt 0 ]'
        ),
    ]


@contextmanager
def with_gpq(jobs: int, *, ended: bool) -> Iterator[Asked]:
    """A daemon with one job that runs, and the others waiting, or with jobs that all ended long
    ago."""
    from benchmarks.past import fill
    from tests.e2e.harness import Daemon

    with Daemon(slots=1, interval=60.0, policy="goodput") as daemon:
        if ended:
            daemon.stop()
            (daemon.home / "gpq.db").unlink()
            for left in ("-wal", "-shm", ".reserve", ".backup"):
                Path(f"{daemon.home}/gpq.db{left}").unlink(missing_ok=True)
            (daemon.home / "marks.json").unlink(missing_ok=True)
            fill(str(daemon.home / "gpq.db"), jobs)
            daemon.start()
        else:
            daemon.until(daemon.shell("exec sleep 36000", name="train-0"), "running")
            with ThreadPoolExecutor(8 * CLIENTS) as pool:
                list(
                    pool.map(
                        lambda n: daemon.submit("sleep", "3600", name=f"train-{n}"), range(1, jobs)
                    )
                )
        folder = daemon.home / "bin"
        folder.mkdir()
        command = folder / "gpq"  # as pip installs it
        command.write_text(
            f"#!{sys.executable}\nimport sys\nfrom gpq.__main__ import main\nsys.exit(main())\n"
        )
        command.chmod(0o755)
        env = {**daemon.environment(), "PATH": f"{folder}:{os.environ['PATH']}"}
        yield Asked("gpq", "ended, 20 are listed" if ended else "waiting", env, {
            "status": [str(command), "status"], "all rows": [str(command), "status", "--all"],
            "submit": [
                str(command), "submit", "--hold", "--gpus", "1", "--time", "2h", "--",
                "sleep", "3600",
            ],
            "one TAB": tab(ROOT / "gpq" / "completions" / "gpq.bash", "_gpq", "gpq", "cancel", ""),
        })  # fmt: skip


@contextmanager
def with_spooler(jobs: int) -> Iterator[Asked]:
    """task-spooler holds a process and a connection for each job that waits. 10,000 are too many,
    so these have ended."""
    system = spooler.Spooler()
    # otherwise it forgets all but 1,000
    system.env |= {"TS_SLOTS": "8", "TS_MAXFINISHED": str(jobs + 10)}
    with system:
        env = system.env
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(
                pool.map(
                    lambda _: subprocess.run(
                        ["tsp", "-n", "true"], env=env, stdout=subprocess.DEVNULL, check=True
                    ),
                    range(jobs),
                )
            )
        wait_until(lambda: _ended(env) >= jobs, "task-spooler has run them", patience=300.0)
        subprocess.run(
            ["tsp", "-n", "sleep", "36000"], env=env, stdout=subprocess.DEVNULL, check=True
        )
        yield Asked(system.name, "ended, all are listed", env, {
            "status": ["tsp"],
            "all rows": ["tsp"],
            "submit": ["tsp", "-n", "sleep", "3600"],
        })  # fmt: skip


def _ended(env: Mapping[str, str]) -> int:
    listed = subprocess.run(
        ["tsp", "-l"], env=env, capture_output=True, text=True, check=True
    ).stdout
    return sum(" finished " in line for line in listed.splitlines())


class ManyJobs(slurm.Slurm):
    """Slurm that takes more jobs than its default of 10,000."""

    def _configure(self) -> None:
        super()._configure()
        with open(self.folder / "slurm.conf", "a") as stream:
            stream.write("MaxJobCount=50000\n")


@contextmanager
def with_slurm(jobs: int) -> Iterator[Asked]:
    """One server with two CPUs. All jobs but two wait."""
    with Lab({"srv-a": PLAIN}) as lab, ManyJobs(lab, 300.0) as system:
        script = system.folder / "job.sh"
        script.write_text("#!/bin/sh\nexec sleep 36000\n")
        argv = ["sbatch", "--parsable", "--output=/dev/null", f"--chdir={system.home}"]
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(
                pool.map(
                    lambda n: _sbatch([*argv, f"--job-name=train-{n}", str(script)], system.env),
                    range(jobs),
                )
            )
        commands = {
            "status": ["squeue"],
            "all rows": ["squeue"],
            "submit": [*argv, "--hold", str(script)],
        }
        if SLURM_COMPLETION.exists():
            commands["one TAB"] = tab(SLURM_COMPLETION, "_scancel", "scancel", "")
        yield Asked(system.name, "waiting", system.env, commands)


def _sbatch(argv: Sequence[str], env: Mapping[str, str]) -> None:
    wait_until(
        lambda: (
            subprocess.run(
                argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ).returncode
            == 0
        ),
        "slurmctld takes a job",
    )


def hyperqueue() -> str:
    """The note on HyperQueue, which is not measured here."""
    if found := shutil.which("hq"):
        return f"HyperQueue: {found} is installed, but this benchmark does not set it up."
    return (
        "HyperQueue: no `hq` here. Its Python package (hyperqueue 0.27.0) has a library but no"
        " such command, and Debian has no package."
    )


def lacking(names: Sequence[str]) -> list[str]:
    """What `names` need and this machine lacks."""
    missing = {
        package
        for name in names
        for command, package in PACKAGES.get(name, {}).items()
        if not shutil.which(command, path=search_path())
    }
    return sorted(
        missing | ({"root"} if os.geteuid() != 0 and {"slurm", "tsp"} & set(names) else set())
    )

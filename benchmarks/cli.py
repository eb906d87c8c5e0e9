"""CPU time of the most used commands, relative to `python -c pass`: the price for a user and for a
script.

Measures whole processes, user + system time, interleaved, and takes medians of --runs. Measures
`gpq status` twice with 1,000 jobs: with a real daemon's queue, and with made-up rows in which every
column is filled. Bars: status and completion 4, submit 15. Exits with 1 if a bar is missed.

    python benchmarks/cli.py [--runs 20] [--jobs 1000]
    python benchmarks/cli.py --beside [--only gpq,tsp,slurm] [--sizes 1000,10000] [--out FILE]

--beside measures task-spooler and Slurm too (Debian's packages, as root), each with this many jobs
known, in one run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]
# What the installed command `gpq` does.
GPQ = [sys.executable, "-c", "import sys; from gpq.__main__ import main; sys.exit(main())"]
CONFIG = 'interval = 60.0\npolicy = "fifo"\n[nodes.local]\nslots = 1\n'
BARS = {"status, real queue": 4.0, "status, all columns": 4.0, "completion": 4.0, "submit": 15.0}


def environ(home: Path) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "agent")])
    own = {"GPQ_HOME": str(home), "GPQ_CONFIG": str(home / "config.toml"), "PYTHONPATH": path}
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **own}


def cpu_seconds(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """User and system time of one process and the children that it waited for. Nobody reads its
    output. Raises RuntimeError."""
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(
            f"{shlex.join(argv)}: exit code {process.returncode}:"
            f" {complaint.decode(errors='replace')}"
        )
    return usage.ru_utime + usage.ru_stime


@contextmanager
def real_queue(home: Path, jobs: int) -> Iterator[None]:
    """A daemon with one job that runs and `jobs - 1` that wait."""
    from gpq.client.connection import connect
    from gpq.rpc.job_answers import Submitted
    from gpq.rpc.requests import SpecMessage, Submit

    (home / "config.toml").write_text(CONFIG)
    env = environ(home)
    subprocess.run([*GPQ, "daemon", "start"], env=env, check=True, stdout=subprocess.DEVNULL)
    os.environ.update({key: env[key] for key in ("GPQ_HOME", "GPQ_CONFIG")})
    try:
        with connect(start=False) as connection:
            for number in range(jobs):
                spec = SpecMessage(
                    argv=["sleep", "3600"],
                    cwd="/",
                    level="black-box",
                    name=f"train-{number}",
                    max_gpus=1,
                )
                connection.call(Submit(spec), Submitted)
        yield
    finally:
        subprocess.run([*GPQ, "cancel", "all"], env=env, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*GPQ, "daemon", "stop"], env=env, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def made_queue(home: Path, jobs: int) -> Iterator[None]:
    """Serves made-up rows on the socket in a process of its own, so that its time does not count as
    the command's."""
    program = (
        "import sys; from pathlib import Path; from tests.cli.served import job, serving\n"
        f"with serving(Path(sys.argv[1]), [job(number) for number in range(1, {jobs} + 1)]):\n"
        "    print('serves', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", program, str(home)]
    server = subprocess.Popen(
        argv, env=environ(home), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdout.readline()
    try:
        yield
    finally:
        server.stdin.close()
        server.wait(30)


def measure(runs: int, jobs: int) -> dict[str, float]:
    """Median CPU seconds by name. `python -c pass` is under "pass"."""
    real, made = (Path(tempfile.mkdtemp(prefix="gpq-bench-")) for _ in range(2))
    # Every `submit` adds a waiting job. --hold keeps these jobs out of the rounds.
    submit = [*GPQ, "submit", "--hold", "--gpus", "1", "--time", "2h", "--", "sleep", "3600"]
    commands = {
        "pass": ([sys.executable, "-c", "pass"], environ(real)),
        "status, real queue": ([*GPQ, "status"], environ(real)),
        "status, all columns": ([*GPQ, "status"], environ(made)),
        "completion": ([*GPQ, "__complete", "zsh", "cancel", ""], environ(made)),
        "submit": (submit, environ(real)),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    try:
        with real_queue(real, jobs), made_queue(made, jobs):
            for argv, env in commands.values():  # one unmeasured run, for byte code and caches
                cpu_seconds(argv, env)
            for _ in range(runs):
                for name, (argv, env) in commands.items():
                    times[name].append(cpu_seconds(argv, env))
    finally:
        for home in (real, made):
            shutil.rmtree(home, ignore_errors=True)
    return {name: median(values) for name, values in times.items()}


def beside(names: Sequence[str], jobs: int, runs: int) -> list[list[str]]:
    """Rows of a table, the head first: CPU milliseconds, and their ratio to `python -c pass` in the
    same minutes."""
    from benchmarks import queues

    makers = {
        "gpq": [
            lambda: queues.with_gpq(jobs, ended=False),
            lambda: queues.with_gpq(jobs, ended=True),
        ],
        "tsp": [lambda: queues.with_spooler(jobs)],
        "slurm": [lambda: queues.with_slurm(jobs)],
    }
    bases = {"pass": [sys.executable, "-c", "pass"], "bash": ["bash", "--norc", "-c", ":"]}
    with ExitStack() as undo:
        asked = [undo.enter_context(make()) for name in names for make in makers[name]]
        commands = {(name, ""): (argv, dict(os.environ)) for name, argv in bases.items()}
        for place, one in enumerate(asked):
            commands |= {
                (str(place), what): (argv, dict(one.env)) for what, argv in one.commands.items()
            }
        times: dict[tuple[str, str], list[float]] = {key: [] for key in commands}
        for argv, env in commands.values():  # one unmeasured run, for byte code and caches
            cpu_seconds(argv, env)
        for _ in range(runs):
            for key, (argv, env) in commands.items():
                times[key].append(cpu_seconds(argv, env))
    found = {key: median(values) for key, values in times.items()}
    base = found["pass", ""]

    def cell(place: int, what: str) -> str:
        seconds = found.get((str(place), what))
        return "-" if seconds is None else f"{1000 * seconds:.1f} ms ({seconds / base:.1f}x)"

    rows = [["", "jobs", *queues.KINDS]]
    rows += [
        [one.system, one.known, *(cell(place, what) for what in queues.KINDS)]
        for place, one in enumerate(asked)
    ]
    rows.append(["`python -c pass`", "", f"{1000 * base:.1f} ms", *[""] * (len(queues.KINDS) - 1)])
    rows.append(
        [
            "`bash -c :`, part of each TAB",
            *[""] * len(queues.KINDS),
            f"{1000 * found['bash', '']:.1f} ms",
        ]
    )
    return rows


def side_by_side(options: argparse.Namespace) -> int:
    """Print the tables, and write them to --out. Returns exit code 1 if gpq's status with 1,000
    jobs is over its bar, 2 if something is missing here."""
    from benchmarks import queues
    from benchmarks.recovery.report import table

    known = {"gpq", *queues.PACKAGES}
    names = [name for name in options.only.split(",") if name]
    if unknown := sorted(set(names) - known):
        print(
            f"unknown --only {', '.join(unknown)}\nhint: use {', '.join(sorted(known))}",
            file=sys.stderr,
        )
        return 2
    if lacking := queues.lacking(names):
        print(
            f"not installed: {', '.join(lacking)}\nhint: apt-get install them, run as root, or"
            " --only gpq",
            file=sys.stderr,
        )
        return 2
    parts = ["# Commands, side by side", "", "By `make bench-beside`. " + queues.ABOUT, ""]
    missed = False
    for jobs in map(int, options.sizes.split(",")):
        before = os.getloadavg()[0]
        rows = beside(names, jobs, options.runs)
        load = (
            f"load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after, on"
            f" {os.cpu_count()} cores"
        )
        about = f"{time.strftime('%Y-%m-%d')}, medians of {options.runs}; {load}."
        section = [f"## {jobs:,} jobs known", "", about, "", table(rows), ""]
        parts += section
        print("\n".join(section), flush=True)
        ratios = [float(row[2].partition("(")[2].rstrip("x)")) for row in rows if row[0] == "gpq"]
        missed |= jobs <= 1000 and any(ratio > BARS["status, real queue"] for ratio in ratios)
    parts.append(queues.hyperqueue())
    print(parts[-1])
    if options.out:
        options.out.write_text("\n".join(parts) + "\n")
    return int(missed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument(
        "--jobs", type=int, default=1000, help="number of known jobs, without --beside"
    )
    parser.add_argument("--beside", action="store_true", help="also measure task-spooler and Slurm")
    parser.add_argument("--only", default="gpq,tsp,slurm", help="with --beside: which job managers")
    parser.add_argument(
        "--sizes", default="1000,10000", help="with --beside: numbers of known jobs"
    )
    parser.add_argument(
        "--out", type=Path, help="with --beside: also write the tables to this file"
    )
    options = parser.parse_args()
    if options.beside:
        return side_by_side(options)
    found = measure(options.runs, options.jobs)
    base = found.pop("pass")
    print(
        f"python -c pass: {1000 * base:.1f} ms CPU; {options.jobs} jobs, medians of {options.runs}"
    )
    missed = False
    for name, seconds in found.items():
        ratio = seconds / base
        missed |= ratio > BARS[name]
        print(
            f"{name:20} {1000 * seconds:6.1f} ms  {ratio:5.2f}x  bar {BARS[name]:g}x "
            f" {'ok' if ratio <= BARS[name] else 'MISSED'}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

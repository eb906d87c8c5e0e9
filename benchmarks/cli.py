"""CPU time of the commands asked for most, over that of `python -c pass`: what a person and a script pay for each.

Whole processes, user + system, interleaved; medians of --runs. `gpq status` is measured twice with 1,000 jobs: on a real
daemon's queue, and on made rows in which every column is filled. Bars: status and completion 4, submit 15. Exit 1 when missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


def cpu_seconds(argv: list[str], env: dict[str, str]) -> float:
    """User and system time of one process, output read by nobody."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def real_queue(home: Path, jobs: int) -> Iterator[None]:
    """A daemon with one job that runs and `jobs - 1` that wait."""
    from gpq.client.connection import connect
    from gpq.rpc.messages import SpecMessage, Submit, Submitted

    (home / "config.toml").write_text(CONFIG)
    env = environ(home)
    subprocess.run([*GPQ, "daemon", "start"], env=env, check=True, stdout=subprocess.DEVNULL)
    os.environ.update({key: env[key] for key in ("GPQ_HOME", "GPQ_CONFIG")})
    try:
        with connect(start=False) as connection:
            for number in range(jobs):
                spec = SpecMessage(
                    argv=["sleep", "3600"], cwd="/", level="black-box", name=f"train-{number}", max_gpus=1
                )
                connection.call(Submit(spec), Submitted)
        yield
    finally:
        subprocess.run([*GPQ, "cancel", "all"], env=env, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*GPQ, "daemon", "stop"], env=env, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def made_queue(home: Path, jobs: int) -> Iterator[None]:
    """The socket's server with made rows, in a process of its own: its time is not the command's."""
    program = (
        "import sys; from pathlib import Path; from tests.cli.served import job, serving\n"
        f"with serving(Path(sys.argv[1]), [job(number) for number in range(1, {jobs} + 1)]):\n"
        "    print('serves', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", program, str(home)]
    server = subprocess.Popen(argv, env=environ(home), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdout.readline()
    try:
        yield
    finally:
        server.stdin.close()
        server.wait(30)


def measure(runs: int, jobs: int) -> dict[str, float]:
    """Median CPU seconds by name; `python -c pass` under "pass"."""
    real, made = (Path(tempfile.mkdtemp(prefix="gpq-bench-")) for _ in range(2))
    # One more waiting job for every `submit`; --hold keeps them out of the rounds.
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
            for argv, env in commands.values():  # once unmeasured: byte code, caches
                cpu_seconds(argv, env)
            for _ in range(runs):
                for name, (argv, env) in commands.items():
                    times[name].append(cpu_seconds(argv, env))
    finally:
        for home in (real, made):
            shutil.rmtree(home, ignore_errors=True)
    return {name: median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1000)
    options = parser.parse_args()
    found = measure(options.runs, options.jobs)
    base = found.pop("pass")
    print(f"python -c pass: {1000 * base:.1f} ms CPU; {options.jobs} jobs, medians of {options.runs}")
    missed = False
    for name, seconds in found.items():
        ratio = seconds / base
        missed |= ratio > BARS[name]
        print(
            f"{name:20} {1000 * seconds:6.1f} ms  {ratio:5.2f}x  bar {BARS[name]:g}x  {'ok' if ratio <= BARS[name] else 'MISSED'}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

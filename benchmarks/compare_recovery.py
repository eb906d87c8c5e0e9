"""Slurm, task-spooler and gpq on this machine, side by side: what they lose if the controller is
killed with kill -9, and what runs twice if a server is cut off. Needs root and Debian's packages.
Makes servers in network namespaces. Takes about 15 minutes.

    python benchmarks/compare_recovery.py [--install] [--only gpq,slurm,tsp] [--runs 1] [--json]
    [--out FILE]

Jobs write when they were alive, and the comparison believes only that. Exits with 1 if gpq loses or
doubles anything, with 2 if something is missing here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from benchmarks.recovery import slurm, spooler  # noqa: E402
from benchmarks.recovery.findings import Findings, failures  # noqa: E402
from benchmarks.recovery.own import Gpq  # noqa: E402
from benchmarks.recovery.report import page  # noqa: E402
from benchmarks.recovery.scenarios import MOMENTS, burst, partition, running  # noqa: E402
from benchmarks.recovery.system import Networked, System  # noqa: E402
from tests.lab.kinds import PLAIN  # noqa: E402
from tests.lab.lab import Lab  # noqa: E402
from tests.lab.machine import NEEDED, search_path  # noqa: E402

SERVERS = ("srv-a", "srv-b", "srv-c")
SHELLS = ("csh", "fish")  # for other users of the laboratory
PACKAGES = {
    "gpq": {command: package for command, package in NEEDED.items() if command not in SHELLS},
    "slurm": slurm.PACKAGES,
    "tsp": spooler.PACKAGES,
}
POLICY = Path("/usr/sbin/policy-rc.d")


def main() -> int:
    options = _options()
    if os.geteuid() != 0:
        print(
            "needs root to make network namespaces\nhint: sudo make compare-recovery",
            file=sys.stderr,
        )
        return 2
    missing = lacking(options.only, search_path())
    if missing and options.install:
        _install(missing)
    elif missing:
        print(
            f"not installed: {', '.join(missing)}\nhint: {how_to_install(missing)}", file=sys.stderr
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runs: list[list[Findings]] = []
    text = ""
    for number in range(options.runs):
        how = (
            f"{options.rounds} kills with {options.burst} jobs each, {options.tries} of each kind"
            " while a job runs"
        )
        about = f"{time.strftime('%Y-%m-%d')}, {_machine()}, seed {options.seed + number}: {how}."
        runs.append([])
        earlier = text
        for one in _compare(options, options.seed + number):
            runs[-1].append(one)
            text = earlier + page(runs[-1], f"## Run {number + 1} of {options.runs}", about) + "\n"
            # written after each run, because a run takes long and may be interrupted
            if options.out:
                options.out.write_text("# Recovery, side by side\n\n" + text)
    answers = [[dataclasses.asdict(one) for one in found] for found in runs]
    bad = [
        line
        for found in runs
        for one in found
        if one.system.startswith("gpq")
        for line in failures(one)
    ]
    print(json.dumps({"schema": 1, "runs": answers}, indent=2) if options.json else text)
    if bad:
        print(f"FAILED: {'; '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help="install missing packages, but start none of them",
    )
    parser.add_argument("--only", default=",".join(PACKAGES), help="which of gpq, slurm, tsp")
    parser.add_argument("--runs", type=int, default=1, help="how often to run everything")
    parser.add_argument("--rounds", type=int, default=12, help="kills while jobs wait")
    parser.add_argument(
        "--burst", type=int, default=5, help="jobs submitted right before each kill"
    )
    parser.add_argument("--tries", type=int, default=3, help="kills of each kind while a job runs")
    parser.add_argument(
        "--silence",
        type=float,
        default=60.0,
        help="seconds: SlurmdTimeout, and gpq's --requeue-on-lost",
    )
    parser.add_argument(
        "--together",
        type=float,
        default=20.0,
        help="seconds that a cut goes on after a second run starts",
    )
    parser.add_argument("--longest", type=float, default=420.0, help="maximum seconds of a cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := sorted(set(options.only) - set(PACKAGES)):
        parser.error(f"unknown --only {', '.join(unknown)}: use {', '.join(PACKAGES)}")
    if min(options.runs, options.rounds, options.burst, options.tries) < 1:
        parser.error("--runs, --rounds, --burst and --tries must be at least 1")
    return options


def _compare(options: argparse.Namespace, seed: int) -> Iterator[Findings]:
    with Lab(dict.fromkeys(SERVERS, PLAIN)) as lab:
        makers: dict[str, Callable[[], System]] = {
            "gpq": lambda: Gpq(lab, options.silence),
            "slurm": lambda: slurm.Slurm(lab, options.silence),
            "tsp": spooler.Spooler,
        }
        for name in [name for name in makers if name in options.only]:
            system = makers[name]()
            with system:
                yield _examine(system, options, seed)


def _examine(system: System, options: argparse.Namespace, seed: int) -> Findings:
    queued = burst(system, options.rounds, options.burst, seed)
    ran = tuple(running(system, moment, options.tries, seed) for moment in MOMENTS)
    cuts = (
        tuple(partition(system, options.longest, options.together))
        if isinstance(system, Networked)
        else None
    )
    return Findings(system.name, tuple(system.settings), tuple(system.better), queued, ran, cuts)


def _machine() -> str:
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        system = platform.system()
    return f"{os.cpu_count()} cores, {system}, kernel {platform.release()}"


def lacking(names: Sequence[str], path: str) -> list[str]:
    """Packages whose commands are not in PATH. The laboratory's packages are always needed."""
    wanted = {
        command: package for name in ("gpq", *names) for command, package in PACKAGES[name].items()
    }
    return sorted(
        {package for command, package in wanted.items() if not shutil.which(command, path=path)}
    )


def how_to_install(packages: Sequence[str]) -> str:
    line = f"RUNLEVEL=1 apt-get install --no-install-recommends {' '.join(packages)}"
    return f"--install (make compare-recovery INSTALL=1), or: {line}"


def _install(packages: Sequence[str]) -> None:
    """Starts nothing that the packages bring, even if init is systemd, which respects only
    policy-rc.d."""
    own = not POLICY.exists()
    if own:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        environment = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
        argv = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
        subprocess.run(argv, env=environment, stdout=sys.stderr, check=True)
    finally:
        if own:
            POLICY.unlink()


if __name__ == "__main__":
    sys.exit(main())

"""Real jobs in an emulated lab under several policies, each next to what `gpq simulate` says.

    python -m benchmarks.lab [WORKLOAD...] [--policies fifo,goodput] [--runs DIR] [--page FILE]

Each run that has ended is a folder of --runs, and the next call goes on after it. Remove the folder
to run it again. The page has all of them. The exit code is 1 if the machine was too busy for one.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.lab.page import busy, mean_time, page
from benchmarks.lab.run import RunResult, play
from benchmarks.lab.traces import simulate
from benchmarks.lab.workloads import FULL, WORKLOADS
from benchmarks.workstation import commit
from gpq.policies.registry import POLICIES

DEFAULT_POLICIES = ("fifo", "backfill", "tiresias", "pollux", "goodput")
ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the daemon is stopped
    done, revision = _read(options.runs), commit()
    asked = [(workload, policy) for workload in options.workloads for policy in options.policies]
    missing = [key for key in asked if key not in done]
    stale = {run.commit for run in done.values()} - {revision}
    if missing and stale:
        print(f"{options.runs} has runs of {', '.join(sorted(stale))}", file=sys.stderr)
        print("hint: choose another folder, or check that commit out", file=sys.stderr)
        return 2
    for workload, policy in missing:
        folder = options.runs / f"{workload}-{policy}"
        run = done[workload, policy] = play(workload, policy, folder, revision)
        print(f"{workload} {policy}: {mean_time(run):.1f} s", flush=True)
    runs: dict[str, list[RunResult]] = {}
    for key in sorted(done, key=_place):
        runs.setdefault(key[0], []).append(done[key])
    traces = options.runs / "traces"
    text = page(
        runs,
        {name: simulate(name, [run.policy for run in many], traces) for name, many in runs.items()},
    )
    print(text)
    options.page.write_text(text)
    if lines := busy(done.values()):
        print(*lines, sep="\n", file=sys.stderr)
        print(f"hint: remove their folders in {options.runs}, and run it again", file=sys.stderr)
    return 1 if lines else 0


def _read(folder: Path) -> dict[tuple[str, str], RunResult]:
    """The runs that have ended."""
    files = folder.glob("*/result.json")
    runs = [msgspec.json.decode(file.read_bytes(), type=RunResult) for file in files]
    return {(run.workload, run.policy): run for run in runs}


def _place(key: tuple[str, str]) -> tuple[int, int]:
    """On the page, of a workload and a policy."""
    return list(WORKLOADS).index(key[0]), list(POLICIES).index(key[1])


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD",
        help=f"{', '.join(WORKLOADS)}. Default: the first three",
    )  # fmt: skip
    parser.add_argument(
        "--policies", type=lambda text: text.split(","), default=list(DEFAULT_POLICIES)
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "lab")
    parser.add_argument("--page", type=Path, default=ROOT / "build" / "lab.md")
    options = parser.parse_args(argv)
    for given, choices in ((options.workloads, WORKLOADS), (options.policies, POLICIES)):
        for name in given:
            if name not in choices:
                parser.error(f"unknown {name}: use {', '.join(choices)}")
    options.workloads = options.workloads or list(FULL)
    options.runs = options.runs.resolve()
    return options


if __name__ == "__main__":
    sys.exit(main())

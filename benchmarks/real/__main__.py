"""Real trainings to their targets under several policies, interleaved, on two slots.

    python -m benchmarks.real [short] [day] [--policies fifo,goodput] [--repetitions 3]
    python -m benchmarks.real --alone

--records keeps each run that has ended, and the next call goes on after it. Delete that file to
start again. --alone prints how long each training takes alone on one slot, and changes no file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.real.page import mean_time, page
from benchmarks.real.records import RunRecord, append, read
from benchmarks.real.run import play
from benchmarks.real.workloads import ROOT, WORKLOADS, alone
from benchmarks.workstation import slots
from gpq.policies.registry import POLICIES

DEFAULT_POLICIES = ("goodput", "fifo", "backfill", "tiresias", "pollux")


def main() -> int:
    options = _options()
    if options.alone:
        return _alone(options.workloads)
    commit = _commit()
    done = list(read(options.records))
    stale = {record.commit for record in done} - {commit}
    if stale:
        print(f"{options.records} has runs of {', '.join(sorted(stale))}", file=sys.stderr)
        print("hint: move it away, or check that commit out", file=sys.stderr)
        return 2
    keys = {(record.workload, record.policy, record.repetition) for record in done}
    for workload in options.workloads:
        for repetition in range(options.repetitions):
            for policy in options.policies:
                if (workload, policy, repetition) in keys:
                    continue
                record = RunRecord(
                    workload,
                    policy,
                    repetition,
                    commit,
                    time.strftime("%Y-%m-%d"),
                    os.getloadavg()[0],
                    play(policy, WORKLOADS[workload]),
                )
                append(options.records, record)
                print(
                    f"{workload} {policy} {repetition + 1}: {mean_time([record]):.1f} s", flush=True
                )
    text = page(read(options.records), slots())
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


def _alone(workloads: list[str]) -> int:
    for workload in workloads:
        arrivals = WORKLOADS[workload]
        work = 0.0
        for arrival in arrivals:
            [job] = play("fifo", [alone(arrival)])
            work += job.seconds * max(arrival.gpus, 1)
            end = "target reached" if job.reached else "target missed"
            print(f"{workload} {arrival.name}: {job.seconds:.1f} s, {end}", flush=True)
        span = max(arrival.at for arrival in arrivals)
        print(f"{workload}: load {work / (2 * span):.2f}", flush=True)
    return 0


def _commit() -> str:
    """The short name of the commit, with a + if files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="short, day. Default: both"
    )
    parser.add_argument(
        "--policies", type=lambda text: text.split(","), default=list(DEFAULT_POLICIES)
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--records", type=Path, default=ROOT / ".reports" / "real.jsonl")
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    parser.add_argument("--alone", action="store_true", help="measure each training alone")
    options = parser.parse_args()
    for given, choices in ((options.workloads, WORKLOADS), (options.policies, POLICIES)):
        for name in given:
            if name not in choices:
                parser.error(f"unknown {name}: use {', '.join(choices)}")
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    options.workloads = options.workloads or list(WORKLOADS)
    return options


if __name__ == "__main__":
    sys.exit(main())

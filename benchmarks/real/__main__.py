"""Real trainings to their targets under several policies, interleaved, on two slots.

    python -m benchmarks.real [--policies fifo,goodput] [--repetitions 3]
    python -m benchmarks.real --alone

--records keeps each run that has ended, and the next call goes on after it. Delete that file to
start again. --alone prints how long each training takes alone on one slot, and changes no file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.real.page import mean_time, page
from benchmarks.real.records import RunRecord, append, read
from benchmarks.real.run import play
from benchmarks.real.workloads import ROOT, SHORT, alone
from benchmarks.workstation import commit, slots
from gpq.policies.registry import POLICIES

DEFAULT_POLICIES = ("goodput", "fifo", "backfill", "tiresias", "pollux")


def main() -> int:
    options = _options()
    if options.alone:
        return _alone()
    revision = commit()
    done = list(read(options.records))
    stale = {record.commit for record in done} - {revision}
    if stale:
        print(f"{options.records} has runs of {', '.join(sorted(stale))}", file=sys.stderr)
        print("hint: move it away, or check that commit out", file=sys.stderr)
        return 2
    keys = {(record.policy, record.repetition) for record in done}
    for repetition in range(options.repetitions):
        for policy in options.policies:
            if (policy, repetition) in keys:
                continue
            record = RunRecord(
                policy,
                repetition,
                revision,
                time.strftime("%Y-%m-%d"),
                os.getloadavg()[0],
                play(policy, SHORT),
            )
            append(options.records, record)
            print(f"{policy} {repetition + 1}: {mean_time([record]):.1f} s", flush=True)
    text = page(read(options.records), slots())
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


def _alone() -> int:
    work = 0.0
    for arrival in SHORT:
        [job] = play("fifo", [alone(arrival)])
        work += job.seconds * max(arrival.gpus, 1)
        end = "target reached" if job.reached else "target missed"
        print(f"{arrival.name}: {job.seconds:.1f} s, {end}", flush=True)
    span = max(arrival.at for arrival in SHORT)
    print(f"load {work / (2 * span):.2f}", flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--policies", type=lambda text: text.split(","), default=list(DEFAULT_POLICIES)
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--records", type=Path, default=ROOT / ".reports" / "real.jsonl")
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    parser.add_argument("--alone", action="store_true", help="measure each training alone")
    options = parser.parse_args()
    for name in options.policies:
        if name not in POLICIES:
            parser.error(f"unknown {name}: use {', '.join(POLICIES)}")
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())

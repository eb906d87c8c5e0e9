"""What jobs write about themselves, and how to read it: the judge of the comparison. It asks no job
manager. Pure.

Each run of a job has its own id and appends lines `WORD TOKEN RUN SECONDS SERVER` to one file:
`start`, `beat` while it lives, `end` before it exits. SECONDS count from the boot of the machine,
which is the same for all servers of a laboratory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BEAT = 0.2  # seconds between two beats, plus the time the shell takes
LONGEST = 9000  # beats that a job waits for its `go`, in case its starter has gone

SAYS = """\
read -r run </proc/sys/kernel/random/uuid
node={node}
say() {{ read -r at rest </proc/uptime; echo "$1 {token} $run $at $node" >>{home}/ledger; }}
say start
"""
WAITS = """\
beats=0
while ! test -e {home}/go-{token} && test $beats -lt {longest}
do sleep {beat}; say beat; beats=$((beats+1)); done
"""
ENDS = """\
say end
exit {code}
"""


def script(token: str, home: str, node: str, *, waits: bool, code: int = 0) -> str:
    """The shell script of a job. `home`: folder of its ledger. `node`: how a shell there names the
    server. `waits`: for `go-TOKEN`."""
    text = SAYS + (WAITS if waits else "") + ENDS
    return text.format(token=token, home=home, node=node, code=code, longest=LONGEST, beat=BEAT)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job, alive from `first` to `last` as far as is known, seconds since boot."""

    run: str
    node: str
    first: float
    last: float
    ended: bool  # by itself


def read(texts: Iterable[str]) -> dict[str, list[Run]]:
    """Runs of each token, in the order of their starts. A last line without its newline is still
    being written."""
    found: dict[tuple[str, str], Run] = {}
    for text in texts:
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            word, token, run, at, node = line.split()
            when = float(at)
            seen = found.get((token, run), Run(run, node, when, when, ended=False))
            ended = seen.ended or word == "end"
            found[token, run] = Run(run, node, min(seen.first, when), max(seen.last, when), ended)
    runs: dict[str, list[Run]] = {}
    for (token, _), seen in sorted(found.items(), key=lambda item: (item[1].first, item[0])):
        runs.setdefault(token, []).append(seen)
    return runs


def overlap(runs: Sequence[Run]) -> float:
    """Seconds in which at least two of them lived."""
    total, alive_until = 0.0, float("-inf")
    counted_until = float("-inf")
    for run in sorted(runs, key=lambda run: run.first):
        end = min(run.last, alive_until)
        total += max(0.0, end - max(run.first, counted_until))
        counted_until = max(counted_until, end)
        alive_until = max(alive_until, run.last)
    return total

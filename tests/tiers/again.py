"""Runs failed tests once more, alone. A test that passes then failed by luck. Owns how much luck a run may need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .groups import ROOT
from .reporting import LIST, Failure, failures

MOST_TRIED = 5  # causes
MOST_FLAKY = 3


def causes(listed: Sequence[Failure]) -> int:
    """Tests of one file that failed with the same words count as one, such as those that share a fixture."""
    return len({(failure.test.partition("::")[0], failure.message) for failure in listed})


def judge(listed: Sequence[Failure], again: Sequence[Failure]) -> tuple[bool, list[str]]:
    """Whether the run is green, and the last lines to print. `again`: the failures of the second try, if there was one."""
    first = {failure.test: failure for failure in reversed(listed)}
    broken = [failure for failure in listed if failure.promise]
    if broken:
        return False, [f"RED {failure.test}: {failure.promise} (no second try)" for failure in broken]
    if causes(listed) > MOST_TRIED:
        return False, [f"RED {len(first)} tests failed, at most {MOST_TRIED} are tried again", *map(str, first)]
    twice = {failure.test for failure in again}
    lines = [f"{'RED' if name in twice else 'FLAKY'} {name}: {failure.message}" for name, failure in first.items()]
    if causes(listed) > MOST_FLAKY:
        lines.append(f"RED more than {MOST_FLAKY} tests needed luck")
    return not twice and causes(listed) <= MOST_FLAKY, lines


def environment(path: Path) -> dict[str, str]:
    """Of a pytest run that adds its failures to the list `path`."""
    return {**os.environ, LIST: str(path)}


def settle(path: Path, root: Path = ROOT) -> bool:
    """Try the tests on the list `path` again, in the repository `root`. Prints the outcome, returns whether it is
    green."""
    listed = failures(path)
    second = path.with_suffix(".again")
    second.unlink(missing_ok=True)
    names = list(dict.fromkeys(failure.test for failure in listed))
    again: list[Failure] = []
    if names and causes(listed) <= MOST_TRIED and not any(failure.promise for failure in listed):
        sys.stdout.write(f"\nonce more, alone: {', '.join(names)}\n")
        sys.stdout.flush()
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *names]
        ended = subprocess.run(command, cwd=root, env=environment(second), check=False)
        again = failures(second)
        if ended.returncode and not again:
            again = [Failure(name, "", "", "") for name in names]
    green, lines = judge(listed, again)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return green

"""Runs a tier: `python -m tests.tiers test`, `long` or `prove [GROUP...]`."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from .again import environment, settle
from .groups import GROUPS, ROOT, stale, write_proofs
from .reporting import failures

REPORTS = ROOT / ".reports"
FAILED = 1  # pytest's exit code when tests failed. Other codes are errors
LONG_SECONDS = 1500  # for one test in the long tier: five times the everyday limit, for five times the examples
PHASES = {
    "system": ["-n", "8", "--dist", "worksteal"],  # mostly waits
    "torch": ["-n", "3", "--dist", "worksteal"],  # mostly computes
}


def run_tier(tier: str, limit: float) -> bool:
    """Lint beside the tests, run the two parts one after the other, then failed tests once more. Returns whether all is
    green."""
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir()
    changed = stale()
    digests = {group.name: group.digest() for group in GROUPS if group.name in changed}
    print(f"groups that run whole, for their sources changed: {', '.join(changed) or 'none'}", flush=True)
    end = time.monotonic() + limit
    rewrite()
    with Path(REPORTS, "lint.txt").open("w+") as output:
        lint = subprocess.Popen(["make", "-s", "lint"], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        errors = [part for part in PHASES if not run_part(part, tier, end)]
        if lint.wait():
            errors.append("lint")
            output.seek(0)
            print(output.read())
    if not errors:
        note_proofs(digests, REPORTS / "failures")
    green = settle(REPORTS / "failures")
    for name in errors:
        print(f"RED {name}: see above")
    return green and not errors


def rewrite() -> None:
    """Let pytest compile the tests once. In a fresh clone each of a dozen workers would do it again."""
    if any(ROOT.glob("tests/__pycache__/*-pytest-*.pyc")):
        return
    folders = sorted(path for path in ROOT.glob("tests/*") if path.is_dir() or path.name.startswith("test_"))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    halves = [list(map(str, folders[first::2])) for first in (0, 1)]
    runs = [
        subprocess.Popen(
            [*command, *half], cwd=ROOT, env=environment(REPORTS / "collection"), stdout=subprocess.DEVNULL
        )
        for half in halves
    ]
    for run in runs:
        run.wait()


def run_part(part: str, tier: str, end: float) -> bool:
    """False if pytest came to no verdict on the tests. Failed tests are on the list."""
    options = ["--tier", tier, "--part", part, f"--junitxml={REPORTS}/{part}.xml", "--durations=20"]
    if tier == "long":
        options.append(f"--timeout={LONG_SECONDS}")
    command = [sys.executable, "-m", "pytest", *PHASES[part], *options]
    begin = time.monotonic()
    listed = len(failures(REPORTS / "failures"))
    tests = subprocess.Popen(command, cwd=ROOT, env=environment(REPORTS / "failures"))
    try:
        code = tests.wait(max(end - begin, 1.0))
    except subprocess.TimeoutExpired:
        tests.send_signal(signal.SIGINT)  # pytest prints its summary
        code = tests.wait()
    print(f"{part}: {time.monotonic() - begin:.0f} s", flush=True)
    # Failed tests that are not on the list would be nobody's.
    return code == 0 or (code == FAILED and len(failures(REPORTS / "failures")) > listed)


def note_proofs(digests: dict[str, str], path: Path) -> None:
    """Mark groups as proven if they ran whole and none of their tests is on the list `path`."""
    failed = [failure.test.partition("::")[0] for failure in failures(path)]
    sound = [group.name for group in GROUPS if group.name in digests and not any(map(group.has, failed))]
    if sound:
        write_proofs({name: digests[name] for name in sound})
        print(f"proven, commit tests/proven.json: {', '.join(sound)}")


def prove(names: list[str]) -> bool:
    """Run groups whole. A green run proves them: commit `tests/proven.json`."""
    chosen = [group for group in GROUPS if group.name in names or not names]
    digests = {group.name: group.digest() for group in chosen}
    places = [place for group in chosen for place in group.tests]
    command = [sys.executable, "-m", "pytest", "-q", *PHASES["torch"], *places]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        return False
    write_proofs(digests)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tiers", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for tier in ("test", "long"):
        verbs.add_parser(tier).add_argument("--minutes", type=float, default=150.0)
    verbs.add_parser("prove").add_argument("groups", nargs="*", choices=[group.name for group in GROUPS])
    arguments = parser.parse_args()
    if arguments.verb == "prove":
        return int(not prove(arguments.groups))
    return int(not run_tier(arguments.verb, 60 * arguments.minutes))


if __name__ == "__main__":
    sys.exit(main())

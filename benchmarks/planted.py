"""Runs `gpq check` on scripts with one planted habit each. Does every verdict name the shapes and
the habit? Takes about 20 minutes.

    python benchmarks/planted.py         # exits with 1 if a verdict is wrong; `lbfgs gan` checks
                                         # only these, `--out FILE` keeps the table

A check runs a loop of tests/habits/ in nine shapes. It is wrong in these cases: a shape differs or
fails without a warning, the verdict names another habit, it warns about a shape that needs no
freedom which the habit takes, or it warns about a right loop.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the scripts
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.habits.planted import GUESSED, PLANTED, STEPS, faults, write  # noqa: E402
from tests.habits.proven import PROVEN  # noqa: E402


def checked(name: str, home: Path) -> dict[str, Any]:
    """The verdict on the script of that loop, or {"error": line} if there is none."""
    environ = {**os.environ, "GPQ_HOME": str(home)}
    steps = str(STEPS.get(name, 8))
    command = [
        sys.executable,
        "-m",
        "gpq",
        "check",
        "--json",
        "--steps",
        steps,
        str(write(name, home)),
    ]
    said = subprocess.run(
        command, env=environ, cwd=home, capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(said.stdout)
    except ValueError:
        return {"error": " ".join(said.stderr.split()) or f"exit code {said.returncode}"}
    return {"error": " ".join(str(found["error"]).split())} if "error" in found else found


def row(name: str, verdict: dict[str, Any], seconds: float) -> tuple[str, bool]:
    """A line of the table, and whether it is wrong."""
    wrong = [verdict["error"]] if "error" in verdict else faults(name, verdict)
    rows = verdict.get("shapes", [])
    shapes = ", ".join(each["shape"] for each in rows if each["verdict"] != "same") or "none"
    told = ", ".join(habit["code"] for habit in verdict.get("habits", [])) or "none"
    planted = ", ".join(PLANTED.get(name, ())) or "right"
    if name in PROVEN:
        planted = GUESSED.get(name, "differs")
    verdict_is = f"WRONG: {'; '.join(wrong)}" if wrong else "as it should be"
    return f"| {name} | {planted} | {told} | {shapes} | {verdict_is} | {seconds:.0f} |", bool(wrong)


def main() -> int:
    every = [*PLANTED, *PROVEN]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "habits", nargs="*", metavar="HABIT", help="check only these habits: " + ", ".join(every)
    )
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.habits if name not in every]
    if unknown:
        parser.error(f"unknown habit {unknown[0]}, see --help")
    lines = [
        "| loop | habit | told | shapes that are not `same` | verdict | seconds |",
        "|---|---|---|---|---|---|",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    wrongs = 0
    with tempfile.TemporaryDirectory(prefix="gpq-planted-") as folder:
        for name in arguments.habits or every:
            begun = time.monotonic()
            verdict = checked(name, Path(folder))
            line, wrong = row(name, verdict, time.monotonic() - begun)
            wrongs += wrong
            lines.append(line)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    total = len(lines) - 2
    summary = f"\n{total - wrongs} of {total} verdicts are as they should be.\n"
    sys.stdout.write(summary)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n" + summary)
    return 1 if wrongs else 0


if __name__ == "__main__":
    sys.exit(main())

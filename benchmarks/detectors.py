"""What would be missed without each detector of habits? All loops of tests/habits, guesses off.

    python benchmarks/detectors.py run [--steps 20] FILE [LOOP ...]   # gpq check; 6 to 12 s a loop
    python benchmarks/detectors.py train FILE [LOOP ...]              # the truth; as long
    python benchmarks/detectors.py table FILE                         # both, by detector

FILE holds a JSON line for each loop. What is there is not done again.

Here a guess is what a module says that reads source, frames, the heap or single operations, or
compares what a step should not change (MODULES). `run` turns all guesses into suspicions, which
take no freedom under `gpq check`, so that it trains and compares every shape. It notes which module
said each. `train` trains each loop in the shapes of its table, in which no guess takes a freedom
either, and holds the weights against those of plain PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the scripts
os.environ.setdefault("OMP_NUM_THREADS", "1")

from gpq_agent import wire  # noqa: E402
from gpq_agent.train.habits import HABITS, SUSPECTED  # noqa: E402

from tests.habits.catalogue import load  # noqa: E402
from tests.habits.planted import RESUMED, STEPS  # noqa: E402

TRACE = "PYTHON_DETECTORS_TRACE"  # gpq check hands it on: a file for a line each time that a module says something
# Observed, as the table of habits has it, but by modules that are under judgement.
ON_TRIAL = ("grad-hook", "flow-hook", "epoch-head", "forgotten-scheduler", "forgotten-scaler", "own-rate")
# (function of the library that says it, code or "" for any) -> module. Else the act itself was seen.
MODULES = {
    ("_end_following", "batch-statistics"): "following, rows",
    ("_end_following", ""): "following",
    ("_look_at_loop", "epoch-head"): "redone",
    ("_look_at_loop", ""): "early",
    ("_watch", ""): "early",
    ("_judge_pass", "token-loss"): "normalising",
    ("_judge_pass", "batch-loss"): "coupling",
    ("_compare_divisors", ""): "normalising",
    ("_look_for_forgotten", ""): "forgotten",
    ("_open", "own-next"): "own-next",
    ("_open", "own-count"): "counted",
    ("_open", "own-break"): "holders",
    ("_open", "own-zip"): "holders",
    ("_open", "epoch-head"): "heads",
    ("_end_pass", ""): "hooks",
    ("_check_rates", "own-rate"): "settings",
    ("_check_schedules", "own-rate"): "settings",
    ("_called", "own-rate"): "settings",
}
SCRIPT = """import gpq_agent.train as gpq
import torch
from benchmarks.detectors import trace
from tests.habits.catalogue import load

trace()
habit = load()[{name!r}]
torch.set_default_dtype(getattr(torch, habit.dtype))
habit.loop(gpq, {{}})
"""


# -- in the training process -----------------------------------------------------------------------


def suspect_only() -> None:
    """What is on trial is only suspected in this process."""
    for code in ON_TRIAL:
        HABITS[code] = HABITS[code]._replace(evidence=SUSPECTED)


def trace() -> None:
    """From now on note who says what, if the environment names a file."""
    from gpq_agent.train.engine import Engine

    path = os.environ.get(TRACE)
    if path is None:
        return
    suspect_only()
    if wire.ENV_CHECK in os.environ:
        shape = os.path.basename(json.loads(os.environ[wire.ENV_CHECK])["folder"])
    else:
        shape = Path(os.environ.get(wire.ENV_RUN_DIR, "plain/1")).parent.name
    known: set[tuple[str, str]] = set()

    def noted(plain: Any) -> Any:
        def say(self: Any, code: str, detail: str = "") -> None:
            caller = sys._getframe(1).f_code.co_name
            module = MODULES.get((caller, code), MODULES.get((caller, ""), "observed"))
            if caller != "see" and not self.evaluating and (code, module) not in known:
                known.add((code, module))
                line = {"code": code, "module": module, "shape": shape, "step": self.meter.steps}
                with open(path, "a") as stream:
                    stream.write(json.dumps({**line, "caller": caller}) + "\n")
            plain(self, code, detail)

        return say

    Engine.see, Engine.suspect = noted(Engine.see), noted(Engine.suspect)  # type: ignore[method-assign]


def replica(*arguments: Any) -> None:
    """As tests.habits.replica, where no guess takes a freedom."""
    from gpq_agent.train.freedoms import Freedoms

    from tests.habits.replica import run_replica

    os.environ.update(arguments[0])  # the folder of the run, which is noted
    suspect_only()
    trace()
    Freedoms.suspect = lambda self, code, detail="": None  # type: ignore[method-assign]
    run_replica(*arguments)


# -- the proof -------------------------------------------------------------------------------------


def check(script: Path, steps: int, home: Path, *arguments: str) -> dict[str, Any]:
    """What `gpq check` makes of it, and who said what: plain data."""
    begun = time.monotonic()
    path = home / "trace.jsonl"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "gpq", "check", "--json", "--steps", str(steps), str(script)]
    environ = {**os.environ, "GPQ_HOME": str(home), TRACE: str(path)}
    done = subprocess.run(
        [*command, *arguments], env=environ, cwd=script.parent, capture_output=True, text=True, check=False
    )
    record: dict[str, Any] = {"steps": steps, "seconds": round(time.monotonic() - begun, 1)}
    lines = path.read_text().splitlines() if path.exists() else []
    record["said"] = [json.loads(line) for line in lines]
    try:
        verdict = json.loads(done.stdout)
    except ValueError:
        return {**record, "error": " ".join(done.stderr.split())[-500:]}
    if "error" in verdict:
        return {**record, "error": " ".join(str(verdict["error"]).split())}
    fields = ("shape", "verdict", "step", "what", "largest", "problem")
    rows = [
        {**{key: row[key] for key in fields}, "code": (row["habit"] or {}).get("code")} for row in verdict["shapes"]
    ]
    told = [each["code"] for each in verdict["habits"]]
    return {**record, "verdict": verdict["verdict"], "rows": rows, "told": told, "notes": verdict["notes"]}


def run(path: Path, names: list[str], steps: int) -> None:
    done = {(each["loop"], each["asked"]) for each in read(path) if "rows" in each or "error" in each}
    with tempfile.TemporaryDirectory(prefix="gpq-detectors-") as folder:
        for name in names:
            if (name, steps) in done:
                continue
            script = Path(folder) / f"{name}.py"
            script.write_text(SCRIPT.format(name=name))
            record = check(script, max(steps, STEPS.get(name, 0)), Path(folder))
            append(path, {"loop": name, "asked": steps, **record})


# -- the truth -------------------------------------------------------------------------------------


def train(path: Path, names: list[str]) -> None:
    from tests.habits import cells
    from tests.habits.shapes import SHAPES
    from tests.habits.table import run_habit

    cells.run_replica = replica  # type: ignore[attr-defined, assignment]
    done = {each["loop"] for each in read(path) if "cells" in each}
    habits = load()
    with tempfile.TemporaryDirectory(prefix="gpq-detectors-") as folder:
        home = Path(folder)
        lines = home / "trace.jsonl"
        os.environ[TRACE] = str(lines)  # before the first process starts
        for name in names:
            if name in done:
                continue
            lines.write_text("")
            try:
                found = run_habit(habits[name], SHAPES, home / name)
            except AssertionError as error:
                append(path, {"loop": name, "cells": {}, "error": str(error)[:300]})
                continue
            finally:
                shutil.rmtree(home / name, ignore_errors=True)
            cells_ = {
                cell.shape: {"verdict": cell.verdict, "shown": cell.shown(), "lines": cell.said} for cell in found
            }
            said = [json.loads(line) for line in lines.read_text().splitlines()]
            append(path, {"loop": name, "cells": cells_, "said": said})


def guesses(record: dict[str, Any]) -> dict[str, set[str]]:
    """Code -> modules that guessed it."""
    found: dict[str, set[str]] = {}
    for each in record.get("said", []):
        if each["module"] != "observed":
            found.setdefault(each["code"], set()).add(each["module"])
    return found


# -- the table -------------------------------------------------------------------------------------

# The shape of the truth -> the row of the proof, and the freedoms any one of which it needs.
ROWS = {
    "accumulate": ("accumulating", {"accumulate"}),
    "split": ("split", {"split"}),
    "two": ("two replicas", {"resize"}),
    "two-acc": ("two replicas, accumulating", {"resize", "accumulate"}),
    "resize": (RESUMED, {"resize"}),
}


class Loop(NamedTuple):
    """`guesses`: (code, module). Where no guess takes a freedom, `harm`: shapes that train something
    else and are told nothing; `late`: is one told after that? `shown`: rows of the proof that are
    not the same, by steps."""

    name: str
    guesses: frozenset[tuple[str, str]]
    harm: frozenset[str]
    late: bool
    shown: dict[int, set[str]]

    def missed(self, steps: int) -> set[str]:
        """Shapes of `harm` that need no freedom which a proof of so many steps takes."""
        shown = self.shown.get(steps, self.shown[8])
        lost = {freedom for row, needs in ROWS.values() if len(needs) == 1 and row in shown for freedom in needs}
        return {each for each in self.harm if ROWS[each][0] not in shown and not ROWS[each][1] & lost}


def loops(records: list[dict[str, Any]]) -> dict[str, Loop]:
    said: dict[str, set[tuple[str, str]]] = {}
    harm: dict[str, set[str]] = {}
    late: set[str] = set()
    shown: dict[str, dict[int, set[str]]] = {}
    for record in records:
        name = record["loop"]
        pairs = said.setdefault(name, set())
        pairs |= {(code, module) for code, modules in guesses(record).items() for module in modules}
        cells = record.get("cells", {})
        bad = {shape for shape, cell in cells.items() if cell["verdict"] not in ("right", "right, told", "told")}
        harm.setdefault(name, set()).update(bad & set(ROWS))
        if any(cell["verdict"] == "told" and "%" in cell["shown"] for cell in cells.values()):
            late.add(name)
        if "rows" in record:
            rows = {row["shape"] for row in record["rows"] if row["verdict"] != "same"}
            shown.setdefault(name, {})[record["asked"]] = rows
    return {
        name: Loop(name, frozenset(said[name]), frozenset(harm[name]), name in late, shown[name])
        for name in said
        if 8 in shown.get(name, {})
    }


def table(records: list[dict[str, Any]]) -> str:
    found = loops(records)
    pairs = sorted({pair for loop in found.values() for pair in loop.guesses}, key=lambda pair: pair[::-1])
    columns = [
        "module",
        "code",
        "loops",
        "no harm",
        "told late",
        "harm",
        "alone",
        "found",
        "in part",
        "missed",
        "missed at 20 steps",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for code, module in pairs:
        mine = [loop for loop in found.values() if (code, module) in loop.guesses]
        harmful = [loop for loop in mine if loop.harm]
        part = [loop for loop in harmful if loop.missed(8) and loop.missed(8) != loop.harm]
        missed = [loop for loop in harmful if loop.missed(8) == loop.harm]
        counts = [
            len(mine),
            sum(not loop.harm and not loop.late for loop in mine),
            sum(not loop.harm and loop.late for loop in mine),
            len(harmful),
            sum(alone(loop, module) for loop in harmful),
            len(harmful) - len(part) - len(missed),
            len(part),
            len(missed),
            sum(bool(loop.missed(20)) for loop in harmful),
        ]
        lines.append(f"| {module} | {code} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "By name. In bold what the proof does not find in 20 steps either, with the shapes.", ""]
    for module in dict.fromkeys(module for _, module in pairs):
        mine = [loop for loop in found.values() if any(each == module for _, each in loop.guesses)]
        harmful = [loop for loop in mine if loop.harm]
        for words, chosen in (
            ("alone", [loop for loop in harmful if alone(loop, module)]),
            ("with others", [loop for loop in harmful if not alone(loop, module)]),
            ("told late", [loop for loop in mine if not loop.harm and loop.late]),
            ("no harm", [loop for loop in mine if not loop.harm and not loop.late]),
        ):
            if chosen:
                line = f"- {module}, {words}: {', '.join(map(shown, chosen))}"
                lines.append(textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(lines) + "\n"


def alone(loop: Loop, module: str) -> bool:
    """Is it the only module that guesses anything?"""
    return {each for _, each in loop.guesses} == {module}


def shown(loop: Loop) -> str:
    missed = loop.missed(20)
    return f"**{loop.name}** ({', '.join(each for each in ROWS if each in missed)})" if missed else loop.name


# -- records ---------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, record: dict[str, Any]) -> None:
    with open(path, "a") as stream:
        stream.write(json.dumps(record) + "\n")


def main() -> int:
    habits = load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "train", "table"])
    parser.add_argument("file", type=Path)
    parser.add_argument("loops", nargs="*", metavar="LOOP")
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    names = arguments.loops or list(habits)
    if arguments.what == "run":
        run(arguments.file, names, arguments.steps)
    elif arguments.what == "train":
        train(arguments.file, names)
    else:
        sys.stdout.write(table(read(arguments.file)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`gpq check` from the script to its verdict: runs all shapes, has them judged, keeps what was
found."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import gpq_agent
import msgspec
from gpq_agent import wire

from gpq import lint
from gpq.check import gpus, judging, keeping, scratch
from gpq.check.comparing import Judge
from gpq.check.guessing import drawn
from gpq.check.records import Run, read
from gpq.check.running import Course, Program, Runner, interruptible, last_lines
from gpq.check.shapes import AGAIN, REFERENCE, REPLICAS, ROUNDING, Shape, compared
from gpq.check.verdict import DIFFERS, FAILED, ShapeView, Verdict
from gpq.errors import GpqError, TimedOut

THREADS = 4  # cores for each thread of a process beyond the first
PAST_PYTHON = "under gpq check, C code and other programs may write below TMPDIR alone; "


@dataclass(frozen=True, slots=True)
class Asked:
    script: str
    arguments: tuple[str, ...]
    python: str
    environ: Mapping[str, str]
    cwd: str
    steps: int
    seconds: float  # for all of it
    gpu: bool = False
    isolated: bool = False  # a fresh interpreter for every replica


def prove(request: Asked, on_end: Callable[[str], None]) -> Verdict:
    """Run it in every shape; `on_end` hears the name of each that is over. Raises GpqError where
    the script fails alone."""
    start = time.monotonic()
    if request.gpu:
        gpus.need(REPLICAS, request.python, request.environ, request.cwd)
    home = Path(tempfile.mkdtemp(prefix="gpq-check-"))
    rows: list[ShapeView] = []
    is_home_cited = False
    try:
        with interruptible(), Runner(_program(request, home), home, request.steps) as runner:
            deadline = start + request.seconds
            shapes = (REFERENCE, *ROUNDING, *compared(request.steps))
            courses, failure = _courses(runner, shapes, deadline, on_end)
            _whole(courses, request)
            reference, *other_runs = [
                read(course.folder, len(course.shape.attempts)) for course in courses
            ]
            reorderings, runs = other_runs[: len(ROUNDING)], other_runs[len(ROUNDING) :]
            _usable(reference, courses[0], request)
            judge = Judge(reference, *reorderings, exact=runner.exact)
            reproducible = None
            if judge.mixed and not drawn(reference):
                reruns = runner.run((AGAIN,), deadline, on_end)
                _whole(reruns, request)
                reproducible = judge.judge(read(reruns[0].folder, 1)).step is None
            text = Path(request.script).read_text("utf-8", "replace")
            has_own_loop = reference.facts is not None and not reference.facts.loader
            pairs = [
                (course, run)
                for course, run in zip(courses[1 + len(ROUNDING) :], runs, strict=True)
                if not has_own_loop or _asked_for(course.shape)
            ]
            rows = judging.rows(judge, pairs, text, reproducible)
        facts = reference.facts
        verdict = Verdict(
            script=os.path.realpath(request.script),
            arguments=list(request.arguments),
            program=facts.digest if facts else "",
            files=facts.files if facts else {},
            torch=facts.torch if facts else "",
            library=facts.library if facts else "",
            verdict=judging.worst(rows),
            steps=reference.last or request.steps,
            batch=facts.batch if facts else 0,
            shapes=rows,
            habits=judging.habits([reference, *reorderings, *runs], rows),
            notes=[
                *_notes(reference, rows, judge, failure),
                *judging.doubts([reference, *runs], rows),
                *lint.hints(text),
                *runner.remarks,
            ],
            coarse=judge.coarse,
            seconds=round(time.monotonic() - start, 1),
            at=datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
        is_home_cited = verdict.verdict == FAILED
        return _kept(verdict, keeping.place(request.script, list(request.arguments)))
    except GpqError as error:
        is_home_cited = any(
            str(home) in text for text in (error.message, error.hint, *error.quoted)
        )
        raise
    finally:
        _tidy(home, whole=not is_home_cited)


def _courses(
    runner: Runner, shapes: Sequence[Shape], deadline: float, on_end: Callable[[str], None]
) -> tuple[list[Course], str]:
    """All shapes, in the script's own precision where it fails in full precision, and its error."""
    courses = runner.run(shapes, deadline, on_end)
    reference = courses[0]
    if not reference.failed or not any(reference.folder.glob("*.jsonl")):  # none before gpq.init()
        return courses, ""
    failure = reference.error()
    runner.exact = False
    return runner.run(shapes, deadline, on_end), failure


def _kept(verdict: Verdict, place: str) -> Verdict:
    """The same, and a remark where it could not be kept."""
    try:
        keeping.keep(place, msgspec.to_builtins(verdict))
    except OSError as error:
        remark = f"the verdict could not be kept in {os.path.dirname(place)}: {error.strerror}"
        return msgspec.structs.replace(verdict, notes=[*verdict.notes, remark])
    return verdict


def _asked_for(shape: Shape) -> bool:
    """A loop of the script's own is never accumulated or split by gpq."""
    return not {"accumulate", "split"} & set(shape.freedoms)


def _program(request: Asked, home: Path) -> Program:
    """As a job's first process is started, with the library that is installed with this gpq."""
    environ = dict(request.environ)
    path = environ.get("PYTHONPATH", "")
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_library(home), path]))
    environ.setdefault("PYTHONUNBUFFERED", "1")
    environ.setdefault("PYTHONHASHSEED", wire.HASH_SEED)
    environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // THREADS)))
    environ |= scratch.variables(home)
    return Program(
        request.python,
        request.script,
        request.arguments,
        request.cwd,
        environ,
        request.gpu,
        request.isolated,
    )


def _library(home: Path) -> str:
    """A folder that holds gpq_agent and nothing else: one with more would hide packages of the
    script's own."""
    package = Path(gpq_agent.__file__).resolve().parent
    if os.listdir(package.parent) == [package.name]:
        return str(package.parent)
    shutil.copytree(
        package, home / "library" / package.name, ignore=shutil.ignore_patterns("__pycache__")
    )
    return str(home / "library")


def _whole(courses: list[Course], request: Asked) -> None:
    """Raises where the script fails in one replica alone, or the time is over."""
    reference = courses[0]
    if reference.failed:
        output = last_lines(reference.log)
        refused = any("Permission denied" in line for line in output)
        raise GpqError(
            f"the script failed in one replica alone, with {reference.failed}:",
            f"{PAST_PYTHON if refused else ''}all that it printed: {reference.log}",
            output,
        )
    late_shapes = [course.shape.name for course in courses if not course.over]
    if late_shapes:
        completed_shapes = [
            course.shape.name for course in courses if course.over and not course.failed
        ]
        failures = [
            f"{course.shape.name} failed with {course.failed}: {course.log}"
            for course in courses
            if course.failed
        ]
        raise TimedOut(
            f"not done after {request.seconds:.0f} s: {'; '.join(late_shapes)}; what they printed:"
            f" {reference.folder.parent}",
            f"a longer --timeout, fewer --steps (now {request.steps}), or arguments that make the"
            " script smaller",
            [*failures, *([f"done: {'; '.join(completed_shapes)}"] if completed_shapes else [])],
        )


def _usable(reference: Run, course: Course, request: Asked) -> None:
    if reference.outside and (reference.facts is None or not reference.facts.loader):
        problem = "it neither loops over job.loader() nor asks job.should_stop()"
    elif not reference.last and not reference.outside:
        problem = "it made no step under gpq's library"
    else:
        return
    raise GpqError(
        f"{request.script}: {problem}, so there is nothing to compare",
        f"README, `A script that adapts`; what it printed: {course.folder}",
    )


def _notes(reference: Run, rows: list[ShapeView], judge: Judge, failure: str) -> list[str]:
    """`failure`: of the script in full precision."""
    notes = []
    facts = reference.facts
    if facts and facts.loader and not facts.compiled:
        notes.append(
            "random numbers were drawn by example, dropout and augmentation alike: a job's shapes"
            " draw their own"
        )
    if drawn(reference):
        notes.append(
            "some random numbers belong to no example, and were drawn alike in every part of a"
            " step: what they change could not be told from rounding"
        )
    if facts and (facts.compiled or not facts.loader):
        notes.append(
            "dropout was off: what a compiled model draws, or a loop of its own, nobody sees"
        )
    elif facts and facts.recurrent:
        notes.append(
            "dropout between the layers of recurrent modules was off: no shape draws as another"
            " does"
        )
    if judge.coarse:
        where = f"not in full precision, where the script fails ({failure[:200]})"
        notes.append(
            f"{where if failure else 'weights in half precision'}: judged at the first step that "
            f"is made otherwise, to within 3 units in the last place ({judge.coarse:.1%})"
        )
    else:
        notes.append("all was computed in full precision: no autocast, no TF32")
    if facts and not facts.loader:
        notes.append("the script has a loop of its own: gpq never accumulates or splits its steps")
    if judge.mixed and not drawn(reference):
        notes.append(
            "the order of the examples in a batch changes what is trained, so rounding could not be"
            " told apart"
        )
    metrics = sorted({name for row in rows for name in row.metrics})
    if metrics:
        notes.append(
            f"logged otherwise: {', '.join(metrics)[:200]} (a part of a batch has a value of its"
            " own)"
        )
    if any(row.verdict == DIFFERS for row in rows):
        notes.append("a habit behind a difference is a guess, from what differs first")
    return notes


def _tidy(home: Path, *, whole: bool) -> None:
    """Checkpoints go at once; what the script printed stays where somebody was told of it."""
    scratch.tidy(home)
    with contextlib.suppress(OSError):
        if whole:
            shutil.rmtree(home)
            return
        ours = (home / "library", home / scratch.NAME)
        for folder in (*home.glob("*/checkpoints"), *home.glob(f"*/{wire.CHECK_FILES}"), *ours):
            shutil.rmtree(folder, ignore_errors=True)

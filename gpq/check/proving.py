"""`gpq check` from the script to its verdict: runs all shapes, has them compared, saves the
result."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import gpq_agent
import msgspec
from gpq_agent import wire

from gpq import verdicts
from gpq.check import rows as judgement
from gpq.check import runner
from gpq.check.guesses import draws_numbers
from gpq.check.judge import Judge
from gpq.check.records import Facts, Run, read
from gpq.check.runner import CheckRequest, Runner, ShapeRun, last_lines
from gpq.check.shapes import AGAIN, REFERENCE, REPLICAS, ROUNDING, Shape, compared_shapes
from gpq.errors import GpqError, Interrupted, Refused, TimedOut
from gpq.source import Script, hints, text_of
from gpq.verdicts import FAILED, Verdict

THREADS = 4  # cores per thread of a process beyond the first
SHOWN = 10  # names of files
PAST_PYTHON = "under gpq check, C code and other programs may only write below TMPDIR. "
ASK = "import torch; print(torch.cuda.device_count())"
PATIENCE = 120  # seconds. A first import of torch from a network drive is slow


def prove(request: CheckRequest, on_end: Callable[[str], None]) -> Verdict:
    """Run the script in every shape. Calls `on_end` with the name of each finished shape. Raises
    GpqError if the script fails on its own."""
    start = time.monotonic()
    if request.gpu:
        need(REPLICAS, request.python, request.environ, request.cwd)
    home = Path(tempfile.mkdtemp(prefix="gpq-check-"))
    is_home_cited = False
    try:
        environ = _environ(request.environ, home)
        with interruptible(), Runner(replace(request, environ=environ), home) as runner:
            verdict = _verdict(request, runner, start, on_end)
        is_home_cited = verdict.verdict == FAILED
        place = verdicts.place(request.script, list(request.arguments))
        try:
            verdicts.keep(place, verdict)
        except (OSError, Refused) as error:
            cause = getattr(error, "strerror", error)
            remark = f"cannot save the verdict in {os.path.dirname(place)}: {cause}"
            verdict = msgspec.structs.replace(verdict, notes=[*verdict.notes, remark])
        return verdict
    except GpqError as error:
        is_home_cited = any(
            str(home) in text for text in (error.message, error.hint, *error.quoted)
        )
        raise
    finally:
        _tidy(home, with_logs=not is_home_cited)


def _verdict(
    request: CheckRequest, runner: Runner, start: float, on_end: Callable[[str], None]
) -> Verdict:
    """Run all shapes, and compare them."""
    deadline = start + request.seconds
    shapes = (REFERENCE, *ROUNDING, *compared_shapes(request.steps))
    courses, failure = _courses(runner, shapes, deadline, on_end)
    _whole(courses, request)
    reference, *other_runs = [read(course.folder, len(course.shape.attempts)) for course in courses]
    reorderings, runs = other_runs[: len(ROUNDING)], other_runs[len(ROUNDING) :]
    facts = _usable_facts(reference, courses[0], request)
    judge = Judge(reference, *reorderings, exact=runner.exact)
    reproducible = None
    if judge.rounding.mixed and not draws_numbers(reference):
        again = runner.run((AGAIN,), deadline, on_end)
        _whole(again, request)
        reproducible = judge.judge(read(again[0].folder, 1)).step is None
    script = Script(text_of(request.script))
    # gpq never accumulates or splits a loop of the script's own.
    unused = set() if facts.loader else {"accumulate", "split"}
    pairs = [
        (course, run)
        for course, run in zip(courses[1 + len(ROUNDING) :], runs, strict=True)
        if unused.isdisjoint(course.shape.freedoms)
    ]
    rows = judgement.rows(judge, pairs, script, reproducible)
    return Verdict(
        script=os.path.realpath(request.script),
        arguments=list(request.arguments),
        program=facts.digest,
        files=facts.files,
        torch=facts.torch,
        library=facts.library,
        verdict=judgement.worst(rows),
        steps=reference.last or request.steps,
        batch=facts.batch,
        shapes=rows,
        habits=judgement.habits([reference, *other_runs], rows),
        notes=[
            *judgement.notes(reference, facts, rows, judge.rounding, failure),
            *judgement.doubts([reference, *runs], rows),
            *_writes(courses[0].folder, request.cwd),
            *dict.fromkeys(line for run in runs for line in run.side_effects),
            *hints(script),
            *runner.remarks,
        ],
        coarse=judge.rounding.coarse,
        seconds=round(time.monotonic() - start, 1),
        at=datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _writes(folder: Path, cwd: str) -> list[str]:
    """A note about the files that the shape of this folder wrote."""
    written = folder / wire.CHECK_FILES / wire.CHECK_WRITTEN
    paths = sorted(path.relative_to(written) for path in written.rglob("*") if path.is_file())
    names = [str(Path("/", path)).removeprefix(f"{cwd.rstrip('/')}/") for path in paths]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"the script writes {', '.join(names[:SHOWN])}{more}"] if names else []


def _courses(
    runner: Runner, shapes: Sequence[Shape], deadline: float, on_end: Callable[[str], None]
) -> tuple[list[ShapeRun], str]:
    """All shapes, in the script's own precision if it fails in full precision, and that error."""
    courses = runner.run(shapes, deadline, on_end)
    reference = courses[0]
    if not reference.failed or not any(
        reference.folder.glob("*.jsonl")
    ):  # there are none before gpq.init()
        return courses, ""
    failure = reference.error()
    runner.exact = False
    return runner.run(shapes, deadline, on_end), failure


def _environ(own: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment in which the first process of a job starts, with the library of this gpq."""
    # A folder with only gpq_agent in it. Any other package there would hide the script's own.
    package = Path(gpq_agent.__file__).resolve().parent
    library = package.parent
    if os.listdir(library) != [package.name]:
        library = home / "library"
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, library / package.name, ignore=ignore)
    return {
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": wire.HASH_SEED,
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // THREADS)),
        **own,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(library), own.get("PYTHONPATH", "")])),
        **runner.variables(home),
    }


def _whole(courses: list[ShapeRun], request: CheckRequest) -> None:
    """Raises if the script fails in one replica, or if time is up."""
    reference = courses[0]
    if reference.failed:
        output = last_lines(reference.log)
        hint = f"see its full output in {reference.log}"
        if any("Permission denied" in line for line in output):
            hint = PAST_PYTHON + hint
        problem = f"the script fails on its own, in one replica, with {reference.failed}:"
        raise GpqError(problem, hint, output)
    late_shapes = [course.shape.name for course in courses if not course.over]
    if late_shapes:
        lines = [
            f"{course.shape.name} failed with {course.failed}: {course.log}"
            for course in courses
            if course.failed
        ]
        names = [course.shape.name for course in courses if course.over and not course.failed]
        if names:
            lines.append(f"done: {' / '.join(names)}")
        raise TimedOut(
            f"not done after {request.seconds:.0f} s: {' / '.join(late_shapes)}. Their output is in"
            f" {reference.folder.parent}",
            f"run `gpq check` with a longer --timeout, with fewer --steps (now {request.steps}), or"
            " with arguments that make the script smaller",
            lines,
        )


def _usable_facts(reference: Run, course: ShapeRun, request: CheckRequest) -> Facts:
    """What the script says about itself. It does so before its first step under gpq's library.
    Raises GpqError if it makes none."""
    facts = reference.facts or Facts(loader=False)
    problem = ""
    if reference.outside and not facts.loader:
        problem = "it neither loops over job.loader() nor calls job.should_stop()"
    elif not reference.last and not reference.outside:
        problem = "it made no step under gpq's library"
    if problem:
        raise GpqError(
            f"{request.script}: {problem}, so there is nothing to compare",
            f"see docs/training.md, and its output in {course.folder}",
        )
    return facts


def _tidy(home: Path, *, with_logs: bool) -> None:
    """Remove checkpoints at once, but keep the output that an error or a row refers to."""
    runner.tidy(home)
    with contextlib.suppress(OSError):
        if with_logs:
            shutil.rmtree(home)
            return
        own_folders = (home / "library", home / runner.SCRATCH)
        for folder in (
            *home.glob("*/checkpoints"),
            *home.glob(f"*/{wire.CHECK_FILES}"),
            *own_folders,
        ):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, SIGTERM and a closed terminal raise an error, as Ctrl-C does: contexts close, and
    their processes end."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def leave(number: int, _: object) -> None:
        raise Interrupted(number, "the check was interrupted, and all of its processes have ended")

    for number in handlers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def need(count: int, python: str, environ: Mapping[str, str], cwd: str) -> None:
    """Raises Refused if torch sees fewer GPUs, because it would silently train on the CPU. Starts a
    process."""
    try:
        answer = subprocess.run(
            [python, "-c", ASK],
            env=environ,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
        )
    except OSError as error:
        problem = f"cannot start {python} here: {error.strerror}"
        raise GpqError(problem, "use --python PATH with an interpreter of this machine") from None
    except subprocess.TimeoutExpired:
        raise GpqError(
            f"torch did not say within {PATIENCE} s how many GPUs there are",
            "check the driver with nvidia-smi",
        ) from None
    last_line = answer.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if answer.returncode or not last_line.isdecimal():
        error_line = answer.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        problem = (
            f"{python} cannot count the GPUs: {error_line or f'exit code {answer.returncode}'}"
        )
        raise GpqError(problem[:500], "use --python PATH with an interpreter that has torch")
    devices = int(last_line)
    if devices < count:
        plural = "" if devices == 1 else "s"
        raise Refused(
            f"--gpu needs {count} GPUs, but torch sees {devices} GPU{plural} here",
            "without --gpu the check runs on the CPUs",
        )

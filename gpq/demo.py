"""The demonstration: a private daemon with two embedded CPU servers, and three real training jobs.

It plays the users (who submits what, and when) and the judge (what must happen). `cli/lab` draws
it. Begin with `play`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

import msgspec

from gpq.client import connection, daemon_control
from gpq.errors import GpqError, Interrupted, Refused, TimedOut, UsageError
from gpq.policies.registry import entry
from gpq.rpc.daemon_answers import TopView
from gpq.rpc.job_answers import JobDetail, JobList, Submitted
from gpq.rpc.requests import Show, SpecMessage, Status, Submit, Top

SERVERS = ("alpha", "beta")
CONFIG = """\
# Written by `gpq demo`. Two embedded servers have one CPU slot each. Short intervals let you see
# something happen.
policy = "{policy}"
interval = 4.0
settle_seconds = 4.0
restart_seconds = 6.0
grace = 60.0
"""
# the first job has both servers at most this long, to grow
ALONE_SECONDS = 90.0
PAUSE = 0.5  # seconds between two frames


@dataclass(frozen=True, slots=True)
class Part:
    """One job of the cast."""

    name: str
    script: str  # under examples/
    arguments: tuple[str, ...]
    metric: str  # by its name in the script's log
    target: float
    higher: bool  # is a higher value better?


# The base batch is so small that a larger one helps: most of a step's time does not depend on its
# examples.
SMALL_BATCH = ("--epochs", "25", "--batch-size", "8", "--lr", "0.02")
DIGITS = Part("digits", "digits/train.py", SMALL_BATCH, "accuracy", 0.97, higher=True)
CAST = (
    Part("chargpt", "chargpt/train.py", ("--epochs", "8"), "held_out_loss", 2.0, higher=False),
    DIGITS,
    replace(DIGITS, name="digits-small", arguments=(*SMALL_BATCH, "--width", "24")),
)


class JobResult(msgspec.Struct, frozen=True):
    name: str
    id: int
    state: str
    metric: str
    value: float | None
    target: float
    reached: bool
    resizes: int
    restarts: int
    batch_changes: int
    samples_exact: bool  # every pass over the data visited every sample exactly once
    seconds: float


class DemoResult(msgspec.Struct, frozen=True):
    """What `gpq demo --json` prints."""

    completed: int
    jobs: list[JobResult]
    resized: int  # jobs whose number of GPUs changed while they ran
    batch_changed: int  # jobs whose batch size changed without a restart
    samples_exact: bool
    targets_reached: int
    seconds: float
    home: str  # "" for a temporary folder, which is gone
    policy: str
    passed: bool
    schema: int = 1


@dataclass
class Stage:
    """The private daemon's folder, its policy and the jobs on it."""

    home: Path
    examples: Path
    policy: str
    failed: bool = False
    # nobody named the folder, so it is removed once nothing in it is needed
    temporary: bool = False
    ids: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


def examples_folder() -> Path:
    """The example scripts, inside the package or next to it in a checkout. Raises Refused."""
    packaged = Path(str(resources.files("gpq"))) / "examples"
    for folder in (packaged, Path(__file__).resolve().parents[1] / "examples"):
        if (folder / "digits" / "train.py").is_file():
            return folder
    raise Refused(
        "the example scripts are missing from this installation",
        "install gpq again, or run the demo in a checkout",
    )


def check_training() -> None:
    """Raises Refused if the demo's interpreter cannot train."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "sklearn") if find_spec(name) is None]
    if missing:
        raise Refused(
            f"{sys.executable} cannot import {' and '.join(missing)}",
            "run pip install 'goodput-queue[train,examples]', or `make demo` in a checkout",
        )


@contextlib.contextmanager
def stage(home: str = "", policy: str = "goodput") -> Iterator[Stage]:
    """A private daemon in `home` (default: a new temporary folder). It and its jobs are gone
    afterwards. So is the temporary folder, unless something failed. Raises UsageError for an
    unknown policy, and for a `home` that is not writable."""
    entry(policy)
    check_training()
    folder = Path(home or tempfile.mkdtemp(prefix="gpq-demo-")).resolve()
    config = folder / "config.toml"
    try:
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(CONFIG.format(policy=policy) + servers(slots=1))
    except OSError as error:
        problem = f"--home {home}: cannot write there" if home else f"cannot write in {folder}"
        hint = "use --home with a writable folder"
        raise UsageError(f"{problem}: {error.strerror}", hint) from None
    here = Stage(folder, examples_folder(), policy, temporary=not home)
    is_needless = False
    try:
        with at_home(folder):
            yield here
        is_needless = not here.failed
    except (TimedOut, Interrupted, KeyboardInterrupt):
        is_needless = True
        raise
    finally:
        if here.temporary and is_needless:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def at_home(folder: Path) -> Iterator[None]:
    """With the daemon in this folder. It and its jobs are gone afterwards."""
    with acting_in(folder):
        try:
            yield
        finally:
            with contextlib.suppress(GpqError):
                daemon_control.stop(jobs=True)


@contextlib.contextmanager
def acting_in(folder: Path) -> Iterator[None]:
    """Commands speak to the daemon in this folder."""
    variables = {"GPQ_HOME": str(folder), "GPQ_CONFIG": str(folder / "config.toml")}
    old_environment = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in old_environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def servers(slots: int) -> str:
    """The part of config.toml that names the embedded servers."""
    text = ""
    cores = sorted(os.sched_getaffinity(0))
    for index, name in enumerate(SERVERS):
        share = cores[index :: len(SERVERS)] or cores
        text += f"\n[nodes.{name}]\nslots = {slots}\ncores = {share}\n"
    return text


def submit(here: Stage, part: Part) -> int:
    """Queue one job. Returns its id."""
    here.ids[part.name] = connection.call(Submit(message(here, part)), Submitted).id
    return here.ids[part.name]


def message(here: Stage, part: Part) -> SpecMessage:
    script = here.examples / part.script
    return SpecMessage(
        argv=[str(script), *part.arguments],
        cwd=str(script.parent),
        level="script",
        name=part.name,
        python=sys.executable,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    )


def play(here: Stage, draw: Callable[[TopView, str], None], *, timeout: float) -> DemoResult:
    """Submit the jobs, watch them to the end, judge. Calls `draw` with each frame. Raises TimedOut
    at `timeout`."""
    first, *later_parts = CAST
    submit(here, first)
    queue = list(later_parts)
    while True:
        view = connection.call(Top(), TopView)
        elapsed = time.monotonic() - here.started
        if queue and (elapsed > ALONE_SECONDS or _is_grown(here, first)):
            submit(here, queue.pop(0))
        cast = connection.call(Status([str(number) for number in here.ids.values()]), JobList)
        ended_count = sum(job.ended_at is not None for job in cast.jobs)
        draw(view, _act(here, queue, ended_count))
        if not queue and ended_count == len(CAST):
            return judge(here)
        if elapsed > timeout:
            logs = "--home DIR keeps its logs" if here.temporary else f"its logs are in {here.home}"
            raise TimedOut(
                f"the demo did not end within {timeout:.0f} s", f"use a longer --timeout ({logs})"
            )
        time.sleep(PAUSE)


def _is_grown(here: Stage, part: Part) -> bool:
    """Does it have what it waits for, so that the others may come? A growth that is only ordered
    may still be cancelled."""
    [job] = connection.call(Status([str(here.ids[part.name])]), JobList).jobs
    if job.ended_at is not None:
        return True
    if entry(here.policy).gang:
        return job.gpus > 0
    return job.resizes > 0


def _act(here: Stage, queue: list[Part], ended_count: int) -> str:
    if queue and entry(here.policy).gang:
        return "jobs arrive, and each gets the one GPU that it asked for"
    if len(here.ids) == 1:
        return "one job alone grows onto both servers"
    if queue:
        return "other jobs arrive, and it gives a server back"
    return f"{ended_count} of {len(CAST)} jobs done"


def judge(here: Stage) -> DemoResult:
    """What each job reached, from the daemon's records."""
    results = [_result(here, part) for part in CAST]
    here.failed = not passes(here.policy, results)
    return DemoResult(
        sum(result.state == "completed" for result in results),
        results,
        sum(result.resizes > 0 for result in results),
        sum(result.batch_changes > 0 for result in results),
        all(result.samples_exact for result in results),
        sum(result.reached for result in results),
        time.monotonic() - here.started,
        str(here.home) if here.failed or not here.temporary else "",
        here.policy,
        not here.failed,
    )


def passes(policy: str, jobs: Sequence[JobResult]) -> bool:
    """Did every job reach its target? Only elastic policies must resize, and only policies that
    know the value of a batch size must change one."""
    traits = entry(policy)
    is_complete = all(
        job.state == "completed" and job.reached and job.samples_exact for job in jobs
    )
    is_resized = traits.gang or any(job.resizes > 0 for job in jobs)
    return (
        is_complete
        and is_resized
        and (traits.own_batch or any(job.batch_changes > 0 for job in jobs))
    )


def _result(here: Stage, part: Part) -> JobResult:
    detail = connection.call(Show(str(here.ids[part.name])), JobDetail)
    job, value = detail.job, detail.metrics.get(part.metric)
    passes = detail.metrics.get("gpq_passes") or 0.0
    sign = 1 if part.higher else -1
    return JobResult(
        name=part.name,
        id=job.id,
        state=job.state,
        metric=part.metric,
        value=value,
        target=part.target,
        reached=value is not None and sign * value >= sign * part.target,
        resizes=job.resizes,
        restarts=job.restarts,
        batch_changes=job.batch_changes,
        samples_exact=passes > 0 and detail.metrics.get("gpq_passes_exact") == passes,
        seconds=job.run_seconds,
    )

"""The order of events: the jobs are submitted, watched to their end, and judged."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpq.client import connection
from gpq.demo.cast import CAST, Part
from gpq.demo.judge import DemoResult, judge
from gpq.demo.stage import Stage, submit
from gpq.errors import TimedOut
from gpq.policies.registry import entry
from gpq.rpc.daemon_answers import TopView
from gpq.rpc.job_answers import JobList
from gpq.rpc.requests import Status, Top

# the first job has both servers at most this long, to grow
ALONE_SECONDS = 90.0


def play(
    here: Stage, draw: Callable[[TopView, str], None], *, timeout: float, pause: float = 0.5
) -> DemoResult:
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
            raise _timed_out(here, timeout)
        time.sleep(pause)


def _timed_out(here: Stage, timeout: float) -> TimedOut:
    logs = f"its logs are in {here.home}"
    if here.temporary:
        logs = "--home DIR keeps its logs"
    return TimedOut(
        f"the demo did not end within {timeout:.0f} s",
        f"use a longer --timeout ({logs})",
    )


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

"""`gpq cancel`: returns when it is proven that no process of the jobs is left."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from gpq.cli import output, values
from gpq.cli.frame import Jobs, Json, frame
from gpq.client.connection import Lasting
from gpq.rpc import messages
from gpq.views.queue import ENDED

app = frame()


@app.command()
def cancel(
    jobs: Jobs,
    timeout: Annotated[str, typer.Option("--timeout", metavar="DURATION", help="Wait so long for the proof.")] = "3m",
    json: Json = False,
) -> int:
    """Stop jobs for good, first gracefully. Returns when it is proven that no process of them is left on any GPU.

    Its processes get TERM, and those that are left after 10 s KILL; `gpq hold` lets a job write a checkpoint instead.
    Where a server does not answer, the order waits for it, and that is said at once. Ctrl-C ends the waiting, not the
    cancelling. Exit code 1 when something was still there after the timeout, or a server was taken out of gpq before,
    so that nobody can tell.

    \b
    Example:
      gpq cancel 42
      gpq cancel 3-7 train
    """
    with Lasting(output.note) as daemon:
        answer = _ask(daemon, jobs, values.seconds(timeout, "--timeout"))
    if json:
        output.emit(answer)
    else:
        output.say(*(f"job {job} cancelled: no process is left" for job in answer.cancelled))
        output.say(*(f"job {job} had ended: nothing to cancel" for job in answer.ended))
        output.note(
            *(
                f"job {job} given up: nothing is known of its processes on {', '.join(nodes)}, taken out of gpq"
                for job, nodes in answer.given_up.items()
            )
        )
        if not (answer.cancelled or answer.ended or answer.remaining or answer.given_up):
            output.say("no job to cancel")
        still = [job for job in answer.remaining if job not in answer.waiting]
        output.note(*(f"job {job} still has processes after {timeout}: `gpq why {job}`" for job in still))
        output.note(*(f"job {job}: the order waits for its server ({why})" for job, why in answer.waiting.items()))
    return 1 if answer.remaining or answer.given_up else 0


def _ask(daemon: Lasting, jobs: list[str], seconds: float) -> messages.CancelResult:
    """A second daemon, asked the same once more, finds ended what the first one has cancelled."""
    before = daemon.call(messages.Status(jobs), messages.JobList).jobs
    names = [str(job.id) for job in before]  # `all` means what it meant at first
    answer = daemon.call(messages.Cancel(names, wait=seconds), messages.CancelResult)
    ran = {job.id for job in before if job.state not in ENDED}
    if not ran.intersection(answer.ended):
        return answer
    after = daemon.call(messages.Status([str(job) for job in answer.ended]), messages.JobList).jobs
    ours = [job.id for job in after if job.id in ran and job.state == "cancelled"]
    ended = [job for job in answer.ended if job not in ours]
    return msgspec.structs.replace(answer, cancelled=[*answer.cancelled, *ours], ended=ended)

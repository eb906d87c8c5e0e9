"""`gpq cancel`: returns when it is proven that no process of the jobs is left."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli import output, values
from gpq.cli.frame import Jobs, Json, frame
from gpq.client import following
from gpq.client.connection import Lasting

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
        answer = following.cancelled(daemon, jobs, values.seconds(timeout, "--timeout"))
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

"""`gpq status` with all its options. Plain calls never come here: the door answers them."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli.jobs import status_fast
from gpq.cli.shared.typer_app import Color, ColorChoice, Json, frame

app = frame()


JOBS = typer.Argument(
    metavar="[JOB | QUERY]...", help="Ids, ranges, names, @ for the last, all; or conditions."
)
USER = typer.Option("--user", "-u", metavar="USER", help="Only this user's jobs.")
STATE = typer.Option(
    "--state", "-s", metavar="STATE", help="Only jobs in this state; may be repeated."
)
RECENT = typer.Option("--recent", metavar="N", min=0, help="How many of the jobs that ended.")
EVERYTHING = typer.Option("--all", "-a", help="All jobs there ever were.")


@app.command()
def status(
    jobs: Annotated[list[str] | None, JOBS] = None,
    user: Annotated[str, USER] = "",
    state: Annotated[list[str] | None, STATE] = None,
    recent: Annotated[int, RECENT] = 20,
    everything: Annotated[bool, EVERYTHING] = False,
    color: Color = ColorChoice.auto,
    json: Json = False,
) -> int:
    """The queue: who has which GPUs, how well it goes, and why the others wait.

    A query is conditions that all have to hold, on id, name, user, state, tag, server, kind, gpus,
    batch, goodput, throughput, efficiency, speedup, rho, progress, eta, age, run, priority, array,
    index, attempt, restarts, resizes, exit, reason and command: = and != (one of A,B), ~ and !~
    (contains), < > <= >=. sort=-goodput,id orders, limit=10 limits.

    SPEEDUP is the goodput over that of a fair share of the GPUs. RUN is how long a job ran, in all
    attempts; AGE the time since it was submitted, until its end if it has ended. Jobs that ended
    stand first, live ones last, where the prompt is.

    \b
    Example:
      gpq status
      gpq status 3-7 --json
      gpq status --user alice --state running
      gpq status "user=alice tag~cifar age>2h sort=-goodput"
    """
    return status_fast.show(
        list(jobs or []),
        json=json,
        all=everything,
        color=color.value,
        user=user,
        states=list(state or []),
        recent=recent,
    )

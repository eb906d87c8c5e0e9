"""`gpq status` with all its options. `fast_path` answers plain calls without this module."""

from __future__ import annotations

from typing import Annotated

import typer

from gpq.cli.jobs import status_fast
from gpq.cli.typer_app import Color, ColorChoice, Json, frame
from gpq.rpc.job_columns import FIELDS

app = frame()


JOBS = typer.Argument(
    metavar="[JOB | QUERY]...", help="Ids, ranges, names, @ for the last job, all, or conditions."
)
USER = typer.Option("--user", "-u", metavar="USER", help="Only this user's jobs.")
STATE = typer.Option(
    "--state", "-s", metavar="STATE", help="Only jobs in this state. Can be repeated."
)
RECENT = typer.Option("--recent", metavar="N", min=0, help="How many ended jobs to show.")
EVERYTHING = typer.Option("--all", "-a", help="Show all jobs, also all that ended.")


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
    """Show the queue: which job has which GPUs, how well it runs, and why the others wait.

    A query is one or more conditions, and all must hold. Use FIELDS. Compare with = or != (one of
    A,B), ~ or !~ (contains), < > <= >=. sort=-goodput,id sorts, and limit=10 shows ten.

    SPEEDUP is the goodput relative to the goodput on a fair share of the GPUs. RUN is the run time
    over all attempts. AGE is the time from submission to the end, or until now. Ended jobs come
    first and live jobs last, next to the prompt.

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


status.__doc__ = str(status.__doc__).replace("FIELDS", f"{', '.join(FIELDS[:-1])} or {FIELDS[-1]}")

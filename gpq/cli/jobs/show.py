"""`gpq show` and `gpq why`: everything about one job, and the reasons of the last round for it."""

from __future__ import annotations

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Job, Json, frame
from gpq.client.connection import call
from gpq.rpc import job_answers, requests
from gpq.views import detail

show = frame()
why = frame()


@show.command("show")
def _show(job: Job, color: Color = ColorChoice.auto, json: Json = False) -> None:
    """Show everything about one job.

    It shows the request, the attempts and their GPUs, the goodput by number of GPUs, and the cost
    of restarts.

    \b
    Example:
      gpq show 42
      gpq show @ --json
    """
    answer = call(requests.Show(job), job_answers.JobDetail)
    output.text(detail.lines, answer, color.value, as_json=json)


@why.command("why")
def _why(job: Job, color: Color = ColorChoice.auto, json: Json = False) -> None:
    """Explain why a job waits, or why it has these GPUs, and what would change that.

    \b
    Example:
      gpq why 42
    """
    answer = call(requests.Why(job), job_answers.Explanation)
    output.text(detail.why, answer, color.value, as_json=json)

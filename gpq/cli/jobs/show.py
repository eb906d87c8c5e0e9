"""`gpq show`: everything about one job."""

from __future__ import annotations

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Job, Json, frame
from gpq.client.connection import call
from gpq.rpc import job_answers, requests
from gpq.views import detail

app = frame()


@app.command()
def show(job: Job, color: Color = ColorChoice.auto, json: Json = False) -> None:
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

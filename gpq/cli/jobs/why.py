"""`gpq why`: the reasons of the last round for one job."""

from __future__ import annotations

from gpq.cli import output
from gpq.cli.typer_app import Color, ColorChoice, Job, Json, frame
from gpq.client.connection import call
from gpq.rpc import job_answers, requests
from gpq.views import explanation

app = frame()


@app.command()
def why(job: Job, color: Color = ColorChoice.auto, json: Json = False) -> None:
    """Explain why a job waits, or why it has these GPUs, and what would change that.

    \b
    Example:
      gpq why 42
    """
    answer = call(requests.Why(job), job_answers.Explanation)
    output.text(explanation.lines, answer, color.value, as_json=json)

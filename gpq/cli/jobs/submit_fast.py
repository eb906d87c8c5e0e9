"""`gpq submit`, once its words are read, by typer or without. Imports neither typer nor rich."""

from __future__ import annotations

from gpq.client.connection import call
from gpq.options import submit_request
from gpq.rpc import job_answers, requests


def run(parsed: submit_request.Parsed) -> int:
    """Submit, and print the result."""
    settled = submit_request.settle_typed(parsed)
    hold, wait, dry_run, json = (settled.how[key] for key in ("hold", "wait", "dry_run", "json"))
    if submit_request.wants_check(settled):
        from gpq.cli.jobs.check import check_first

        settled.notes[:0] = check_first(settled.texts, quiet=json)
    request, notes = submit_request.make_request(settled)
    if notes:
        from gpq.cli import output

        output.note(*notes)
    if dry_run:
        from gpq.views.queue import ranges

        preview = call(request, job_answers.DryRun)
        places = ", ".join(f"{part.node} GPU {ranges(part.indices)}" for part in preview.placement)
        state = f"would be {preview.state}" + (f" on {places}" if places else "")
        _print(preview, [state, *(f"  {reason}" for reason in preview.reasons)], json=json)
        return 0
    answer = call(request, job_answers.Submitted)
    array = request.array
    _print(
        answer,
        [submitted_line(answer, array) + (", held: `gpq release` lets it start" if hold else "")],
        json=json,
    )
    if wait:
        from gpq.cli import output
        from gpq.cli.jobs.wait import until_ended

        what = "array" if array is not None else "job"
        with output.on_interrupt(
            f"{what} {answer.id} stays queued or keeps running: `gpq cancel {answer.id}` stops it"
        ):
            return until_ended([str(answer.id)], None, quiet=json, say_why=True)
    return 0


def submitted_line(answer: job_answers.Submitted, array: requests.ArrayMessage | None) -> str:
    if array is None:
        return f"job {answer.id} submitted"
    count, first, last = len(answer.jobs), answer.jobs[0], answer.jobs[-1]
    numbers = f"{answer.id}_{array.indices[0]}" + (
        f" to {answer.id}_{array.indices[-1]}" if count > 1 else ""
    )
    jobs = f"{count} jobs, {first} to {last}" if count > 1 else f"1 job, {first}"
    return f"array {answer.id} submitted: {jobs} ({numbers})" + (
        f", at most {array.limit} at once" if array.limit else ""
    )


def _print(
    answer: job_answers.Submitted | job_answers.DryRun, lines: list[str], *, json: bool
) -> None:
    from gpq.cli import output

    output.confirm(*lines, result=answer if json else None)
    if not json:
        output.note(*answer.warnings)

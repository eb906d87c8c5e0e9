"""`gpq submit`, the fast way: reads plain options without typer. Both ways end in `run`."""

from __future__ import annotations

import msgspec

from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.options import job_spec, standard_input, submit_request
from gpq.rpc import job_answers, requests
from gpq.rpc.submit_table import BY_WORD


def quick(argv: list[str]) -> int | None:
    """Exit status, or None if typer must read the options (help, mistakes)."""
    parsed = submit_request.parse(argv)
    return None if parsed is None else run(parsed)


def run(parsed: submit_request.Parsed) -> int:
    """Submit, and print the result."""
    misplaced = late(parsed)
    if not parsed.words and "wrap" not in dict(parsed.pairs) and standard_input.has_script():
        parsed.words = ["-"]
    settled = submit_request.settle(parsed)
    texts = settled.texts
    if texts.words and not texts.stdin:
        stdin, unused = standard_input.implied_stdin(texts.words, black_box=texts.black_box)
        texts = texts.having(stdin=stdin)
        settled = msgspec.structs.replace(settled, texts=texts, notes=[*unused, *settled.notes])
    hold, wait, dry_run, json = (settled.how[key] for key in ("hold", "wait", "dry_run", "json"))
    if settled.how["check"] or _is_check_configured(settled):
        from gpq.cli.jobs.check import check_first

        misplaced += check_first(texts, quiet=json)
    request, notes = submit_request.make_request(settled)
    notes = [*misplaced, *notes]
    if notes:
        from gpq.cli import output

        output.note(*notes)
    if dry_run:
        return _preview(call(request, job_answers.DryRun), json=json)
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


def _is_check_configured(settled: submit_request.ResolvedOptions) -> bool:
    """Does config.toml ask for a check of this script? Raises UsageError."""
    how, texts = settled.how, settled.texts
    if texts.black_box or not texts.words or how["no_check"] or how["dry_run"]:
        return False
    from gpq import config

    return job_spec.script_of(texts).uses_library() and config.load().check == "first"


def late(parsed: submit_request.Parsed) -> list[str]:
    """A note about options of gpq that are placed after the script or command. Raises UsageError if
    a command begins with one. Options that gpq would refuse for a command belong to the command."""
    words = [word.partition("=")[0] for word in parsed.words]
    if parsed.black_box:
        if words and words[0] in BY_WORD:
            raise UsageError(
                f"{words[0]} is after `--`, where the command begins",
                "put gpq's options before `--`",
            )
        words = [word for word in words if word not in job_spec.OF_SCRIPTS]
    misplaced = dict.fromkeys(name for name in words[1:] if name[:2] == "--" and name in BY_WORD)
    if not misplaced:
        return []
    where, whom, before = (
        ("`--`", "the command", "`--`") if parsed.black_box else ("the script", "it", "it")
    )
    are, go = ("are", "go") if len(misplaced) > 1 else ("is", "goes")
    return [
        f"{', '.join(misplaced)} {are} after {where} and so {go} to {whom}:"
        f" put gpq's options before {before}"
    ]


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


def _preview(answer: job_answers.DryRun, *, json: bool) -> int:
    from gpq.views.queue import ranges

    places = ", ".join(f"{part.node} GPU {ranges(part.indices)}" for part in answer.placement)
    lines = [f"would be {answer.state}" + (f" on {places}" if places else "")]
    _print(answer, lines + [f"  {reason}" for reason in answer.reasons], json=json)
    return 0


def _print(
    answer: job_answers.Submitted | job_answers.DryRun, lines: list[str], *, json: bool
) -> None:
    from gpq.cli import output

    output.confirm(*lines, result=answer if json else None)
    if not json:
        output.note(*answer.warnings)

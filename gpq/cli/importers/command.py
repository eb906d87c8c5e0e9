"""`gpq import`: what waits elsewhere, as jobs of gpq; shown, and queued with --submit. Changes
nothing where it comes from."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import typer

from gpq.cli.importers import task_spooler
from gpq.cli.shared import output
from gpq.cli.shared.typer_app import Json, frame
from gpq.cli.submit import submit_fast
from gpq.client.connection import call
from gpq.errors import GpqError
from gpq.options import environment, json_answers, left_behind, submit_request, submit_words
from gpq.options.parsing import values
from gpq.rpc import job_answers

app = frame()
FILES = typer.Argument(metavar="FILE...", help="Job scripts with #SBATCH lines.")
SUBMIT = typer.Option("--submit", help="Queue them; without it they are shown only.")
HOLD = typer.Option("--hold", help="Queue them held: `gpq release` lets them run.")
UNCLEAR = set("\"'`$&|;<>()*?[]{}\\\n#~!")


@dataclass
class Found:
    """A job that could be queued: `settled` as gpq understands it, or `refused` why not. `after`:
    sources before it."""

    source: str
    settled: submit_request.Settled | None = None
    notes: list[str] = field(default_factory=list)
    refused: str = ""
    hint: str = ""
    after: str = ""
    id: int | None = None
    said: str = ""  # once it is queued


@app.callback(help="Jobs from Slurm's scripts and from task-spooler's queue.")
def importing() -> None:
    """Make it a group of commands."""


@app.command()
def slurm(
    files: Annotated[list[str], FILES],
    submit: Annotated[bool, SUBMIT] = False,
    hold: Annotated[bool, HOLD] = False,
    json: Json = False,
) -> int:
    """What gpq makes of scripts that were written for sbatch: the line of `gpq submit` that says
    the same, and what is lost.

    That line queues the very job that --submit does, with the variables of Slurm that the script
    finds. Exit code 5 when one of them cannot be a job of gpq as it is; the others are queued all
    the same with --submit. A file that cannot be read is a mistake (exit code 2): then none is
    queued.

    \b
    Example:
      gpq import slurm jobs/*.sh
      gpq import slurm train.sbatch --submit
    """
    for file in files:
        _readable(file)
    found = [_of_script(file, hold=hold) for file in dict.fromkeys(files)]
    return _finish(found, submit=submit, json=json)


@app.command()
def ts(
    submit: Annotated[bool, SUBMIT] = False, hold: Annotated[bool, HOLD] = False, json: Json = False
) -> int:
    """The jobs that wait in task-spooler (tsp) as jobs of gpq: command, directory, label, slots as
    GPUs, and dependencies.

    Its queue stays as it is: the command that removes them there is printed. Exit code 5 when
    something cannot be queued.

    \b
    Example:
      gpq import ts
      gpq import ts --submit --hold
    """
    queue = task_spooler.queue()
    found: list[Found] = []
    for job in queue.waiting:
        offered = {one.source for one in found if not one.refused}
        found.append(_of_spooler(job, offered, queue.running, hold=hold))
    code = _finish(found, submit=submit, json=json)
    taken = [one.source for one in found if one.id is not None]
    if taken and not json:
        where = f"TS_SOCKET={shlex.quote(queue.socket)} " if os.environ.get("TS_SOCKET") else ""
        output.note("they are still queued in task-spooler as well, and would run twice")
        output.say(
            f"remove them there: for id in {' '.join(taken)}; do {where}{queue.program} -r $id;"
            " done"
        )
    elif not queue.waiting and not json:
        output.say("nothing waits in task-spooler")
    return code


def _readable(file: str) -> None:
    """Raises UsageError."""
    hint = "name job scripts, such as jobs/*.sh"
    if os.path.isdir(file):
        hint = f"name the scripts in it, such as {shlex.quote(file.rstrip('/') or '/')}/*.sh"
    values.readable(file, file, hint)


def _of_script(file: str, *, hold: bool) -> Found:
    found = Found(file)
    _settle(found, submit_words.Parsed({}, [os.path.abspath(file)]), hold=hold)
    if found.settled is not None and found.settled.how["dry_run"]:
        found.settled, found.refused = None, "it says --test-only, and sbatch would queue nothing"
        found.hint = "take the line out"
    elif found.settled is not None and found.settled.how["wait"]:
        found.notes.append("it says --wait, and nothing waits here: `gpq wait JOB` does")
    return found


def _settle(found: Found, parsed: submit_words.Parsed, *, hold: bool) -> None:
    """The job that is queued and the line that is shown are both made of `found.settled`."""
    try:
        settled = submit_request.settle(parsed)
        settled = msgspec.structs.replace(
            settled, how={**settled.how, "hold": hold or settled.how["hold"]}
        )
        request, notes = submit_request.requested(settled)
    except GpqError as error:
        found.refused, found.hint = error.message, error.hint
        return
    found.settled = settled
    found.notes += [*settled.notes, *notes, *left_behind.notes(request.spec, os.environ)]


def _of_spooler(
    job: task_spooler.Waiting, offered: set[str], running: Sequence[int], *, hold: bool
) -> Found:
    found = Found(str(job.id))
    argv = job.argv
    if job.after is not None and str(job.after) in offered:
        found.after = str(job.after)
    elif job.after is not None:
        how = "runs there now" if job.after in running else "is not imported with it"
        found.refused, found.hint = (
            f"it waits for {job.after}, which {how}",
            "import it once that one has ended",
        )
        return found
    if argv is None and UNCLEAR.intersection(job.text):
        found.refused = f"how `{job.text}` was quoted is not known: no process of it was found"
        found.hint = "submit it by hand: gpq submit -- ..."
        return found
    if argv is None:
        argv = job.text.split(" ")
        found.notes.append("its directory is not known: this one is taken")
    fields: dict[str, Any] = {
        "name": values.as_name(job.label),
        "cwd": job.cwd,
        "gpus": str(max(job.slots, 1)),
    }
    fields = {key: value for key, value in fields.items() if value and (key != "name" or job.label)}
    if job.slots < 1:
        found.notes.append("it asked for no slot and gets one GPU")
    kept = environment.kept(job.env, {})
    fields["env"] = [
        f"{key}={value}" for key, value in kept.items() if os.environ.get(key) != value
    ]
    if job.env.get("CUDA_VISIBLE_DEVICES"):
        found.notes.append(
            "CUDA_VISIBLE_DEVICES was set there: gpq chooses the GPUs and sets it itself"
        )
    _settle(found, submit_words.Parsed(fields, argv, True), hold=hold)
    return found


def _finish(found: list[Found], *, submit: bool, json: bool) -> int:
    """Queue what can be, if asked to; print all of it. 5 when something cannot be queued."""
    queued: dict[str, int] = {}
    for one in found if submit else ():
        if one.settled is not None and not one.refused:
            _queue(one, queued)
    if json:
        output.emit(json_answers.Imported([_view(one) for one in found]))
    else:
        for one in found:
            _say(one)
        if found and not submit and any(one.settled for one in found):
            output.say("nothing is queued yet: --submit does it")
    return 5 if any(one.refused for one in found) else 0


def _queue(one: Found, queued: dict[str, int]) -> None:
    assert one.settled is not None
    if one.after and one.after not in queued:
        one.refused, one.hint = f"it waits for {one.after}, which was not queued", "see there"
        return
    try:
        request, _ = submit_request.requested(one.settled)
        if one.after:
            spec = msgspec.structs.replace(request.spec, after=[f"{queued[one.after]}:ok"])
            request = msgspec.structs.replace(request, spec=spec)
        answer = call(request, job_answers.Submitted)
        queued[one.source] = one.id = answer.id
        one.said = submit_fast.submitted_line(answer, request.array)
        one.notes += answer.warnings
    except GpqError as error:
        one.refused, one.hint = error.message, error.hint


def _view(one: Found) -> json_answers.ImportView:
    argv = submit_request.words_of(one.settled) if one.settled else []
    return json_answers.ImportView(
        one.source, argv, one.notes, one.after, one.refused, one.hint, one.id
    )


def _say(one: Found) -> None:
    view = _view(one)
    if one.refused:
        output.failure(f"{one.source}: {one.refused}", one.hint)
        return
    said = one.said or shlex.join(view.argv)
    output.say(
        f"{one.source}: {said}"
        + (f"   # after {one.after} of this list" if one.after and one.id is None else "")
    )
    clear = ("#", f"{os.path.basename(one.source)} ")  # these name the script themselves
    output.note(
        *(note if note.startswith(clear) else f"{one.source}: {note}" for note in view.notes)
    )

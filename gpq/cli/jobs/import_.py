"""`gpq import`: shows jobs from elsewhere as jobs of gpq, and queues them with --submit. Changes
nothing at the source."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import typer

from gpq.cli import output
from gpq.cli.jobs import submit_fast, task_spooler
from gpq.cli.typer_app import Json, frame
from gpq.client.connection import call
from gpq.errors import GpqError
from gpq.options import environment, json_answers, submit_request, values
from gpq.rpc import job_answers

app = frame()
FILES = typer.Argument(metavar="FILE...", help="Job scripts with #SBATCH lines.")
SUBMIT = typer.Option("--submit", help="Queue the jobs instead of only showing them.")
HOLD = typer.Option("--hold", help="Queue the jobs held. `gpq release` lets them start.")
UNCLEAR = set("\"'`$&|;<>()*?[]{}\\\n#~!")


@dataclass
class ImportedJob:
    """A job that can be queued: `submission` as gpq understands it, or `refused` with the reason.
    `after`: sources that it waits for."""

    source: str
    submission: submit_request.ResolvedOptions | None = None
    notes: list[str] = field(default_factory=list)
    refused: str = ""
    hint: str = ""
    after: str = ""
    id: int | None = None
    confirmation: str = ""  # after it was queued

    @property
    def argv(self) -> list[str]:
        """Words of the `gpq submit` command that does the same."""
        return submit_request.words_of(self.submission) if self.submission else []

    def refuse(self, reason: str, hint: str) -> None:
        self.refused, self.hint = reason, hint


@app.callback(help="Import jobs from Slurm scripts or from task-spooler.")
def importing() -> None:
    """Make it a group of commands."""


@app.command()
def slurm(
    files: Annotated[list[str], FILES],
    submit: Annotated[bool, SUBMIT] = False,
    hold: Annotated[bool, HOLD] = False,
    json: Json = False,
) -> int:
    """Show the `gpq submit` line for scripts that were written for sbatch, and what gets lost.

    That line queues the same job as --submit, with the Slurm variables that the script reads. If a
    script cannot become a gpq job as it is, the exit code is 5, and --submit still queues the
    others. If a file cannot be read, the exit code is 2, and --submit queues nothing.

    \b
    Example:
      gpq import slurm jobs/*.sh
      gpq import slurm train.sbatch --submit
    """
    for file in files:
        hint = "give job scripts, such as jobs/*.sh"
        if os.path.isdir(file):
            hint = f"give the scripts in it, such as {shlex.quote(file.rstrip('/') or '/')}/*.sh"
        values.readable(file, file, hint)
    candidates = []
    for file in dict.fromkeys(files):
        candidate = ImportedJob(file)
        _settle(candidate, submit_request.Parsed({}, [os.path.abspath(file)]), hold=hold)
        how = candidate.submission.how if candidate.submission is not None else {}
        if how.get("dry_run"):
            candidate.submission = None
            candidate.refuse(
                "it has --test-only, so sbatch would queue nothing", "remove that line"
            )
        elif how.get("wait"):
            candidate.notes.append(
                "it has --wait, but gpq import does not wait: use `gpq wait JOB`"
            )
        candidates.append(candidate)
    return _finish(candidates, submit=submit, json=json)


@app.command()
def ts(
    submit: Annotated[bool, SUBMIT] = False, hold: Annotated[bool, HOLD] = False, json: Json = False
) -> int:
    """Show or import the jobs that wait in task-spooler (tsp).

    gpq takes over command, directory, label and dependencies, and turns slots into GPUs. The queue
    of task-spooler stays as it is, and gpq prints the command that removes the jobs there. The exit
    code is 5 if a job cannot be queued.

    \b
    Example:
      gpq import ts
      gpq import ts --submit --hold
    """
    queue = task_spooler.queue()
    candidates: list[ImportedJob] = []
    for job in queue.waiting:
        sources = {candidate.source for candidate in candidates if not candidate.refused}
        candidates.append(_of_spooler(job, sources, queue.running, hold=hold))
    code = _finish(candidates, submit=submit, json=json)
    if json:
        return code
    queued_sources = [job.source for job in candidates if job.id is not None]
    if queued_sources:
        where = f"TS_SOCKET={shlex.quote(queue.socket)} " if os.environ.get("TS_SOCKET") else ""
        output.note("these jobs are still queued in task-spooler, so they would run twice")
        output.say(
            f"remove them there: for id in {' '.join(queued_sources)}; do"
            f" {where}{queue.program} -r $id; done"
        )
    elif not queue.waiting:
        output.say("nothing waits in task-spooler")
    return code


def _settle(candidate: ImportedJob, parsed: submit_request.Parsed, *, hold: bool) -> None:
    """Make `candidate.submission`, from which both the job and the shown line are made."""
    try:
        submission = submit_request.settle(parsed)
        submission = msgspec.structs.replace(
            submission, how={**submission.how, "hold": hold or submission.how["hold"]}
        )
        notes = submit_request.make_request(submission)[1]
    except GpqError as error:
        candidate.refuse(error.message, error.hint)
        return
    candidate.submission = submission
    candidate.notes += notes


def _of_spooler(
    job: task_spooler.Waiting, sources: set[str], running: Sequence[int], *, hold: bool
) -> ImportedJob:
    candidate = ImportedJob(str(job.id))
    if job.after is not None and str(job.after) not in sources:
        place = "is running there" if job.after in running else "cannot be imported with it"
        candidate.refuse(
            f"it waits for {job.after}, which {place}", f"import it when {job.after} has ended"
        )
        return candidate
    if job.after is not None:
        candidate.after = str(job.after)
    if job.argv is None and UNCLEAR.intersection(job.text):
        candidate.refuse(
            f"cannot tell how `{job.text}` was quoted: it has no process",
            "submit it by hand: gpq submit -- ...",
        )
        return candidate
    # What changes compared with task-spooler.
    if job.argv is None:
        candidate.notes.append("its directory is unknown, so the current one is used")
    if job.slots < 1:
        candidate.notes.append("it asked for no slot, but every gpq job gets at least one GPU")
    if job.env.get("CUDA_VISIBLE_DEVICES"):
        candidate.notes.append(
            "CUDA_VISIBLE_DEVICES was set, but gpq chooses the GPUs and sets it itself"
        )
    argv = job.text.split(" ") if job.argv is None else job.argv
    variables = environment.job_variables(job.env, {})
    options: dict[str, Any] = {}
    if job.label:
        options["name"] = values.as_name(job.label)
    if job.cwd:
        options["cwd"] = job.cwd
    options["gpus"] = str(max(job.slots, 1))
    options["env"] = [
        f"{key}={text}" for key, text in variables.items() if os.environ.get(key) != text
    ]
    _settle(candidate, submit_request.Parsed(options, argv, True), hold=hold)
    return candidate


def _finish(candidates: list[ImportedJob], *, submit: bool, json: bool) -> int:
    """Queue what can be queued if asked to, and print everything. Returns 5 if something cannot be
    queued."""
    job_ids: dict[str, int] = {}
    for candidate in candidates if submit else ():
        if candidate.submission is not None:
            _queue(candidate, candidate.submission, job_ids)
    if json:
        views = msgspec.convert(candidates, list[json_answers.ImportView], from_attributes=True)
        output.confirm(result=json_answers.Imported(views))
    else:
        for candidate in candidates:
            _say(candidate)
        if not submit and any(candidate.submission for candidate in candidates):
            output.say("nothing is queued yet: add --submit")
    return 5 if any(candidate.refused for candidate in candidates) else 0


def _queue(
    candidate: ImportedJob, submission: submit_request.ResolvedOptions, job_ids: dict[str, int]
) -> None:
    if candidate.after and candidate.after not in job_ids:
        candidate.refuse(
            f"it waits for {candidate.after}, which was not queued",
            f"see the error of {candidate.after}",
        )
        return
    try:
        request, _ = submit_request.make_request(submission)
        if candidate.after:
            spec = msgspec.structs.replace(request.spec, after=[f"{job_ids[candidate.after]}:ok"])
            request = msgspec.structs.replace(request, spec=spec)
        answer = call(request, job_answers.Submitted)
        job_ids[candidate.source] = candidate.id = answer.id
        candidate.confirmation = submit_fast.submitted_line(answer, request.array)
        candidate.notes += answer.warnings
    except GpqError as error:
        candidate.refuse(error.message, error.hint)


def _say(candidate: ImportedJob) -> None:
    if candidate.refused:
        output.failure(f"{candidate.source}: {candidate.refused}", candidate.hint)
        return
    line = f"{candidate.source}: {candidate.confirmation or shlex.join(candidate.argv)}"
    if candidate.after and candidate.id is None:
        line += f"   # after {candidate.after} of this list"
    output.confirm(line)
    # these notes name the script themselves
    clear = ("#", f"{os.path.basename(candidate.source)} ")
    for note in candidate.notes:
        output.note(note if note.startswith(clear) else f"{candidate.source}: {note}")

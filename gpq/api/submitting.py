"""`gpq.submit` and `gpq.submit_array`: from Python values to the request that `gpq submit` would
send."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

from gpq.api.handles import Array, Job, Onlooker
from gpq.api.option_types import Options
from gpq.api.options import Word, refuse_unknown, resolve, spelled_out
from gpq.client.connection import call
from gpq.errors import UsageError
from gpq.options import submit_request
from gpq.rpc import job_answers, requests
from gpq.rpc.job_answers import DryRun

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on


@overload
def submit(*script: Word, command: Sequence[
    Word
] | None = None, hold: bool = False, dry_run: Literal[False] = False, **options: Unpack[
    Options
],
) -> Job: ...  # fmt: skip


@overload
def submit(*script: Word, command: Sequence[
    Word
] | None = None, hold: bool = False, dry_run: Literal[True], **options: Unpack[
    Options
],
) -> DryRun: ...  # fmt: skip


@spelled_out(Options.__annotations__, 2)
def submit(
    *script: Word,
    command: Sequence[Word] | None = None,
    hold: bool = False,
    dry_run: bool = False,
    **options: Unpack[Options],
) -> Job | DryRun:
    """Queue a script with its arguments, or a command as it is. The job is on disk when this
    returns::

        gpq.submit("train.py", "--epochs", 10, gpus=(1, 8), time="2h")
        gpq.submit(command=["./run.sh", "big"], gpus=2, env={"SEED": 1})

    `options` are those of `gpq submit`, by the same names (see `Options`). The directory, the
    variables and the interpreter are those of this process, chosen as on the command line.
    ``hold=True`` queues the job held. ``dry_run=True`` queues nothing and returns what would
    happen.

    Raises gpq.errors.UsageError for invalid options, gpq.errors.Refused if the daemon refuses the
    job, and gpq.errors.DaemonUnreachable if no daemon can be started.
    """
    refuse_unknown("submit", options, Options.__annotations__)
    settled = resolve(script, command, options)
    texts = settled.texts
    if texts.array or texts.sweep or texts.sweep_file:
        raise UsageError(
            f"a line at the start of {script[0]} asks for an array", "use gpq.submit_array"
        )
    if dry_run:
        return call(_request(settled, hold, dry_run=True), DryRun)
    answer = _submit(settled, hold)
    return Job(answer.id, tuple(answer.warnings))


def submit_array(
    *script: Word,
    command: Sequence[Word] | None = None,
    array: str | Sequence[int] = "",
    sweep: Mapping[str, Sequence[object]] | str | Sequence[str] = (),
    sweep_file: str | os.PathLike[str] = "",
    hold: bool = False,
    **options: Unpack[Options],
) -> Array:
    """Queue a job for each index, or for each combination of a sweep. gpq fills in ``{index}`` and
    each ``{name}`` in the words and the environment::

        gpq.submit_array(command=["./run.sh", "{index}"], array=range(100))
        sweep = {"lr": [1e-3, 1e-2], "seed": range(5)}
        gpq.submit_array("train.py", "--lr", "{lr}", sweep=sweep, array="%4", gpus=1)

    `array` takes ``range(100)``, ``[1, 5]``, or "0-99%4" for at most 4 jobs with GPUs at once. With
    a sweep it takes only the limit: "%4". `sweep_file` names a CSV file. Everything else works as
    in `submit`, which raises the same errors.
    """
    if not (array or sweep or sweep_file):
        raise UsageError(
            "submit_array needs array, sweep or sweep_file", "use gpq.submit for a single job"
        )
    answer = _submit(
        resolve(
            script, command, {**options, "array": array, "sweep": sweep, "sweep_file": sweep_file}
        ),
        hold,
    )
    return Array(answer.id, tuple(Job(number) for number in answer.jobs), tuple(answer.warnings))


def _request(
    settled: submit_request.ResolvedOptions, hold: bool, *, dry_run: bool = False
) -> requests.Submit:
    if settled.how["dry_run"] and not dry_run:
        raise UsageError(
            "a line at the start of the script says --test-only, so sbatch would queue nothing",
            "remove that line",
        )
    request, notes = submit_request.make_request(settled, hold=hold, dry_run=dry_run)
    Onlooker().note(*notes)
    return request


def _submit(settled: submit_request.ResolvedOptions, hold: bool) -> job_answers.Submitted:
    answer = call(_request(settled, hold), job_answers.Submitted)
    Onlooker().note(*answer.warnings)
    return answer

"""A job of the queue as an object: its state, its end, its log, and what you can do to it."""

from __future__ import annotations

import base64
import codecs
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpq.api import options
from gpq.api.option_types import Edits
from gpq.client import following, job_logs
from gpq.client.connection import Lasting, call
from gpq.errors import NotFound, Refused, UsageError
from gpq.options import job_spec, values
from gpq.rpc import job_answers, requests
from gpq.views import queue

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on

R = TypeVar("R", bound=msgspec.Struct)

# Gets the remarks that a command writes to stderr after `note:`.
LOG = logging.getLogger("gpq")


class Onlooker:
    """Draws nothing and logs the remarks."""

    watched = False

    def patience(self, longest: float) -> float:
        return longest

    def show(self, jobs: Iterable[job_answers.JobView]) -> None: ...

    def say(self, *lines: str) -> None: ...

    def note(self, *lines: str) -> None:
        for line in lines:
            LOG.warning("%s", line)


def ask(request: requests.Request, kind: type[R]) -> R:
    """Ask something that may be asked twice. If the daemon goes away, start the next one and ask
    again."""
    with Lasting(Onlooker().note) as daemon:
        return daemon.call(request, kind)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A piece of what one attempt printed. It continues where the piece before it ended."""

    #: The attempt, counted from 1.
    attempt: int
    #: The server that the attempt ran on.
    node: str
    #: What it printed.
    data: bytes
    #: How many bytes before `data` are missing because of the limit for logs.
    skipped: int = 0
    #: Why the rest of this attempt's log is unavailable now. The next attempt follows.
    silent: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the queue, by its id. ``Job(42)`` makes one.

    A Job holds no connection, so you can keep it and use it in any thread. Every method raises
    gpq.errors.NotFound if there is no such job, and gpq.errors.DaemonUnreachable if no daemon can
    be started. If the daemon goes away while a method waits, the method starts the next daemon and
    carries on. `hold`, `release`, `requeue` and `edit` do not.
    """

    #: The number of the job.
    id: int
    #: What gpq remarked when it was submitted.
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __int__(self) -> int:
        return self.id

    def status(self) -> job_answers.JobView:
        """Its row of `gpq status`: state, GPUs, goodput and so on.

        Durations are in seconds. Moments are ISO 8601 in UTC.
        """
        with Lasting(Onlooker().note) as daemon:
            row = job_logs.newest(daemon, str(self.id))
        if row is None:
            raise NotFound(f"there is no job {self.id}", "`gpq status --all` lists all jobs")
        return row

    def show(self) -> job_answers.JobDetail:
        """Everything about the job, as `gpq show --json` prints it."""
        return ask(requests.Show(str(self.id)), job_answers.JobDetail)

    def why(self) -> job_answers.Explanation:
        """Why the job waits, or why it has these GPUs and not more or fewer."""
        return ask(requests.Why(str(self.id)), job_answers.Explanation)

    def wait(self, timeout: options.Duration | None = None) -> int:
        """Block until the job has ended. Returns its exit code: 128 + n for signal n, and 1 if it
        was cancelled before it ran.

        Raises gpq.errors.TimedOut, which is a TimeoutError, after `timeout` ("2h", a timedelta or
        seconds). The job runs on. Raises gpq.errors.NeverStarts if the job does not start on its
        own, because one that it waits for did not end as required.
        """
        return wait_for_jobs([str(self.id)], timeout)

    def log_pieces(
        self,
        *,
        follow: bool = False,
        lines: int | None = None,
        attempt: int | None = None,
        node: str = "",
    ) -> Iterator[LogPiece]:
        """What the job printed, as bytes. With `follow`, yields new output until the job ends.

        `lines` keeps only the last N lines. `attempt` keeps one attempt. `node` picks a server of
        the job, by name or by its rank in the job. Raises gpq.errors.GpqError if the job has no log
        (yet), or if no server of its last attempt answers.
        """
        onlooker = Onlooker()
        if lines is not None and lines < 0:
            raise UsageError(
                f"invalid --lines {lines}: below 0", "give a whole number of 0 or more"
            )
        with Lasting(onlooker.note) as daemon:
            pieces = job_logs.log(
                daemon, onlooker, str(self.id), attempt or 0, node, follow=follow, lines=lines
            )
            for piece in pieces:
                yield LogPiece(
                    piece.attempt,
                    piece.node,
                    base64.b64decode(piece.data),
                    piece.skipped,
                    piece.silent,
                )

    def logs(
        self,
        *,
        follow: bool = False,
        lines: int | None = None,
        attempt: int | None = None,
        node: str = "",
    ) -> Iterator[str]:
        """The lines that the job printed in all attempts, without newlines. With `follow`, yields
        new lines until the job ends.

        The options are those of `log_pieces`, which raises the same errors. Bytes that are not
        UTF-8 become U+FFFD. Escape codes stay as they are.
        """
        decoder, unfinished_line, last = codecs.getincrementaldecoder("utf-8")("replace"), "", 0
        for piece in self.log_pieces(follow=follow, lines=lines, attempt=attempt, node=node):
            if (piece.attempt != last or piece.skipped) and (
                unfinished_line := unfinished_line + decoder.decode(b"", True)
            ):
                yield unfinished_line
                unfinished_line = ""
            decoder = (
                decoder
                if piece.attempt == last
                else codecs.getincrementaldecoder("utf-8")("replace")
            )
            last = piece.attempt
            *whole, unfinished_line = (unfinished_line + decoder.decode(piece.data)).split("\n")
            yield from whole
        if unfinished_line := unfinished_line + decoder.decode(b"", True):
            yield unfinished_line

    def cancel(self, timeout: options.Duration = "3m") -> job_answers.CancelResult:
        """Stop the job permanently. Returns when every process is gone. Its id is then in
        `cancelled` of the answer.

        If processes are left after `timeout`, its id is in `remaining`. If its server does not
        answer, its id is also in `waiting`, with the reason.
        """
        return cancel_jobs([str(self.id)], timeout)

    def hold(self) -> None:
        """Keep the job from starting until `release`. If it runs and can checkpoint, gpq stops it
        first.

        Raises gpq.errors.Refused if the job would lose its work, is held already or has ended.
        """
        self._change(requests.Hold([str(self.id)]))

    def release(self) -> None:
        """Let a held job start. Raises gpq.errors.Refused if it is not held."""
        self._change(requests.Release([str(self.id)]))

    def requeue(self, *, fresh: bool | None = None) -> Job:
        """Queue the job again, also if it has ended. It resumes from its newest checkpoint. If it
        completed, or with `fresh`, it starts from the beginning. ``fresh=False`` never does.

        Returns this job. Raises gpq.errors.Refused if the job would lose its work.
        """
        return Job(self._change(requests.Requeue([str(self.id)], fresh)))

    @options.spelled_out(Edits.__annotations__, 1, options.EDIT_DEFAULTS)
    def edit(self, **changes: Unpack[Edits]) -> list[str]:
        """Change the options of the job, as `gpq edit` does. Returns one line for each change.

        Options that you leave out stay as they are. "none" lifts a limit or a condition (time,
        after, gpu_type, min_gpu_memory, array_limit). ``begin="now"`` lifts a begin, and
        ``notify="none"`` stops the messages. Raises gpq.errors.UsageError for invalid values, and
        gpq.errors.Refused for what can no longer change.
        """
        options.refuse_unknown("Job.edit", changes, Edits.__annotations__)
        request = job_spec.edit_request([str(self.id)], **options.read(changes))
        answer = call(request, job_answers.Changed)
        if answer.unchanged and not answer.jobs:
            raise Refused(". ".join(answer.unchanged), f"see `gpq show {self.id}`")
        return list(answer.messages)

    def _change(self, request: requests.Request) -> int:
        """The id of the job that changed."""
        answer = call(request, job_answers.Changed)
        if not answer.jobs:
            raise Refused(". ".join(answer.unchanged), f"see `gpq show {self.id}`")
        Onlooker().note(*answer.warnings)
        return answer.jobs[0]


@dataclass(frozen=True, slots=True)
class Array:
    """The jobs of one submission, which differ only in their index or in the values of a sweep.

    You can iterate over it and take its length.
    """

    #: The id that stands for all of its jobs.
    id: int
    #: The jobs, by index.
    jobs: tuple[Job, ...]
    #: What gpq remarked when it was submitted.
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def status(self) -> list[job_answers.JobView]:
        """The rows of its jobs in `gpq status`."""
        return ask(requests.Status([str(self.id)]), job_answers.JobList).jobs

    def wait(self, timeout: options.Duration | None = None) -> int:
        """Block until all jobs have ended. Returns the first exit code that is not 0, else 0.

        Raises the same errors as `Job.wait`.
        """
        return wait_for_jobs([str(self.id)], timeout)

    def cancel(self, timeout: options.Duration = "3m") -> job_answers.CancelResult:
        """Stop all of its jobs permanently, as `Job.cancel` does."""
        return cancel_jobs([str(self.id)], timeout)


def wait_for_jobs(jobs: list[str], timeout: options.Duration | None) -> int:
    """Wait for the end of all, then return the first exit code that is not 0. Raises TimedOut and
    NotFound."""
    onlooker = Onlooker()
    rows = following.until_ended(jobs, None if timeout is None else limit(timeout), onlooker).jobs
    onlooker.note(*queue.notes([msgspec.to_builtins(row) for row in rows]))
    return next((code for row in rows if (code := following.exit_status(row))), 0)


def cancel_jobs(jobs: list[str], timeout: options.Duration) -> job_answers.CancelResult:
    with Lasting(Onlooker().note) as daemon:
        return following.cancel_and_wait(daemon, jobs, limit(timeout))


def limit(timeout: options.Duration) -> float:
    """Seconds, read like `--timeout`. A number of 0 or less means no time at all."""
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout <= 0:
        return 0.0
    return values.seconds(options.seconds(timeout, "--timeout"), "--timeout")

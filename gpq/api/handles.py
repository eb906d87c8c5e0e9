"""A job of the queue as an object: what it is now, its end, its log, and what may be done with
it."""

from __future__ import annotations

import base64
import codecs
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from gpq.api import options
from gpq.client import following, job_logs
from gpq.client.connection import Lasting, call
from gpq.errors import NotFound, Refused, UsageError
from gpq.options import edit_request
from gpq.options.parsing import values
from gpq.rpc import job_answers, requests

R = TypeVar("R", bound=msgspec.Struct)

LOG = logging.getLogger("gpq")  # remarks: what a command writes on stderr after `note:`


class Onlooker:
    """Draws nothing, and has remarks logged."""

    watched = False

    def patience(self, longest: float) -> float:
        return longest

    def show(self, jobs: Iterable[job_answers.JobView]) -> None: ...

    def say(self, *lines: str) -> None: ...

    def note(self, *lines: str) -> None:
        for line in lines:
            LOG.warning("%s", line)


def ask(request: requests.Request, kind: type[R]) -> R:
    """The answer to what may be asked twice; a daemon that goes away over it is started again."""
    with Lasting(Onlooker().note) as daemon:
        return daemon.call(request, kind)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What one attempt printed, from where the piece before ended."""

    attempt: int
    node: str
    data: bytes
    skipped: int = 0  # bytes before `data` that the log's limit left out
    # why the rest of this attempt's log is not to be had now; then the next attempt follows
    silent: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job by its number. Holds no connection: it may be kept, sent to other threads, and made
    anew by `Job(42)`.

    Every method raises gpq.errors.NotFound where there is no such job, and DaemonUnreachable where
    no daemon can be started. Methods other than hold, release, requeue and edit go on with the next
    daemon when one goes away meanwhile.
    """

    id: int
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)  # of its submission

    def __int__(self) -> int:
        return self.id

    def status(self) -> job_answers.JobView:
        """Its row of `gpq status` now: state, GPUs, goodput, ... (seconds, and stamps in UTC as ISO
        8601)."""
        with Lasting(Onlooker().note) as daemon:
            row = job_logs.newest(daemon, str(self.id))
        if row is None:
            raise NotFound(f"there is no job {self.id}", "`gpq status --all` lists what there is")
        return row

    def show(self) -> job_answers.JobDetail:
        """Everything about it, as `gpq show --json`."""
        return ask(requests.Show(str(self.id)), job_answers.JobDetail)

    def why(self) -> job_answers.Explanation:
        """Why it waits, or why it has these GPUs and not more or fewer."""
        return ask(requests.Why(str(self.id)), job_answers.Explanation)

    def wait(self, timeout: options.Duration | None = None) -> int:
        """Block until it has ended; its exit status, 128 + n for signal n, 1 for one that was
        cancelled before it ran.

        Raises gpq.errors.TimedOut, a TimeoutError, after `timeout` ("2h", a timedelta, or seconds);
        the job runs on.
        """
        return waited([str(self.id)], timeout)

    def log_pieces(
        self,
        *,
        follow: bool = False,
        lines: int | None = None,
        attempt: int | None = None,
        node: str = "",
    ) -> Iterator[LogPiece]:
        """What it printed, as bytes, as they come; with `follow` until it ends. `lines`: the last
        so many; `node`: a name, or a rank in the job.

        Raises GpqError for a job that has no log (yet), and where no server of its last attempt
        answers.
        """
        onlooker = Onlooker()
        if lines is not None and lines < 0:
            raise UsageError(f"--lines {lines} is below 0", "write a whole number, 0 or above")
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
        """The lines that it printed, without their ends, all attempts joined, or the last `lines`
        of them; with `follow` as they come, until it ends.

        Bytes that are no UTF-8 become U+FFFD; escape codes are passed on. Raises as `log_pieces`.
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
        """Stop it for good. Returns when it is proven that no process of it is left: its number is
        in `cancelled` then.

        After `timeout` its number is in `remaining`, and in `waiting` with the reason where its
        server does not answer.
        """
        return cancelled([str(self.id)], timeout)

    def hold(self) -> None:
        """Keep it from running until `release`; one that can checkpoint is stopped first. Raises
        Refused."""
        self._change(requests.Hold([str(self.id)]))

    def release(self) -> None:
        """Let it run again. Raises Refused where it is not held."""
        self._change(requests.Release([str(self.id)]))

    def requeue(self) -> Job:
        """Stop it and queue it again; it goes on from its checkpoint where it makes any. Raises
        Refused.

        Answers with the job that is queued now: this one, or, where it had ended, a new one like
        it.
        """
        return Job(self._change(requests.Requeue([str(self.id)])))

    def edit(
        self,
        *,
        name: str = "",
        priority: int | None = None,
        gpus: options.Gpus = "",
        time: options.Duration = "",
        retries: int | None = None,
        tag: str | Sequence[str] = (),
        untag: str | Sequence[str] = (),
        after: options.Selector | Sequence[options.Selector] = (),
        begin: options.Moment = "",
        gpu_type: str = "",
        min_gpu_memory: str = "",
        background: bool | None = None,
        max_batch_size: int | None = None,
        array_limit: str | int = "",
        notify: str | Sequence[str] = (),
        notify_on: str | Sequence[str] = (),
        accept: str | Sequence[str] = (),
    ) -> list[str]:
        """Change what was asked of it, as `gpq edit`: what is left out stays. One line for each
        change that was made.

        "none" lifts a limit or a condition (time, after, gpu_type, min_gpu_memory, array_limit),
        begin="now" a moment; notify="none" tells nobody any more. Raises gpq.errors.UsageError, and
        Refused for what cannot change any more.
        """
        values_by_option: dict[str, Any] = dict(  # noqa: C408
            name=name, priority=priority, gpus=gpus, time=time, retries=retries, tag=tag,
            untag=untag, after=after, begin=begin, gpu_type=gpu_type, min_gpu_memory=min_gpu_memory,
            max_batch_size=max_batch_size, array_limit=array_limit, background=background,
            notify=notify, notify_on=notify_on, accept=accept,
        )  # fmt: skip
        answer = call(
            edit_request.request([str(self.id)], **options.read(values_by_option)),
            job_answers.Changed,
        )
        if answer.unchanged and not answer.jobs:
            raise Refused("; ".join(answer.unchanged), f"`gpq show {self.id}` tells how it is")
        return list(answer.messages)

    def _change(self, request: requests.Request) -> int:
        """The number of the job that changed."""
        answer = call(request, job_answers.Changed)
        if not answer.jobs:
            raise Refused("; ".join(answer.unchanged), f"`gpq show {self.id}` tells how it is")
        for warning in answer.warnings:
            LOG.warning("%s", warning)
        return answer.jobs[0]


@dataclass(frozen=True, slots=True)
class Array:
    """The jobs of one submission, alike but for an index or the values of a sweep. `id` stands for
    all of them."""

    id: int
    jobs: tuple[Job, ...]
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)  # of its submission

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def status(self) -> list[job_answers.JobView]:
        """The rows of its jobs now."""
        return ask(requests.Status([str(self.id)]), job_answers.JobList).jobs

    def wait(self, timeout: options.Duration | None = None) -> int:
        """Block until all have ended; the first exit status that is not 0. Raises as `Job.wait`."""
        return waited([str(self.id)], timeout)

    def cancel(self, timeout: options.Duration = "3m") -> job_answers.CancelResult:
        """Stop all of them for good, as `Job.cancel`."""
        return cancelled([str(self.id)], timeout)


def waited(jobs: list[str], timeout: options.Duration | None) -> int:
    """The first exit status that is not 0, once all have ended. Raises TimedOut, NotFound."""
    rows = following.until_ended(jobs, None if timeout is None else limit(timeout), Onlooker()).jobs
    return next((code for row in rows if (code := following.exit_status(row))), 0)


def cancelled(jobs: list[str], timeout: options.Duration) -> job_answers.CancelResult:
    with Lasting(Onlooker().note) as daemon:
        return following.cancelled(daemon, jobs, limit(timeout))


def limit(timeout: options.Duration) -> float:
    """Seconds, as `--timeout` is read; a number that is not above 0 is no time at all."""
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout <= 0:
        return 0.0
    return values.seconds(options.seconds(timeout, "--timeout"), "--timeout")

"""`gpq run`, `gpq shell` and `gpq attach`: a command on a queued GPU, with its streams here."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from inspect import Parameter
from typing import Annotated, Any

import msgspec
import typer
from gpq_agent import wire

from gpq import config, paths
from gpq.cli import output
from gpq.cli.jobs.submit import KEYWORD, TYPES, F, declare, parameter
from gpq.cli.jobs.wait import Bar
from gpq.cli.typer_app import HELP, Job, frame
from gpq.client import following
from gpq.client.connection import Lasting, call
from gpq.client.session import Detached, News, NoWay, Session
from gpq.client.terminal import RawTerminal, is_whole
from gpq.connectors import from_config
from gpq.connectors.local import Channel
from gpq.errors import GpqError, NeverStarts, NotFound, Refused, UsageError
from gpq.options import submit_request
from gpq.rpc import job_answers, requests
from gpq.rpc.submit_table import BY_NAME

run_app, attach_app, shell_app = frame(), frame(), frame()
SHELL = ["/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}"']  # that of the login on the server
# of `gpq submit`: those that make sense for a command that runs once
OPTIONS = (
    "gpus", "gpu_type", "min_gpu_memory", "name", "tag", "priority", "time", "after", "begin",
    "notify", "notify_on", "env", "cwd", "setup", "snapshot",
)  # fmt: skip
OWN: dict[str, dict[str, str]] = {  # that differ for a command
    "gpus": {"metavar": "N", "help": "How many GPUs. [default: 1]"},
}
PASSED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH,
)  # fmt: skip
FOR_COMMAND = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)  # they mean nothing before it runs
# Ctrl-C as often as this within so many seconds ends this command, whatever the program does
INTERRUPTS, INTERRUPT_SECONDS = 3, 2.0
LEAST_LOOK, MOST_LOOK = 0.02, 1.0  # seconds between two looks at a job that waits
SUSPENSE = 2.0  # seconds after which gpq says why it waits
CANCEL_PATIENCE = 30.0  # seconds
LAST_TRIES = 5  # to reach the server of a job that has ended
REPLAY = 1 << 16  # bytes of output that `gpq attach` shows first

Pty = Annotated[
    bool | None,
    typer.Option("--pty/--no-pty", help="With a terminal or with pipes. [default: as gpq has]"),
]
Command = Annotated[list[str], typer.Argument(metavar="COMMAND [ARG]...")]


def with_options(*own: Parameter, name: str) -> Callable[[F], F]:
    """Give a command, which takes the context and keywords, a parameter for each option, and its
    own. `name`: that of its jobs by default, in words."""
    texts = {**OWN, "name": {"help": f"Name of the job. [default: {name}]"}}
    rows = [msgspec.structs.replace(BY_NAME[key], **texts.get(key, {})) for key in OPTIONS]
    context = Parameter("ctx", KEYWORD, annotation=typer.Context)
    options = (parameter(row, *TYPES[row.typed]) for row in rows)
    return lambda command: declare(command, [context, *own, *options])


@run_app.command("run", context_settings={**HELP, "allow_interspersed_args": False})
@with_options(
    Parameter("words", KEYWORD, annotation=Command),
    Parameter("pty", KEYWORD, default=None, annotation=Pty),
    name="the name of the program",
)
def run(ctx: typer.Context, words: list[str], pty: bool | None = None, **_: Any) -> int:
    """Run a command on a queued GPU as if it ran here.

    Its stdin, stdout and stderr are those of gpq, and so is its exit code (128+n for signal n).
    Ctrl-C and other signals go to the command. While it waits for a GPU, Ctrl-C cancels it.

    If all three are a terminal, the command has a terminal, too. Then Ctrl-] leaves it running.

    It runs once and never moves. If the connection to its server breaks, gpq connects again and
    continues. If gpq itself is killed, the command runs on: see `gpq attach`.

    \b
    Example:
      gpq run nvidia-smi
      gpq run --gpus 2 --time 1h python train.py --debug
      gpq run sort < big.txt > sorted.txt
    """
    if pty and not is_whole():
        raise UsageError(
            "--pty needs stdin, stdout and stderr to be a terminal",
            "leave it out, and the command gets pipes",
        )
    return submit(ctx, words, in_terminal=is_whole() if pty is None else pty)


@shell_app.command("shell", context_settings=HELP)
@with_options(name="shell")
def shell(ctx: typer.Context, **_: Any) -> int:
    """A shell on a queued GPU, in this folder and with these variables.

    `exit` ends it and frees the GPU. Ctrl-] leaves it running, and so does a closed window. Then
    `gpq attach` brings it back.

    \b
    Example:
      gpq shell
      gpq shell --gpus 2 --time 8h
    """
    if not is_whole():
        raise UsageError("gpq shell needs a terminal", "in a script: gpq run COMMAND")
    return submit(ctx, SHELL, in_terminal=True, name="shell")


def submit(ctx: typer.Context, words: list[str], *, in_terminal: bool, name: str = "") -> int:
    """Submit a command with the options of this context, and be its streams."""
    fields = {
        option: value
        for option, value in ctx.params.items()
        if option in OPTIONS
        and getattr(ctx.get_parameter_source(option), "name", "") == "COMMANDLINE"
    }
    if name:
        fields.setdefault("name", name)
    if in_terminal and "TERM" in os.environ:
        fields["env"] = ["TERM", *fields.get("env", [])]
    settled = submit_request.settle(submit_request.Parsed(fields, list(words), True))
    request, notes = submit_request.make_request(settled)
    note(*notes)
    spec = request.spec.having(console="terminal" if in_terminal else "pipes")
    with Signals() as signals:
        answer = call(requests.Submit(spec), job_answers.Submitted)
        note(*answer.warnings)
        return attend(answer.id, signals, in_terminal=in_terminal)


@attach_app.command("attach")
def attach(job: Job) -> int:
    """Connect to the streams of a job of `gpq run` or `gpq shell`, and exit with its code.

    The command that had them before ends. What the job printed last is shown first.

    \b
    Example:
      gpq attach 42
      gpq attach @
    """
    detail = call(requests.Show(job), job_answers.JobDetail)
    if not detail.spec.console:
        raise UsageError(
            f"job {detail.job.id} is not of `gpq run` or `gpq shell`, so nobody can talk to it",
            f"`gpq logs -f {detail.job.id}` shows what it prints",
        )
    in_terminal = detail.spec.console == "terminal"
    if in_terminal and not is_whole():
        raise UsageError(
            f"job {detail.job.id} has a terminal, so gpq attach needs one",
            f"`gpq logs -f {detail.job.id}` shows what it prints",
        )
    with Signals() as signals:
        return attend(detail.job.id, signals, in_terminal=in_terminal, attached=True)


class Signals:
    """While it is open, signals to this process do nothing but go to the queue `news`, except for
    Ctrl-C again and again. Those that it ignores, as after `nohup`, it ignores on."""

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._interrupts: list[float] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        def take(number: int, _: object) -> None:
            self.news.put(number)
            if number == signal.SIGINT:
                self._interrupts = [*self._interrupts, time.monotonic()][-INTERRUPTS:]
                first, last = self._interrupts[0], self._interrupts[-1]
                if len(self._interrupts) == INTERRUPTS and last - first < INTERRUPT_SECONDS:
                    raise KeyboardInterrupt

        numbers = [number for number in PASSED if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, take) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """They do again what they did before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()


def attend(job: int, signals: Signals, *, in_terminal: bool = False, attached: bool = False) -> int:
    """Be the streams of a job until it has ended. Returns its exit status. `attached`: the job has
    had others, so it outlives a signal that comes before its start."""
    runs_on = f"job {job} runs on: `gpq attach {job}` brings it back, `gpq cancel {job}` ends it"
    problem = ""
    with output.on_interrupt(runs_on):
        row = wait_for_start(job, signals.news)
        if isinstance(row, int) and attached:
            raise KeyboardInterrupt
        if isinstance(row, int):
            cancel(job)
            return 128 + row
        try:
            if row.started_at is not None:
                most = REPLAY if attached else wire.EVERYTHING
                problem = talk(job, signals, most, in_terminal=in_terminal)
        except Detached:
            note(runs_on)
            return 0
        except GpqError:
            if not has_ended(job):
                note(runs_on)
            raise
        signals.close()
        [row] = following.until_ended([str(job)], None, Bar()).jobs
    end = ""
    if row.started_at is None or row.state in ("cancelled", "timeout"):
        end = f"job {job} {row.state}" + (f": {row.reason}" if row.reason else "")
    remarks = [line for line in row.notes if line not in end]
    note(*filter(None, [end, *remarks, problem]))
    return following.exit_status(row) or int(bool(problem))


def has_ended(job: int) -> bool:
    """False also if the daemon does not say."""
    try:
        [row] = call(requests.Status([str(job)]), job_answers.JobList).jobs
    except NotFound:  # and was removed
        return True
    except GpqError:
        return False
    return row.ended_at is not None


def talk(job: int, signals: Signals, most: int, *, in_terminal: bool) -> str:
    """Be the streams of a job that has started, until it has ended. Returns why some of its output
    is not here, or "". `most`: bytes to show of what it has printed before. Raises Detached, and
    GpqError."""
    terminal = RawTerminal() if in_terminal else None
    session = Session(dialer(job), signals.news, note, most, terminal)
    with terminal or nullcontext():
        session.run()
    return session.problem


def note(*lines: str) -> None:
    """Notes on stderr, if somebody reads it."""
    with suppress(OSError, AttributeError):
        output.note(*lines)


def cancel(job: int) -> None:
    """Before it has started."""
    request = requests.Cancel([str(job)], wait=CANCEL_PATIENCE)
    if not call(request, job_answers.CancelResult).cancelled:
        note(f"job {job} is being cancelled: see `gpq status {job}`")


def wait_for_start(job: int, news: queue.SimpleQueue[News]) -> job_answers.JobView | int:
    """The row of the job when it runs or has ended, or the number of a signal that came before.
    Raises NeverStarts if it waits in vain."""
    pause, suspense = LEAST_LOOK, time.monotonic() + SUSPENSE
    with Lasting(note) as daemon:
        while True:
            [row] = daemon.call(requests.Status([str(job)]), job_answers.JobList).jobs
            if row.state not in (*following.BEGINNING, "held"):
                return row
            if row.halted:
                hint = f"it stays queued. `gpq cancel {job}` gives up"
                raise NeverStarts(f"job {job} does not start: {row.halted}", hint)
            if time.monotonic() > suspense and row.reason:
                note(f"job {job} waits: {row.reason} (see `gpq why {job}`)")
                suspense = float("inf")
            with suppress(queue.Empty):
                number = news.get(timeout=pause)
                if number not in FOR_COMMAND:
                    assert isinstance(number, int)  # there is no session yet
                    return number
            pause = min(1.5 * pause, MOST_LOOK)


def dialer(job: int) -> Callable[[], Channel]:
    """Connects to the server of a job, as often as it is called."""
    failures = 0

    def dial() -> Channel:
        nonlocal failures
        try:
            detail = call(requests.Show(str(job)), job_answers.JobDetail)
        except NotFound as error:
            raise NoWay(error.message, error.hint) from None
        except Refused as error:  # the next daemon may not refuse
            raise GpqError(error.message, error.hint) from None
        if not detail.attempts:
            raise NoWay(f"job {job} never started", f"`gpq why {job}`")
        attempt = detail.attempts[-1]
        [part] = attempt.placement
        try:
            return connect(part.node, wire.attempt_key(job, attempt.attempt))
        except GpqError as error:
            failures += attempt.ended_at is not None
            if failures < LAST_TRIES:
                raise
            hint = f"`gpq logs {job}` shows the rest of its output when the server is back"
            raise NoWay(error.message, hint) from None

    return dial


def connect(node: str, key: str) -> Channel:
    """A relay on the server. Raises GpqError."""
    settings = config.load().nodes.get(node)
    if settings is None:
        raise NoWay(
            f"server {node} is no longer in the configuration", "`gpq nodes list` lists the servers"
        )
    connector, arguments = from_config.way(node, settings, paths.home())
    return connector.agent([*arguments, "--attach", key])

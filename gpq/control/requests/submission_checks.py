"""Checks the texts and numbers of a submission. Each check refuses with a line and a hint."""

from __future__ import annotations

import math
import re
import signal

from gpq.config_rules import CODE_OF_HABIT
from gpq.control.selectors import NAME, is_selector
from gpq.core.feasibility.environments import early
from gpq.core.model.jobs import (
    TORCHRUN,
    Level,
)
from gpq.core.model.units import Seconds
from gpq.errors import UsageError
from gpq.rpc.requests import SpecMessage
from gpq.rpc.submit_table import OPTIONS

MAX_GPUS = 100_000
MAX_BATCH = 1 << 40
# for tests, over the socket. The command line and config.toml require at least a minute
LEAST_LEASE: Seconds = 1.0
MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
MAX_SETUP = 10_000  # characters
MAX_PATH = 4095  # characters
CODE = re.compile(r"[0-9a-f]{64}")
DURATIONS = [
    (option.flag, field)
    for option in OPTIONS
    for field in option.fields
    if option.kind in ("duration", "limit")
]
LAUNCHERS = ("", TORCHRUN)
SIGNALS = frozenset(member.name.removeprefix("SIG") for member in signal.Signals) - {
    "KILL",
    "STOP",
    "CHLD",
}


def check_texts(message: SpecMessage) -> None:
    _check_command(message)
    _check_names(message)
    _check_code(message)
    _check_environment(message)


def _check_command(message: SpecMessage) -> None:
    if not message.argv or not message.argv[0]:
        hint = "use `gpq submit -- COMMAND` or `gpq submit SCRIPT`"
        raise UsageError("there is no command to run", hint)
    if not message.cwd.startswith("/"):
        problem = f"the working directory {message.cwd!r} is not absolute"
        raise UsageError(problem, "use its full path")
    if message.signal.removeprefix("SIG") not in SIGNALS or message.signal.startswith("SIG"):
        raise UsageError(f"unknown signal `{message.signal}`", "e.g. TERM, USR1, INT")
    if message.launcher not in LAUNCHERS:
        raise UsageError(
            f"unknown launcher `{message.launcher}`",
            "use --launcher torchrun, or leave the option out",
        )
    if len(message.done_file) > MAX_PATH:
        problem = f"--done-file has {len(message.done_file)} characters"
        raise UsageError(problem, f"a path has at most {MAX_PATH}")
    if len(message.setup) > MAX_SETUP:
        problem = f"--setup has {len(message.setup)} characters"
        raise UsageError(problem, "put them into a script and name the script")
    for name, _ in set(message.env.items()) - set(early(message.env.items())):
        use, assignment = rf"\$\{{?{re.escape(name)}\b", rf"\b{re.escape(name)}="
        if re.search(use, message.setup) and not re.search(assignment, message.setup):
            problem = f"the setup uses {name}, which only the job gets, where it starts"
            raise UsageError(problem, f"give it a value in --setup: {name}=... before the command")


def _check_names(message: SpecMessage) -> None:
    characters = "use at most 64 letters, digits, dots, dashes and underscores"
    if message.name and not NAME.fullmatch(message.name):
        raise UsageError(f"invalid job name {message.name!r}", characters)
    if is_selector(message.name):
        hint = "use a name with a letter in it, and not `all`"
        raise UsageError(f"gpq would read the name `{message.name}` as an id", hint)
    for tag in message.tags:
        if not NAME.fullmatch(tag):
            raise UsageError(f"invalid tag {tag!r}", characters)
    _check_habits(message)
    for module in message.modules:
        if not MODULE.fullmatch(module):
            raise UsageError(f"invalid module {module!r}", "use the name of a package, e.g. torch")


def _check_habits(message: SpecMessage) -> None:
    for code in message.accept:
        if not CODE_OF_HABIT.fullmatch(code):
            hint = "`gpq show` lists the codes, such as own-next"
            raise UsageError(f"--accept {code[:40]!r} is not the code of a habit", hint)
    if message.accept and message.level != Level.SCRIPT:
        raise UsageError("--accept is for training scripts", "gpq suspects no habits of a command")


def _check_code(message: SpecMessage) -> None:
    outside = message.code_cwd.startswith("/") or ".." in message.code_cwd.split("/")
    if message.code and (not CODE.fullmatch(message.code) or outside):
        problem = f"{message.code!r} with {message.code_cwd!r} is not frozen code"
        raise UsageError(problem, "use `gpq submit --snapshot`")
    if message.stdin and not CODE.fullmatch(message.stdin):
        raise UsageError(f"{message.stdin!r} is no kept stdin", "use `gpq submit --stdin`")


def _check_environment(message: SpecMessage) -> None:
    texts = (
        *message.argv, message.code_cwd, message.code_from, *message.resume_argv,
        message.done_file, message.cwd, message.python, message.gpu_type, message.setup,
        *message.env, *message.env.values(),
    )  # fmt: skip
    if any("\0" in text for text in texts):
        raise UsageError("the command or its environment holds a NUL byte", "remove it")
    for name in message.env:
        if not name or "=" in name:
            problem = f"invalid name of an environment variable: {name!r}"
            raise UsageError(problem, "use --env NAME=VALUE")


def check_numbers(message: SpecMessage) -> None:
    _check_gpus(message)
    _check_counts(message)
    _check_times(message)
    _check_batch_ranges(message)


def _check_gpus(message: SpecMessage) -> None:
    low, high = message.min_gpus, message.max_gpus
    if not 1 <= low <= MAX_GPUS:
        raise UsageError(
            f"--gpus {low}: a job needs at least 1 GPU", "e.g. --gpus 2, or --gpus 1-4"
        )
    if high and not low <= high <= MAX_GPUS:
        raise UsageError(
            f"--gpus {low}-{high}: range end is below its start",
            f"e.g. --gpus {min(low, high)}-{max(low, high)}",
        )


def _check_counts(message: SpecMessage) -> None:
    for flag, value, most in (
        ("--min-gpu-memory", message.min_gpu_memory_mib, 1 << 30),
        ("--retries", message.retries, 1000),
        ("--batch-size", message.batch_size, MAX_BATCH),
        ("--max-batch-size", message.max_batch_size, MAX_BATCH),
        ("--atomic-batch-size", message.min_atomic_batch, MAX_BATCH),
        ("--atomic-batch-size", message.max_atomic_batch, MAX_BATCH),
    ):
        if not 0 <= value <= most:
            raise UsageError(
                f"invalid {flag} {value}: expected 0 to {most}", "see `gpq submit --help`"
            )
    if not -1_000_000 <= message.priority <= 1_000_000:
        raise UsageError(
            "invalid --priority: expected -1000000 to 1000000",
            "0 is the default, and higher goes first",
        )


def _check_times(message: SpecMessage) -> None:
    for flag, field in DURATIONS:
        seconds = getattr(message, field)
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"{flag} must be above 0", "e.g. 90s, 20m or 2h")
    if not (math.isfinite(message.begin) and 0 <= message.begin < 1e11):
        raise UsageError("--begin is not a time", "e.g. --begin 'tomorrow 8:00'")
    lease = message.requeue_on_lost
    if lease is not None and lease != 0 and not LEAST_LEASE <= lease <= 30 * 86400:
        raise UsageError(
            "invalid --requeue-on-lost: expected 1m to 30d", "e.g. --requeue-on-lost 10m"
        )


def _check_batch_ranges(message: SpecMessage) -> None:
    for small, large, flag in (
        (message.batch_size, message.max_batch_size, "--max-batch-size"),
        (message.min_atomic_batch, message.max_atomic_batch, "--atomic-batch-size"),
    ):
        if large and large < small:
            raise UsageError(
                f"{flag}: {large} is less than {small}", f"use {small} or a larger number"
            )

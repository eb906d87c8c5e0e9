"""From the options of `gpq submit` to the SpecMessage that the daemon keeps. Checks all that can be
checked here."""

from __future__ import annotations

import contextlib
import os
import re
import shlex

import msgspec

from gpq import outward
from gpq.errors import UsageError
from gpq.options import environment
from gpq.options.parsing import values
from gpq.rpc.requests import SpecMessage

PYTHON_LINE = re.compile(rb"#!.*\bpython")
LEAST_LEASE, MOST_LEASE = 60.0, 30 * 86400.0  # seconds
OF_SCRIPTS = (
    "--rigid",
    "--batch-size",
    "--max-batch-size",
    "--atomic-batch-size",
    "--accept",
    "--python",
)  # mean nothing to a command
AS_COMMAND = "to run it as it is, on a fixed number of GPUs: gpq submit -- {}"


class Asked(msgspec.Struct, frozen=True):
    """The options as typed. No dataclass: importing those costs half of what msgspec does."""

    words: list[str]
    black_box: bool  # they stood after `--`
    gpus: str = ""
    gpu_type: str = ""
    min_gpu_memory: str = ""
    name: str = ""
    tags: list[str] = []
    notify: list[str] = []
    notify_on: str = ""
    accept: list[str] = []
    priority: int = 0
    time: str = ""
    retries: int = 0
    requeue_on_lost: str = ""
    rigid: bool = False
    preemptible: bool = False
    signal: str = ""
    grace: str = ""
    resume_args: str = ""
    done_file: str = ""
    batch_size: int | None = None
    max_batch_size: int | None = None
    atomic_batch_size: str = ""
    env: list[str] = []
    cwd: str = ""
    python: str = ""
    setup: str = ""
    snapshot: bool = False
    after: list[str] = []
    begin: str = ""
    background: bool = False
    array: str = ""
    sweep: list[str] = []
    sweep_file: str = ""


def missing(built: SpecMessage) -> list[str]:
    """A remark about a command that is not to be found on this machine: servers may have it. About
    gpq's own Python where a script is to run with it and needs what it has not."""
    word = built.argv[0]
    if (
        built.level == "script"
        and built.modules
        and not built.python_asked
        and built.python == environment.own()
    ):
        import importlib.util

        lacking = [name for name in built.modules if importlib.util.find_spec(name) is None]
        said = f"gpq's own Python ({built.python}) has no {', '.join(lacking)}"
        return (
            [f"{said}: activate the environment that has it, or say --python python3"]
            if lacking
            else []
        )
    if built.level == "script" or built.setup or "{" in word or _found(word, built):
        return []
    path = os.path.join(built.cwd, word)
    if "/" in word and os.path.isfile(path):
        return [
            f"`{word[:80]}` may not be executed: `chmod +x {word}`, or without `--`: gpq submit"
            f" {word}"
        ]
    said = (
        f"there is no command `{word[:80]}` on this machine, and the job will fail on a server"
        " without it"
    )
    if not word.startswith(("/", "./", "../")) and os.path.isfile(path):
        return [f"{said}: did you mean `./{word}`?"]
    if " " in word and len(built.argv) == 1:
        return [f"{said}: without the quotes it is a command and its arguments"]
    return [said]


def _found(word: str, built: SpecMessage) -> bool:
    folders = [""] if "/" in word else built.env.get("PATH", os.defpath).split(os.pathsep)
    return any(
        os.access(path, os.X_OK) and os.path.isfile(path)
        for path in (os.path.join(built.cwd, folder, word) for folder in folders)
    )


def build(asked: Asked) -> SpecMessage:
    """The checked specification. Raises UsageError."""
    if not asked.words:
        raise UsageError("nothing to run", "gpq submit train.py, or gpq submit --gpus 1 -- COMMAND")
    if any("\0" in word for word in asked.words):
        raise UsageError("the command holds a NUL character", "no program can be started with one")
    for option, count, least in (
        ("--retries", asked.retries, 0),
        ("--batch-size", asked.batch_size, 1),
        ("--max-batch-size", asked.max_batch_size, 1),
    ):
        if count is not None and count < least:
            raise UsageError(
                f"{option} {count} is below {least}", f"write a whole number, {least} or above"
            )
    cwd = directory(asked.cwd)
    environ = dict(os.environ)
    level = "black-box" if asked.black_box else "script"
    if asked.preemptible:
        level = "signal"
    refuse_mismatches(asked, level)
    low, high, rigid = gpu_range(asked, level)
    argv = list(asked.words) if asked.black_box else [script(asked.words, cwd), *asked.words[1:]]
    name = values.name(asked.name, "--name") if asked.name else default_name(argv, level)
    code = ("", "", "")
    if asked.snapshot:
        from gpq.options import snapshot

        frozen = snapshot.freeze(cwd)
        code = frozen.code, frozen.cwd, frozen.said
        argv = argv if asked.black_box else [snapshot.within(frozen, argv[0], cwd), *argv[1:]]
    low_batch, high_batch = (
        values.span(asked.atomic_batch_size, "--atomic-batch-size")
        if asked.atomic_batch_size
        else (0, 0)
    )
    return SpecMessage(
        argv=argv,
        cwd=cwd,
        level=level,
        name=name,
        env=environment.kept(environ, dict(map(values.assignment, asked.env))),
        python=environment.interpreter(asked.python, environ),
        python_asked=bool(asked.python),
        setup=asked.setup.strip(),
        modules=environment.modules(argv[0], least=low) if level == "script" else [],
        min_gpus=low,
        max_gpus=high,
        rigid=rigid,
        gpu_type=asked.gpu_type,
        min_gpu_memory_mib=(
            values.memory_mib(asked.min_gpu_memory, "--min-gpu-memory")
            if asked.min_gpu_memory
            else 0
        ),
        priority=asked.priority,
        time_limit=values.limit(asked.time, "--time") if asked.time else None,
        retries=asked.retries,
        requeue_on_lost=lease(asked.requeue_on_lost),
        signal=values.signal_name(asked.signal) if asked.signal else "TERM",
        grace=values.seconds(asked.grace, "--grace") if asked.grace else None,
        resume_argv=resume(asked.resume_args),
        done_file=asked.done_file,
        batch_size=asked.batch_size or 0,
        max_batch_size=asked.max_batch_size or 0,
        min_atomic_batch=low_batch,
        max_atomic_batch=high_batch,
        tags=[values.name(tag, "--tag") for tag in asked.tags],
        notify=targets(asked.notify),
        notify_on=list(outward.events(asked.notify_on.split(","))) if asked.notify_on else None,
        code=code[0],
        code_cwd=code[1],
        code_from=code[2],
        after=asked.after,
        background=asked.background,
        begin=begin(asked.begin) if asked.begin else 0.0,
        attributes=environment.attributes(),
        accept=list(dict.fromkeys(asked.accept)),
    )


def begin(text: str) -> float:
    """Seconds since the epoch; 0 for `now`."""
    from datetime import datetime

    from gpq.options.parsing.datetimes import moment

    if text.strip().lower() == "now":
        return 0.0
    now = datetime.now().astimezone()
    found = moment(text, "--begin", now)
    if found < now.timestamp():
        raise UsageError(
            f"--begin {text} is over", "leave it out to start as soon as there is room"
        )
    return found


def targets(names: list[str]) -> list[str] | None:
    """None where config.toml decides. Whether a name is known there, the daemon says."""
    if outward.NOBODY in names and len(names) > 1:
        raise UsageError("--notify none with another target", "leave one of them out")
    if not names or names == [outward.NOBODY]:
        return [] if names else None
    known = {name: "" for name in names if re.fullmatch(outward.TARGET, name)}
    outward.check_targets(names, outward.Notify(known))
    return list(dict.fromkeys(names))


def lease(text: str) -> float | None:
    """Seconds; 0 for `off`, None where config.toml decides."""
    if text in ("", "off"):
        return 0.0 if text else None
    seconds = values.seconds(text, "--requeue-on-lost")
    if not LEAST_LEASE <= seconds <= MOST_LEASE:
        raise UsageError(
            f"--requeue-on-lost {text} must lie between 1m and 30d",
            "a shorter silence is often a slow network alone; `off` turns it off",
        )
    return seconds


def refuse_mismatches(asked: Asked, level: str) -> None:
    """Options that mean nothing at this level are mistakes, not wishes."""
    if level == "signal" and not asked.black_box:
        raise UsageError(
            "--preemptible is for a command that checkpoints on a signal",
            "write it after `--`: gpq submit --preemptible -- python train.py; a script on the"
            " library needs no such option",
        )
    if level != "signal" and (asked.signal or asked.resume_args):
        option = "--signal" if asked.signal else "--resume-args"
        raise UsageError(
            f"{option} needs --preemptible", "gpq submit --preemptible --signal USR1 -- COMMAND"
        )
    if level != "script":
        for option, given in (
            ("--rigid", asked.rigid),
            ("--batch-size", asked.batch_size),
            ("--max-batch-size", asked.max_batch_size),
            ("--atomic-batch-size", asked.atomic_batch_size),
            ("--accept", asked.accept),
        ):
            if given:
                raise UsageError(
                    f"{option} is for training scripts",
                    "gpq does not look into a command after `--`",
                )
    if asked.batch_size and asked.max_batch_size and asked.max_batch_size < asked.batch_size:
        raise UsageError(
            f"--max-batch-size {asked.max_batch_size} is below --batch-size {asked.batch_size}",
            "raise the one or lower the other",
        )


def gpu_range(asked: Asked, level: str) -> tuple[int, int, bool]:
    """(least, most, rigid); most 0 = as many as pay off."""
    low, high = values.gpus(asked.gpus) if asked.gpus else (1, None)
    if level != "script":
        if high is not None:
            raise UsageError(
                f"--gpus {asked.gpus}: a command runs on a fixed number of GPUs",
                f"write --gpus {low}; only a training script can be resized: gpq submit --gpus"
                f" {asked.gpus} train.py",
            )
        return low, low, False
    if asked.rigid:
        if high is not None:
            raise UsageError(
                f"--rigid with --gpus {asked.gpus}: a rigid job has one size",
                f"write --gpus {low} --rigid",
            )
        return low, low, True
    if not asked.gpus:
        return 1, 0, False
    return low, low if high is None else high, False


def directory(asked: str) -> str:
    """The working directory, absolute."""
    try:
        path = os.path.abspath(os.path.expanduser(asked)) if asked else _here()
    except FileNotFoundError:
        raise UsageError("the current directory is gone", "change to one that exists") from None
    if not os.path.isdir(path):
        raise UsageError(f"--cwd {asked}: no such directory", "give one that exists")
    return path


def _here() -> str:
    """The current directory by the name that the shell has for it: what an automounter or a link
    calls a home is the same on all servers, and what lies behind it may not be."""
    here, named = os.getcwd(), os.environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(named) and ".." not in named.split("/") and os.path.samefile(named, here):
            return named
    return here


def script(words: list[str], cwd: str) -> str:
    """The absolute path of the training script."""
    shown, path = words[0], os.path.join(cwd, os.path.expanduser(words[0]))
    command = AS_COMMAND.format(shlex.join(words[:2]) + (" ..." if len(words) > 2 else ""))
    if os.path.isdir(path):
        raise UsageError(f"{shown} is a directory", "name the training script in it")
    if not os.path.exists(path):
        if " " in shown and len(words) == 1:
            raise UsageError(
                f"no script {shown} in {cwd}", f"without the quotes: gpq submit -- {shown}"
            )
        if shown.endswith(".py"):
            raise UsageError(
                f"no script {shown} in {cwd}", "correct the path, or the directory with --cwd"
            )
        raise UsageError(f"no script {shown} in {cwd}", command)
    try:
        with open(path, "rb") as stream:
            first = stream.readline(256)
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror}", f"chmod u+r {shown}") from None
    if not shown.endswith(".py") and not PYTHON_LINE.match(first):
        raise UsageError(f"{shown} is no Python script", command)
    return os.path.abspath(path)


def default_name(argv: list[str], level: str) -> str:
    """From the program's file name, with what a name may not have left out."""
    base = os.path.basename(argv[0])
    return values.as_name(base.removesuffix(".py") if level == "script" else base)


def resume(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--resume-args {text}: {error}", "quote it as a shell would read it"
        ) from None

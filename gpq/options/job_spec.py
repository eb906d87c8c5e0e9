"""From the options of `gpq submit` to the SpecMessage that the daemon keeps. Checks everything that
can be checked here."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from typing import Any

import msgspec

from gpq import paths
from gpq.errors import UsageError
from gpq.options import environment, standard_input, submit_values, values
from gpq.rpc.requests import SpecMessage
from gpq.rpc.submit_table import BY_NAME, DEFAULTS, OPTIONS

PYTHON_LINE = re.compile(rb"#!.*\bpython")
# mean nothing to a command
OF_SCRIPTS = (*(option.flag for option in OPTIONS if option.scripts_only), "--python")
AS_COMMAND = "to run it as a command, on a fixed number of GPUs: gpq submit -- {}"


class SubmitTexts(msgspec.Struct, frozen=True):
    """What `gpq submit` was given, as typed. An option is an attribute, also if it was not given.

    Not a dataclass, because importing those takes half as long as msgspec.
    """

    words: list[str]
    black_box: bool  # the words came after `--`
    options: dict[str, Any] = {}  # those that were given

    def __getattr__(self, name: str) -> Any:
        if name not in BY_NAME:
            raise AttributeError(name)
        return self.options.get(name, DEFAULTS[BY_NAME[name].typed])

    def having(self, **options: Any) -> SubmitTexts:
        """The same with other options."""
        return SubmitTexts(self.words, self.black_box, {**self.options, **options})


def missing(built: SpecMessage) -> list[str]:
    """A remark about a command that this machine does not have, although servers may have it. Also
    one about gpq's own Python, if it would run a script and lacks a module."""
    if built.level == "script":
        return _missing_modules(built)
    word = built.argv[0]
    if built.setup or "{" in word or _exists(word, built):
        return []
    return [_missing_command(word, built)]


def _missing_modules(built: SpecMessage) -> list[str]:
    if not built.modules or built.python_asked or built.python != environment.own():
        return []
    import importlib.util

    lacking = [name for name in built.modules if importlib.util.find_spec(name) is None]
    if not lacking:
        return []
    return [
        f"gpq's own Python ({built.python}) has no {', '.join(lacking)}: activate the environment"
        " that has it, or use --python python3"
    ]


def _missing_command(word: str, built: SpecMessage) -> str:
    is_file = os.path.isfile(os.path.join(built.cwd, word))
    if "/" in word and is_file:
        return (
            f"`{word[:80]}` is not executable: run `chmod +x {word}`, or leave out `--`:"
            f" gpq submit {word}"
        )
    problem = (
        f"this machine has no command `{word[:80]}`, and the job will fail on a server without it"
    )
    if not word.startswith(("/", "./", "../")) and is_file:
        return f"{problem}: did you mean `./{word}`?"
    if " " in word and len(built.argv) == 1:
        return f"{problem}: remove the quotes if this is a command with arguments"
    return problem


def _exists(word: str, built: SpecMessage) -> bool:
    folders = [""] if "/" in word else built.env.get("PATH", os.defpath).split(os.pathsep)
    return any(
        os.access(path, os.X_OK) and os.path.isfile(path)
        for path in (os.path.join(built.cwd, folder, word) for folder in folders)
    )


def build(texts: SubmitTexts) -> SpecMessage:
    """The checked specification. Raises UsageError."""
    _refuse_no_command(texts)
    _refuse_low_counts(texts)
    cwd = directory(texts.cwd)
    environ = dict(os.environ)
    level = "black-box" if texts.black_box else "script"
    if texts.preemptible:
        level = "signal"
    refuse_mismatches(texts, level)
    low, high, rigid = gpu_range(texts, level)
    standard_input.refuse_descriptors(texts.words)
    argv = list(texts.words) if texts.black_box else [script(texts.words, cwd), *texts.words[1:]]
    fields = {
        "name": default_name(argv, level),
        **submit_values.fields_of(_plain_options(texts)),
        "min_gpus": low,
        "max_gpus": high,
        "rigid": rigid,
    }
    if texts.snapshot:
        from gpq.options import snapshot

        frozen = snapshot.freeze(cwd)
        fields |= {"code": frozen.code, "code_cwd": frozen.cwd, "code_from": frozen.summary}
        if not texts.black_box:
            argv[0] = snapshot.within(frozen, argv[0], cwd)
    if texts.stdin:
        from gpq.options import snapshot

        fields["stdin"] = snapshot.keep_stdin(standard_input.contents(texts.stdin, cwd))
    env = environment.job_variables(environ, dict(map(values.assignment, texts.env)))
    return SpecMessage(
        **fields,
        argv=argv,
        cwd=cwd,
        level=level,
        env=env,
        paths=[name for name, value in env.items() if value[:1] == "/" and os.path.exists(value)],
        python=environment.interpreter(texts.python, environ),
        python_asked=bool(texts.python),
        modules=environment.modules(argv[0], least=low) if level == "script" else [],
        attributes=environment.attributes(),
    )


def _refuse_no_command(texts: SubmitTexts) -> None:
    if not texts.words:
        raise UsageError("nothing to run", "gpq submit train.py, or gpq submit --gpus 1 -- COMMAND")
    if any("\0" in word for word in texts.words):
        raise UsageError("the command contains a NUL character", "remove it")


def _refuse_low_counts(texts: SubmitTexts) -> None:
    for flag, count, least in (
        ("--retries", texts.retries, 0),
        ("--batch-size", texts.batch_size, 1),
        ("--max-batch-size", texts.max_batch_size, 1),
    ):
        if count is not None and count < least:
            raise UsageError(f"{flag} {count} is too small", f"use a whole number, {least} or more")


def _plain_options(texts: SubmitTexts) -> dict[str, Any]:
    """The options that fill fields directly, by name."""
    return {
        option.name: text
        for option in OPTIONS
        if option.fields and (text := getattr(texts, option.name))
    }


def refuse_mismatches(texts: SubmitTexts, level: str) -> None:
    """Options without a meaning at this level are mistakes."""
    if level == "signal" and not texts.black_box:
        raise UsageError(
            "--preemptible is only for commands that save a checkpoint on a signal",
            "put the command after `--`: gpq submit --preemptible -- python train.py. A script that"
            " uses the training library does not need this option",
        )
    if level != "signal":
        _refuse_signals(texts)
    for option in OPTIONS if level != "script" else ():
        if option.scripts_only and getattr(texts, option.name):
            raise refused_option(option.flag)
    if texts.stdin and texts.launcher:
        raise UsageError(
            "torchrun's replicas would share one stdin", "let the script read it from a file"
        )
    if texts.batch_size and texts.max_batch_size and texts.max_batch_size < texts.batch_size:
        raise UsageError(
            f"--max-batch-size {texts.max_batch_size} is below --batch-size {texts.batch_size}",
            "raise --max-batch-size or lower --batch-size",
        )


def _refuse_signals(texts: SubmitTexts) -> None:
    for flag, text in (("--signal", texts.signal), ("--resume-args", texts.resume_args)):
        if text:
            raise UsageError(
                f"{flag} needs --preemptible",
                "for example gpq submit --preemptible --signal USR1 -- COMMAND",
            )


def refused_option(flag: str) -> UsageError:
    """The error for an option without a meaning for commands."""
    return UsageError(
        f"{flag} is only for training scripts", "remove it, because gpq does not change a command"
    )


def gpu_range(texts: SubmitTexts, level: str) -> tuple[int, int, bool]:
    """(least, most, rigid). most 0 = as many as help."""
    low, high = values.gpus(texts.gpus) if texts.gpus else (1, None)
    if level != "script":
        if high is not None:
            raise UsageError(
                f"--gpus {texts.gpus}: a command runs on a fixed number of GPUs",
                f"use --gpus {low}. gpq can only resize a training script: gpq submit --gpus"
                f" {texts.gpus} train.py",
            )
        return low, low, False
    if texts.rigid:
        if high is not None:
            raise UsageError(
                f"--rigid cannot be combined with a range of GPUs, --gpus {texts.gpus}",
                f"use --gpus {low} --rigid",
            )
        return low, low, True
    if not texts.gpus:
        return 1, 0, False
    return low, low if high is None else high, False


def directory(name: str) -> str:
    """The working directory, absolute."""
    path = paths.absolute(os.path.expanduser(name)) if name else _here()
    if not os.path.isdir(path):
        raise UsageError(f"--cwd {name}: no such directory", "give one that exists")
    return path


def _here() -> str:
    """The current directory by the shell's name for it. A home has the same name on all servers if
    an automounter or a link provides it, but its real path may differ."""
    here, name = paths.absolute(os.curdir), os.environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(name) and ".." not in name.split("/") and os.path.samefile(name, here):
            return name
    return here


def script(words: list[str], cwd: str) -> str:
    """The absolute path of the training script."""
    name, path = words[0], os.path.join(cwd, os.path.expanduser(words[0]))
    command = AS_COMMAND.format(shlex.join(words[:2]) + (" ..." if len(words) > 2 else ""))
    if os.path.isdir(path):
        raise UsageError(f"{name} is a directory", "give the training script in it")
    if not os.path.exists(path):
        if " " in name and len(words) == 1:
            raise UsageError(
                f"no script {name} in {cwd}", f"remove the quotes: gpq submit -- {name}"
            )
        if name.endswith(".py"):
            raise UsageError(
                f"no script {name} in {cwd}", "correct the path, or set the directory with --cwd"
            )
        raise UsageError(f"no script {name} in {cwd}", command)
    try:
        with open(path, "rb") as stream:
            first = stream.readline(256)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}", f"chmod u+r {name}") from None
    if not name.endswith(".py") and not PYTHON_LINE.match(first):
        raise UsageError(f"{name} is not a Python script", command)
    return os.path.abspath(path)


def default_name(argv: list[str], level: str) -> str:
    """From the program's file name, without characters that a name may not have."""
    base = os.path.basename(argv[0])
    return values.as_name(base.removesuffix(".py") if level == "script" else base)

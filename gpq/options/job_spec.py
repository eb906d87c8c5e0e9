"""From the options of `gpq submit` and `gpq edit` to the messages for the daemon: a reader for each
kind of option, and what the options mean together. Checks everything that can be checked here.
Everything here raises UsageError."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gpq import attributes, outward, paths
from gpq.errors import UsageError
from gpq.options import environment, standard_input, values
from gpq.rpc.requests import AttributesMessage, Edit, SpecMessage
from gpq.rpc.submit_table import BY_NAME, DEFAULTS, OPTIONS
from gpq.source import Script, text_of

PYTHON_LINE = re.compile(rb"#!.*\bpython")
# mean nothing to a command
OF_SCRIPTS = (*(option.flag for option in OPTIONS if option.scripts_only), "--python")
AS_COMMAND = "to run it as a command, on a fixed number of GPUs: gpq submit -- {}"
LEAST_LEASE, MOST_LEASE = 60.0, 30 * 86400.0  # seconds
NOTHING = ("none", "off")
MOST_AT_ONCE = 10_000  # jobs of an array
# values of options for `none`
LIFTED: dict[str, Any] = {
    "time": None,
    "gpu_type": "",
    "min_gpu_memory": 0,
    "after": [],
    "accept": [],
}


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


def build(texts: SubmitTexts) -> SpecMessage:
    """The checked specification. Raises UsageError."""
    if not texts.words:
        raise UsageError("nothing to run", "gpq submit train.py, or gpq submit --gpus 1 -- COMMAND")
    if any("\0" in word for word in texts.words):
        raise UsageError("the command contains a NUL character", "remove it")
    for flag, count, least in (
        ("--retries", texts.retries, 0),
        ("--batch-size", texts.batch_size, 1),
        ("--max-batch-size", texts.max_batch_size, 1),
    ):
        if count is not None and count < least:
            raise UsageError(f"{flag} {count} is too small", f"use a whole number, {least} or more")
    cwd = directory(texts.cwd)
    environ = dict(os.environ)
    level = "black-box" if texts.black_box else "script"
    if texts.preemptible:
        level = "signal"
    refuse_mismatches(texts, level)
    low, high, rigid = gpu_range(texts, level)
    argv = list(texts.words) if texts.black_box else [script(texts.words, cwd), *texts.words[1:]]
    base = os.path.basename(argv[0])
    filling = [option for option in OPTIONS if option.fields and getattr(texts, option.name)]
    fields = {
        "name": values.as_name(base.removesuffix(".py") if level == "script" else base),
        **fields_of({option.name: getattr(texts, option.name) for option in filling}),
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
    # a script that imports torch, uses gpq's library, or has several replicas
    needs_torch = level == "script" and (low > 1 or Script(text_of(argv[0])).imports_torch())
    return SpecMessage(
        **fields,
        argv=argv,
        cwd=cwd,
        level=level,
        env=env,
        paths=[name for name, value in env.items() if value[:1] == "/" and os.path.exists(value)],
        python=environment.interpreter(texts.python, environ),
        python_asked=bool(texts.python),
        modules=["torch"] if needs_torch else [],
        attributes=AttributesMessage(*attributes.own()),
    )


def refuse_mismatches(texts: SubmitTexts, level: str) -> None:
    """Options without a meaning at this level are mistakes, and words without one in a job."""
    if level == "signal" and not texts.black_box:
        raise UsageError(
            "--preemptible is only for commands that save a checkpoint on a signal",
            "put the command after `--`: gpq submit --preemptible -- python train.py. A script that"
            " uses the training library does not need this option",
        )
    for flag, text in (("--signal", texts.signal), ("--resume-args", texts.resume_args)):
        if text and level != "signal":
            raise UsageError(
                f"{flag} needs --preemptible",
                "for example gpq submit --preemptible --signal USR1 -- COMMAND",
            )
    for option in OPTIONS:
        if option.scripts_only and level != "script" and getattr(texts, option.name):
            raise refused_option(option.flag)
    if texts.stdin and texts.launcher:
        raise UsageError(
            "torchrun's replicas would share one stdin", "let the script read it from a file"
        )
    for word in texts.words:  # a descriptor of this shell, such as that of `<(...)`
        if standard_input.DESCRIPTOR.fullmatch(word) and int(os.path.basename(word)) > 2:
            raise UsageError(
                f"{word} exists only in your shell, not in the job",
                "write it to a file, or pass it on stdin: ... | gpq submit --stdin - -- COMMAND",
            )
    if texts.batch_size and texts.max_batch_size and texts.max_batch_size < texts.batch_size:
        raise UsageError(
            f"--max-batch-size {texts.max_batch_size} is below --batch-size {texts.batch_size}",
            "raise --max-batch-size or lower --batch-size",
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
    """The working directory, absolute. By default the current one by the shell's name for it: a
    home has the same name on all servers if an automounter or a link provides it, but its real path
    may differ."""
    path = paths.absolute(os.path.expanduser(name or os.curdir))
    if not os.path.isdir(path):
        raise UsageError(f"--cwd {name}: no such directory", "give one that exists")
    shell_name = os.environ.get("PWD", "")
    if not name and os.path.isabs(shell_name) and ".." not in shell_name.split("/"):
        with contextlib.suppress(OSError):
            return shell_name if os.path.samefile(shell_name, path) else path
    return path


def script_of(texts: SubmitTexts) -> Script:
    """The submitted script, without text if it cannot be read."""
    return Script(text_of(script_path(texts)))


def script_path(texts: SubmitTexts) -> str:
    return os.path.join(directory(texts.cwd), os.path.expanduser(texts.words[0]))


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


# -- the values of options -------------------------------------------------------------------------


def fields_of(texts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the options fill, by name."""
    fields: dict[str, Any] = {}
    for name, text in texts.items():
        option = BY_NAME[name]
        value = READERS[option.kind](text, option.flag)
        filled = value if len(option.fields) > 1 else (value,)
        fields.update(zip(option.fields, filled, strict=True))
    return fields


def begin(text: str, option: str) -> float:
    """Seconds since the epoch. 0 for `now`."""
    from datetime import datetime

    from gpq.options.datetimes import moment

    if text.strip().lower() == "now":
        return 0.0
    now = datetime.now().astimezone()
    start = moment(text, option, now)
    if start < now.timestamp():
        raise UsageError(
            f"{option} {text} is in the past", "leave it out to start as soon as possible"
        )
    return start


def targets(names: list[str], option: str) -> list[str]:
    """The daemon checks whether a name is in config.toml."""
    if outward.NOBODY in names and len(names) > 1:
        raise UsageError(
            f"{option} none cannot be combined with other targets", "remove none, or the others"
        )
    if names == [outward.NOBODY]:
        return []
    plain_names = {name: "" for name in names if re.fullmatch(outward.TARGET, name)}
    outward.check_targets(names, outward.Notify(plain_names))
    return list(dict.fromkeys(names))


def lease(text: str, option: str) -> float:
    """Seconds. 0 for `off`."""
    if text == "off":
        return 0.0
    seconds = values.seconds(text, option)
    if not LEAST_LEASE <= seconds <= MOST_LEASE:
        raise UsageError(
            f"invalid {option} {text!r}: expected 1m to 30d, or off",
            "a shorter time often means only a slow network",
        )
    return seconds


def resume(text: str, option: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}", "quote it as in a shell") from None


def gpu_bounds(text: str, option: str) -> tuple[int, int]:
    """(least, most). most 0 = as many as help."""
    low, high = values.gpus(text)
    return low, low if high is None else high


READERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("count", "flag", "jobs", "path", "size", "text"), lambda text, option: text),
    "codes": lambda codes, option: list(dict.fromkeys(codes)),
    "duration": values.seconds,
    "events": lambda text, option: list(outward.events(text.split(","))),
    "gpus": gpu_bounds,
    "lease": lease,
    "limit": values.limit,
    "line": lambda text, option: text.strip(),
    "memory": values.memory_mib,
    "moment": begin,
    "name": values.name,
    "signal": lambda text, option: values.signal_name(text),
    "span": values.span,
    "tags": lambda names, option: [values.name(name, option) for name in names],
    "targets": targets,
    "words": resume,
}


def edit_request(
    jobs: list[str],
    *,
    tag: Sequence[str] = (),
    untag: Sequence[str] = (),
    array_limit: str = "",
    **texts: Any,
) -> Edit:
    """`texts`: options as typed. Empty ones, and None, change nothing. Raises UsageError."""
    changes: dict[str, Any] = {}
    for name, text in texts.items():
        if not text and not isinstance(text, int):
            continue
        if name in LIFTED and text in (*NOTHING, ["none"]):
            [field] = BY_NAME[name].fields
            changes[field] = LIFTED[name]
        else:
            changes |= fields_of({name: text})
    new_tags = [values.name(name, "--tag") for name in tag]
    old_tags = [values.name(name, "--tag") for name in untag]
    limit = None
    if array_limit in NOTHING:
        limit = 0
    elif array_limit.isdecimal() and 1 <= int(array_limit) <= MOST_AT_ONCE:
        limit = int(array_limit)
    elif array_limit:
        raise UsageError(
            f"invalid --array-limit {array_limit[:20]!r}: expected a number of jobs",
            "for example --array-limit 4",
        )
    return Edit(jobs, changes, new_tags, old_tags, limit)

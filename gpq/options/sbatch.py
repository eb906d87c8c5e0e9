"""sbatch's options as gpq's. Options with the same meaning are translated, options without a
meaning here are named, and options that gpq would treat differently are refused. Knows the options
of sbatch 22 to 24. Submits nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpq.errors import UsageError
from gpq.options import values

NOTHING: Mapping[str, Any] = {}
Pair = tuple[str, str]  # (name without dashes, value or "" for a flag)

SHORT = {
    "A": "account", "a": "array", "b": "begin", "D": "chdir", "M": "clusters", "C": "constraint",
    "S": "core-spec", "c": "cpus-per-task", "d": "dependency", "m": "distribution", "e": "error",
    "x": "exclude", "B": "extra-node-info", "G": "gpus", "H": "hold", "i": "input", "J": "job-name",
    "L": "licenses", "k": "no-kill", "F": "nodefile", "w": "nodelist", "N": "nodes", "n": "ntasks",
    "o": "output", "O": "overcommit", "s": "oversubscribe", "p": "partition", "q": "qos",
    "Q": "quiet", "t": "time", "v": "verbose", "W": "wait",
}  # fmt: skip
FLAGS = frozenset({
    "contiguous", "hold", "ignore-pbs", "no-requeue", "overcommit", "oversubscribe", "parsable",
    "quiet", "reboot", "requeue", "spread-job", "stepmgr", "test-only", "use-min-nodes", "verbose",
    "wait",
})  # fmt: skip
# a value is only after =
OPTIONAL = frozenset({"exclusive", "get-user-env", "nice", "no-kill", "propagate"})
# Without a meaning here: gpq gives a job whole GPUs and the cores and the memory of its server with
# them.
UNUSED = frozenset({
    "account", "acctg-freq", "batch", "bb", "bbf", "bcast", "cluster-constraint", "clusters",
    "comment", "constraint", "contiguous", "core-spec", "cores-per-socket", "cpu-freq",
    "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "distribution", "exclude",
    "exclusive", "extra", "extra-node-info", "get-user-env", "gpu-bind", "gpu-freq", "gres-flags",
    "hint", "ignore-pbs", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label",
    "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice", "no-kill",
    "no-requeue", "nodelist", "ntasks-per-core", "ntasks-per-socket", "open-mode", "overcommit",
    "oversubscribe", "parsable", "partition", "power", "prefer", "priority", "profile", "propagate",
    "qos", "quiet", "requeue", "reservation", "segment", "sockets-per-node", "spread-job",
    "stepmgr", "switches", "thread-spec", "threads-per-core", "time-min", "tmp", "tres-bind",
    "use-min-nodes", "verbose", "wait-all-nodes", "wckey",
})  # fmt: skip
USED = frozenset({
    "array", "begin", "chdir", "dependency", "error", "export", "gpus", "gpus-per-node",
    "gpus-per-task", "gres", "hold", "input", "job-name", "nodes", "ntasks", "ntasks-per-gpu",
    "ntasks-per-node", "output", "test-only", "time", "wait", "wrap",
})  # fmt: skip
REFUSED = {
    "signal": (
        "gpq sends no signal before the time limit",
        (
            "remove the line, or use --preemptible --signal USR1 --grace 2m: the job then saves a"
            " checkpoint whenever gpq stops it"
        ),
    ),
    "export-file": ("gpq reads no file of variables", "use --env NAME=VALUE"),
    "uid": ("a job runs as the user who submits it", "remove it"),
    "gid": ("a job runs as the user who submits it", "remove it"),
    "container": ("gpq starts no containers", "start it in the script: `apptainer exec ...`"),
    "nodefile": ("gpq chooses the server", "use --gpu-type and --min-gpu-memory for requirements"),
    "gpus-per-socket": ("gpq does not know sockets", "use --gpus N"),
    "tres-per-task": ("gpq reads GPUs only from --gpus and --gres", "use --gpus N"),
    "reboot": ("gpq does not reboot servers", "remove it"),
}
KNOWN = USED | UNUSED | frozenset(REFUSED)
UNITS = {None: 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
MOMENTS = {"midnight": "tomorrow 0:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00"}
EXAMPLES = "use minutes, MM:SS, HH:MM:SS, D-HH or D-HH:MM:SS"
# by another name in SubmitTexts and the way it is queued
FIELDS = {
    "job-name": "name", "chdir": "cwd", "dependency": "after", "input": "stdin",
    "test-only": "dry_run",
}  # fmt: skip
AS_IT_IS = frozenset({"array", "chdir", "hold", "input", "test-only", "wait"})
ONE_PROCESS = (
    "ask for one task and start the processes in the script (`torchrun --nproc-per-node 4"
    " train.py`), or submit the training script itself: gpq submit --gpus 4 train.py"
)
GPUS = ("gpus", "gpus-per-node", "gres", "gpus-per-task")  # the first one that names GPUs counts
TASKS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu")
NUMBERS = ("cpus-per-task", "cpus-per-gpu")
MEMORY = re.compile(r"(\d{1,12})([KMGT]?)B?", re.IGNORECASE)
KIB = {"K": 1, "": 1 << 10, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}


def name_of(word: str) -> str:
    """The long name that a word such as `-J` or `--job-n` means. "" if there is none, or several
    match."""
    if not word.startswith("--"):
        return SHORT.get(word[1:2], "")
    name = word[2:].partition("=")[0]
    close = [option for option in sorted(KNOWN) if option.startswith(name)] if name else []
    if name in KNOWN:
        return name
    return close[0] if len(close) == 1 else ""


def takes_value(name: str) -> bool:
    return name not in FLAGS and name not in OPTIONAL


def pairs(words: Sequence[str], where: str) -> Iterator[Pair]:
    """The options in words of sbatch. An option that sbatch does not know is passed on as it is,
    starting with a dash. Raises UsageError for a word that is not an option, or lacks its value."""
    remaining_words = list(words)
    while remaining_words:
        word = remaining_words.pop(0)
        if word == "hetjob" or not word.startswith("-") or word in ("-", "--"):
            raise UsageError(
                f"{where}: {word} is not an option",
                "put a value with spaces in quotes, and use one job per script",
            )
        name, (_, assigned, value) = name_of(word), word.partition("=")
        if not name:
            if not assigned and remaining_words and not remaining_words[0].startswith("-"):
                value = remaining_words.pop(0)
            yield word.partition("=")[0], value
        elif not takes_value(name):
            yield name, value if word.startswith("--") else ""
            if not word.startswith("--") and len(word) > 2:  # combined flags: -HW
                remaining_words.insert(0, f"-{word[2:]}")
        else:
            short = not word.startswith("--") and len(word) > 2  # -c4
            if short:
                value = word[2:].removeprefix("=")
            elif not assigned:
                value = remaining_words.pop(0) if remaining_words else ""
            if not value:
                raise UsageError(f"{where}: {word} needs a value", f"use --{name}=...")
            yield name, value


class Translated(msgspec.Struct):
    """`fields`: of SubmitTexts and of the way it is queued, as typed. `unused`: options without a
    meaning here. `notes`: lines."""

    fields: dict[str, Any] = {}
    unused: list[str] = []
    notes: list[str] = []


def translate(
    pairs: Sequence[Pair],
    where: str,
    *,
    explicit_fields: Mapping[str, Any] = NOTHING,
    shell: bool = True,
    lines: bool = False,
) -> Translated:
    """The translation for a job. `explicit_fields` of its SubmitTexts were given otherwise, and
    win. `shell`: it runs as a command, on a fixed number of GPUs of one server. `lines`: of a
    script written for Slurm. Raises UsageError."""
    translated = Translated()
    last = dict(pairs)  # the last one of a repeated option counts, as for sbatch
    for name, value in last.items():
        flag = f"--{name}={value}" if value else f"--{name}"
        if name.startswith("-"):
            translated.unused.append(f"{name} (gpq does not know this sbatch option)")
        elif name in REFUSED:
            if name not in explicit_fields:
                raise UsageError(f"{where}: {flag}: {REFUSED[name][0]}", REFUSED[name][1])
        elif name in UNUSED:
            translated.unused.append(flag)
        elif (field := FIELDS.get(name, name)) not in explicit_fields:
            if name in AS_IT_IS:
                translated.fields[field] = value or True
            elif name in TRANSLATORS:
                TRANSLATORS[name](translated, value, f"{where}: {flag}")
    translated.fields |= fields(last, where, explicit_fields, translated.unused, shell=shell)
    if lines and pairs and "gpus" not in translated.fields and "gpus" not in explicit_fields:
        translated.notes.append("it asks for no GPU, but every gpq job gets at least one")
    return translated


def seconds(text: str, context: str) -> float | None:
    """Slurm's ways to write a time limit. None for no limit. Raises UsageError."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1", "0"):
        return None
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if (
        not all(re.fullmatch(r"\d{1,7}", part) for part in parts)
        or len(parts) > 3
        or (dash and not days.isdigit())
    ):
        raise UsageError(f"{context}: invalid time", EXAMPLES)
    numbers = [int(part) for part in parts]
    if dash:  # D-HH, D-HH:MM, D-HH:MM:SS
        hours, minutes, second = [*numbers, 0, 0][:3]
        total = int(days) * 86400 + hours * 3600 + minutes * 60 + second
    elif len(numbers) == 3:
        total = numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
    else:  # MM, MM:SS
        total = numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)
    if total == 0:
        raise UsageError(f"{context}: the time is zero", EXAMPLES)
    return float(total)


def _time(translated: Translated, value: str, context: str) -> None:
    limit = seconds(value, context)
    if limit is not None:
        translated.fields["time"] = values.duration_text(limit)


def _name(translated: Translated, value: str, context: str) -> None:
    translated.fields["name"] = values.as_name(value)


def _output(translated: Translated, value: str, context: str) -> None:
    note = (
        "gpq keeps the output and the errors of a job in one log: `gpq logs JOB`, or"
        " `gpq logs JOB > FILE`"
    )
    translated.unused.append(context.rpartition(": ")[2])
    if note not in translated.notes:
        translated.notes.append(note)


def _dependency(translated: Translated, value: str, context: str) -> None:
    """`afterok:12:13,afterany:14` as --after 12:ok, 13:ok, 14:any."""
    kinds = {"afterok": "ok", "afterany": "any", "afternotok": "notok"}
    conditions = []
    for part in value.split(","):
        kind, *jobs = part.split(":")
        if (
            kind not in kinds
            or not jobs
            or not all(re.fullmatch(r"\d+(_\d+)?", job) for job in jobs)
        ):
            raise UsageError(
                f"{context}: gpq cannot wait for {part}",
                "use afterok, afterany or afternotok, with ids of gpq jobs",
            )
        conditions += [f"{job}:{kinds[kind]}" for job in jobs]
    translated.fields["after"] = conditions


def _begin(translated: Translated, value: str, context: str) -> None:
    """`now+1hour` as +1h. gpq reads other forms itself, or refuses them."""
    later = re.fullmatch(r"now\+(\d{1,9})(second|minute|hour|day|week)?s?", value)
    if later:
        value = f"+{values.duration_text(float(int(later[1]) * UNITS[later[2]]))}"
    elif value.count(":") == 2 and "-" not in value:
        value = value.removesuffix(":00")
    translated.fields["begin"] = MOMENTS.get(value, value)


def _export(translated: Translated, value: str, context: str) -> None:
    """`ALL,A=1,B`: A as given, B as set here. ALL and NONE change nothing, because gpq has its own
    list."""
    for part in filter(None, value.split(",")):
        if part in ("ALL", "NONE", "NIL"):
            translated.unused.append(f"--export={part}")
            translated.notes.append(
                "gpq passes on only the variables that jobs commonly need. Use --env NAME for any"
                " other"
            )
        elif "=" in part or part in os.environ:
            translated.fields.setdefault("env", []).append(part)


TRANSLATORS: dict[str, Callable[[Translated, str, str], None]] = {
    "begin": _begin,
    "dependency": _dependency,
    "error": _output,
    "export": _export,
    "job-name": _name,
    "output": _output,
    "time": _time,
}


def fields(
    options: Mapping[str, str],
    where: str,
    explicit_fields: Mapping[str, Any],
    unused: list[str],
    *,
    shell: bool,
) -> dict[str, str]:
    """`gpus` and `gpu_type`, unless they are among `explicit_fields`: --gpus, otherwise those per
    node times nodes, otherwise those per task times tasks. Other resources go to `unused`. Raises
    UsageError, also for what a command (`shell`) cannot have."""
    count = nodes(options, where)
    for name in NUMBERS:
        if name in options:
            number(options[name], where, name)
    if shell and count > 1:
        raise UsageError(
            f"{where}: --nodes={count}: gpq runs a command on one server",
            "a script that uses gpq's training library can run on several:"
            f" gpq submit --gpus {count} train.py",
        )
    sizes: dict[str, str] = {}
    if "gpus" not in explicit_fields:
        sizes = _gpus_in_all(options, where, count, unused)
        if "gpu_type" in explicit_fields:
            sizes.pop("gpu_type", None)
    task_count = tasks(options, where, sizes.get("gpus") or str(explicit_fields.get("gpus", "1")))
    if shell and task_count > 1:
        raise UsageError(
            f"{where}: {task_count} tasks: gpq starts a command only once, and has no srun",
            ONE_PROCESS,
        )
    return sizes


def nodes(options: Mapping[str, str], where: str) -> int:
    return number(options.get("nodes", "1").partition("-")[0], where, "nodes")


def tasks(options: Mapping[str, str], where: str, gpus: str) -> int:
    """As sbatch counts them, 1 by default. `gpus`: how many there are in all."""
    for name in TASKS:
        if name in options:
            number(options[name], where, name)
    if "ntasks" in options:
        return int(options["ntasks"])
    if "ntasks-per-node" in options:
        return int(options["ntasks-per-node"]) * nodes(options, where)
    if "ntasks-per-gpu" in options and gpus.isdecimal():
        return int(options["ntasks-per-gpu"]) * int(gpus)
    return 1


def number(text: str, where: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text) or int(text) == 0:
        raise UsageError(
            f"{where}: invalid --{name}={text}: expected a number above 0",
            f"for example --{name}=1",
        )
    return int(text)


def mebibytes(text: str) -> int:
    """MiB of `32G`, `4000M`, `2000`. 0 for all memory, and for values that sbatch would refuse."""
    match = MEMORY.fullmatch(text)
    return -(-int(match[1]) * KIB[match[2].upper()] // 1024) if match else 0


def _gpus_in_all(
    options: Mapping[str, str], where: str, count: int, unused: list[str]
) -> dict[str, str]:
    kinds: set[str] = set()
    gpus_by_option = {
        name: _gpus(options[name], f"{where}: --{name}={options[name]}", unused, kinds)
        for name in GPUS
        if name in options
    }
    task_count = tasks(
        {name: options[name] for name in ("nodes", *TASKS[:2]) if name in options}, where, "1"
    )
    factors = {"gpus": 1, "gpus-per-node": count, "gres": count, "gpus-per-task": task_count}
    total = next(
        (gpus_by_option[name] * factors[name] for name in GPUS if gpus_by_option.get(name)), 0
    )
    sizes = {"gpus": str(total)} if total else {}
    return {**sizes, "gpu_type": kinds.pop()} if kinds else sizes


def _gpus(text: str, context: str, unused: list[str], kinds: set[str]) -> int:
    """The number in `2`, `a100:2`, `gpu`, `gpu:a100:2(S:0)`. Adds the type to `kinds`. 0 if it asks
    for no GPU."""
    total = 0
    gres = "--gres=" in context
    for part in text.split(","):
        words = re.sub(r"\(.*\)$", "", part.strip()).split(":")
        if gres and words[:2] == ["gres", "gpu"]:
            words = words[1:]
        if gres and words[0] != "gpu":
            if words[0] not in ("none", "0", ""):
                unused.append(f"--gres={part.strip()}")
            continue
        words = words[1:] if gres else words
        count = words.pop() if words and words[-1].isdigit() else "1"
        if len(words) > 1 or (words and not re.fullmatch(r"[A-Za-z0-9._-]+", words[0])):
            raise UsageError(
                f"{context}: invalid number of GPUs",
                "for example --gres=gpu:2, --gres=gpu:a100:2 or --gpus=2",
            )
        kinds.update(words)
        total += int(count)
    if len(kinds) > 1:
        raise UsageError(f"{context}: a gpq job uses GPUs of one type", "choose it with --gpu-type")
    return total

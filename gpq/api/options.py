"""Python values as the texts that the options of `gpq submit` are, so that one code checks both.
Refuses other types only."""

from __future__ import annotations

import math
import os
import shlex
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from gpq.errors import UsageError
from gpq.options import submit_request, submit_words
from gpq.options.parsing import sweep_values
from gpq.rpc.submit_table import BY_NAME, OPTIONS

if TYPE_CHECKING:
    from gpq.api.handles import Array, Job

Word = str | os.PathLike[str] | int | float  # of a command: numbers are written out
Duration = str | timedelta | float  # "90m", "1h30m"; a timedelta; or a number, which is of seconds
# "4", "1-8", "2-"; 4; (1, 8); (2, None): from 2 to whatever pays
Gpus = str | int | tuple[int, int | None]


Moment = (
    str | datetime | timedelta
)  # "tomorrow 8am", "+2h"; a datetime, of this machine's zone unless it names one; from now
# or as on the command line: "3-7,9", a name, "@", "all"
Selector: TypeAlias = "Job | Array | int | str"


def asked(
    script: Sequence[Word], command: Sequence[Word] | None, values_by_option: Mapping[str, Any]
) -> submit_request.ResolvedOptions:
    """What the command line would have read, with what the lines of a script add. Raises
    UsageError."""
    if command is not None and script:
        raise UsageError(
            "both a script and a command",
            "gpq.submit('train.py', ...) or gpq.submit(command=[...])",
        )
    if isinstance(command, (str, os.PathLike)):
        raise UsageError(
            f"command={str(command)[:80]!r} is one text, not a list of words",
            "command=['./run.sh', 'data'], or for a line of shell command=['sh', '-c', '...']",
        )
    # What has its default is not given: a script's lines may say otherwise.
    texts = {
        name: value
        for name, value in read(values_by_option).items()
        if value or BY_NAME[name].kind == "size"
    }
    words = [word(argument) for argument in (script if command is None else command)]
    return submit_request.settle(submit_words.Parsed(texts, words, command is not None))


def read(values_by_option: Mapping[str, Any]) -> dict[str, Any]:
    """The values as options are typed. Raises UsageError, and TypeError for a name that is none."""
    unknown = next((name for name in values_by_option if name not in READERS), None)
    if unknown is not None:
        raise TypeError(f"there is no option {unknown!r}")
    return {
        name: READERS[name](name, value)
        for name, value in values_by_option.items()
        if value is not None
    }


def word(value: Word) -> str:
    """One word of a command. Raises UsageError for what is neither text, path nor number."""
    if isinstance(value, bool) or not isinstance(value, (str, os.PathLike, int, float)):
        raise UsageError(f"{_shown(value)} is no word of a command", "texts, paths and numbers are")
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else str(value)


def seconds(value: Duration, option: str) -> str:
    """`7200s`; a text as it is, for the code that reads options."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _not(option, value, "a duration", '"90m", timedelta(hours=1) or a number of seconds')
    return f"{value:.6f}".rstrip("0").rstrip(".") + "s"


def _duration(name: str, value: Any) -> str:
    return seconds(value, _option(name))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _not(_option(name), value, "a text", '"..."')
    return value


def _path(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise _not(_option(name), value, "a path", '"..." or pathlib.Path("...")')
    return str(os.fspath(value))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _not(_option(name), value, "a truth value", "True or False")
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _not(_option(name), value, "a whole number", "an int")
    return value


def _range(name: str, value: Any) -> str:
    """`4` of 4, `1-8` of (1, 8), `2-` of (2, None)."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        low, high = value
        if type(low) is int and (high is None or type(high) is int):
            return f"{low}-{'' if high is None else high}"
    raise _not(_option(name), value, "a number or a range", '4, (1, 8) or "1-8"')


def _signal(name: str, value: Any) -> str:
    if isinstance(value, signals.Signals):
        return value.name
    return value if isinstance(value, str) else str(_count(name, value))


def _tags(name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence):
        raise _not(_option(name), value, "a list of names", '"a" or ["a", "b"]')
    return [_text(name, tag) for tag in value]


def _resume(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        raise _not(
            _option(name), value, "a list of words", '"--resume auto" or ["--resume", "auto"]'
        )
    return shlex.join(word(argument) for argument in value)


def _environment(name: str, value: Any) -> list[str]:
    """`["A=1", "B"]` of {"A": 1, "B": None}: without a value B goes along as it is set here."""
    if isinstance(value, Mapping):
        return [
            f"{key}" if setting is None else f"{key}={setting}" for key, setting in value.items()
        ]
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _not(_option(name), value, "variables", '{"NAME": "VALUE"} or ["NAME=VALUE", "NAME"]')
    return [_text(name, setting) for setting in value]


def selector(value: Selector) -> str:
    """A job as it is named on the command line. Raises UsageError for what is neither."""
    number = getattr(value, "id", value)
    if isinstance(number, bool) or not isinstance(number, (str, int)):
        raise UsageError(
            f"{_shown(value)} is no job",
            'give 42, a Job, or as on the command line "3-7", "train", "@"',
        )
    return str(number)


def _jobs(name: str, value: Any) -> list[str]:
    jobs = value if isinstance(value, (list, tuple, set)) else [value]
    return [selector(job) for job in jobs]


def moment(value: Moment, option: str) -> str:
    """As it is typed: a timedelta is so long from now. Raises UsageError for what is none of the
    three types."""
    if isinstance(value, datetime):
        return value.isoformat()
    return f"+{seconds(value, option)}" if isinstance(value, timedelta) else _text(option, value)


def _moment(name: str, value: Any) -> str:
    return moment(value, _option(name))


def past(value: Moment, option: str) -> str:
    """A moment that is over, as it is typed: a timedelta is so long ago."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return seconds(value, option)
    return _text(option, value)


def _indices(name: str, value: Any) -> str:
    """`0,2,4` of range(0, 6, 2)."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        raise _not(_option(name), value, "a list of indices", 'range(100), [1, 5] or "0-99%4"')
    return ",".join(str(_count(name, index)) for index in value)


def _sweeps(name: str, value: Any) -> list[str]:
    """`["lr=\"0.1\",\"0.01\""]` of {"lr": [0.1, 0.01]}: in quotes each value is one, whatever it
    holds."""
    if not isinstance(value, Mapping):
        return _tags(name, value)
    for key, points in value.items():
        if isinstance(points, (str, bytes)) or not isinstance(points, Iterable):
            raise _not(
                f"--sweep {key}:",
                points,
                "a list of values",
                f'{{"{key}": [1, 2]}}, or sweep="{key}=0..9"',
            )
    return [
        f"{key}={','.join(_point(key, point) for point in points)}" for key, points in value.items()
    ]


def _point(key: str, value: object) -> str:
    text = str(value)
    quote = next((mark for mark in sweep_values.QUOTES if mark not in text), None)
    if quote is None:
        raise UsageError(
            f"--sweep {key}: {_shown(value)} has quotes of both kinds",
            "put it into a CSV: sweep_file=...",
        )
    return f"{quote}{text}{quote}"


def _events(name: str, value: Any) -> str:
    """`fail,end` of ["fail", "end"]."""
    return ",".join(_tags(name, value))


KINDS: dict[str, Any] = {
    **dict.fromkeys(("line", "memory", "name", "text"), _text),
    **dict.fromkeys(("duration", "lease", "limit"), _duration),
    **dict.fromkeys(("count", "size"), _count),
    **dict.fromkeys(("gpus", "span"), _range),
    **dict.fromkeys(("codes", "tags", "targets"), _tags),
    "events": _events,
    "flag": _flag,
    "indices": _indices,
    "jobs": _jobs,
    "moment": _moment,
    "path": _path,
    "signal": _signal,
    "sweeps": _sweeps,
    "variables": _environment,
    "words": _resume,
}
READERS = {option.name: KINDS[option.kind] for option in OPTIONS if option.part != "call"}
READERS |= {"untag": _tags, "array_limit": _range}  # of `Job.edit` alone


def _option(name: str) -> str:
    return name if name.startswith("--") else f"--{name.replace('_', '-')}"


def _not(option: str, value: object, what: str, example: str) -> UsageError:
    return UsageError(f"{option} {_shown(value)} is not {what}", f"give {example}")


def _shown(value: object) -> str:
    return f"{value!r}"[:80]

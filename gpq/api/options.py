"""Turns Python values into the texts that `gpq submit` takes as options, so that the same code
checks both. Refuses only values of a wrong type."""

from __future__ import annotations

import math
import os
import shlex
import signal as signals
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gpq.errors import UsageError
from gpq.options import submit_request, sweeps
from gpq.rpc.submit_table import BY_NAME, DEFAULTS, ONLY_EDIT, OPTIONS, edit_options

if TYPE_CHECKING:
    from gpq.api.handles import Array, Job

F = TypeVar("F", bound=Callable[..., object])
# A word of a command. Numbers are written out.
Word = str | os.PathLike[str] | int | float
# "90m" or "1h30m", a timedelta, or a number of seconds.
Duration = str | timedelta | float
# "4", "1-8" or "2-", or 4, (1, 8) or (2, None). The last of each means 2 to as many as help.
Gpus = str | int | tuple[int, int | None]
# "tomorrow 8am" or "+2h", a datetime (local time if it has no zone), or a timedelta from now.
Moment = str | datetime | timedelta
# A Job or an Array, an id, or text as on the command line: "3-7,9", a name, "@", "all".
Selector: TypeAlias = "Job | Array | int | str"


SUBMIT_DEFAULTS: Mapping[str, Any] = {**DEFAULTS, "list[str]": ()}
EDIT_DEFAULTS: Mapping[str, Any] = {**SUBMIT_DEFAULTS, "int": None, "bool": None}


def resolve(
    script: Sequence[Word], command: Sequence[Word] | None, values_by_option: Mapping[str, Any]
) -> submit_request.ResolvedOptions:
    """What the command line would have read, with the options in the lines of a script. Raises
    UsageError."""
    if command is not None and script:
        raise UsageError(
            "a script and a command exclude each other",
            "gpq.submit('train.py', ...) or gpq.submit(command=[...])",
        )
    if isinstance(command, (str, os.PathLike)):
        raise UsageError(
            f"command={str(command)[:80]!r} is one string, not a list of words",
            "give command=['./run.sh', 'data'], or command=['sh', '-c', '...'] for a shell line",
        )
    # A value that equals the default counts as not given: a script's lines may say otherwise.
    texts = {
        name: value
        for name, value in read(values_by_option).items()
        if value or BY_NAME[name].kind == "size"
    }
    words = [word(argument) for argument in (script if command is None else command)]
    return submit_request.settle(submit_request.Parsed(texts, words, command is not None))


def read(values_by_option: Mapping[str, Any]) -> dict[str, Any]:
    """The values as one would type them. Raises UsageError, and TypeError for an unknown name."""
    unknown = next((name for name in values_by_option if name not in READERS), None)
    if unknown is not None:
        raise TypeError(f"there is no option {unknown!r}")
    return {
        name: READERS[name](name, value)
        for name, value in values_by_option.items()
        if value is not None
    }


def refuse_unknown(function: str, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises TypeError, as Python does for a keyword that a function does not have."""
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown!r}")


def spelled_out(
    types: Mapping[str, Any], place: int, defaults: Mapping[str, Any] = SUBMIT_DEFAULTS
) -> Callable[[F], F]:
    """Give a function a signature that names each option instead of `**options`, for `help`.
    `types`: the annotations of a TypedDict. `place`: how many parameters come before. `defaults`:
    by the type on the command line."""
    rows = {**BY_NAME, **{option.name: option for option in edit_options()}}

    def decorate(function: F) -> F:
        plain_signature = signature(function)
        *parameters, _ = plain_signature.parameters.values()
        parameters[place:place] = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=defaults[rows[name].typed],
                annotation=written.__forward_arg__,
            )
            for name, written in types.items()
        ]
        full_signature = plain_signature.replace(parameters=parameters)
        function.__signature__ = full_signature  # type: ignore[attr-defined]
        return function

    return decorate


def word(value: Word) -> str:
    """One word of a command. Raises UsageError if it is neither a string, a path nor a number."""
    if isinstance(value, bool) or not isinstance(value, (str, os.PathLike, int, float)):
        raise UsageError(
            f"invalid word {_cut(value)} in a command", "use strings, paths and numbers"
        )
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else str(value)


def seconds(value: Duration, option: str) -> str:
    """`7200s`. A string stays as it is, because the code that reads options checks it."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _not(option, value, "a duration", '"90m", timedelta(hours=1) or a number of seconds')
    return f"{value:.6f}".rstrip("0").rstrip(".") + "s"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _not(_option(name), value, "a string", '"..."')
    return value


def _path(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise _not(_option(name), value, "a path", '"..." or pathlib.Path("...")')
    return str(os.fspath(value))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _not(_option(name), value, "a bool", "True or False")
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
    """`["A=1", "B"]` of {"A": 1, "B": None}. None means the value that B has here."""
    if isinstance(value, Mapping):
        return [
            f"{key}" if setting is None else f"{key}={setting}" for key, setting in value.items()
        ]
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _not(_option(name), value, "variables", '{"NAME": "VALUE"} or ["NAME=VALUE", "NAME"]')
    return [_text(name, setting) for setting in value]


def selector(value: Selector) -> str:
    """A job as one names it on the command line. Raises UsageError for any other value."""
    number = getattr(value, "id", value)
    if isinstance(number, bool) or not isinstance(number, (str, int)):
        raise UsageError(
            f"invalid job {_cut(value)}",
            'give 42, a Job, or text as on the command line: "3-7", "train", "@"',
        )
    return str(number)


def _jobs(name: str, value: Any) -> list[str]:
    jobs = value if isinstance(value, (list, tuple, set)) else [value]
    return [selector(job) for job in jobs]


def moment(value: Moment, option: str) -> str:
    """The moment as one would type it. A timedelta counts from now. Raises UsageError for any other
    type."""
    if isinstance(value, datetime):
        return value.isoformat()
    return f"+{seconds(value, option)}" if isinstance(value, timedelta) else _text(option, value)


def past(value: Moment, option: str) -> str:
    """A moment in the past, as one would type it. A timedelta counts back from now."""
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
    """`["lr=\"0.1\",\"0.01\""]` of {"lr": [0.1, 0.01]}. Quotes keep each value together, whatever
    it holds."""
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
    quote = next((mark for mark in sweeps.QUOTES if mark not in text), None)
    if quote is None:
        raise UsageError(
            f"--sweep {key}: {_cut(value)} contains both kinds of quotes",
            "put the values into a CSV file and pass sweep_file=...",
        )
    return f"{quote}{text}{quote}"


KINDS: dict[str, Any] = {
    **dict.fromkeys(("line", "memory", "name", "text"), _text),
    **dict.fromkeys(
        ("duration", "lease", "limit"), lambda name, value: seconds(value, _option(name))
    ),
    **dict.fromkeys(("count", "size"), _count),
    **dict.fromkeys(("at_once", "gpus", "span"), _range),
    **dict.fromkeys(("codes", "tags", "targets"), _tags),
    "events": lambda name, value: ",".join(_tags(name, value)),
    "flag": _flag,
    "indices": _indices,
    "jobs": _jobs,
    "moment": lambda name, value: moment(value, _option(name)),
    "path": _path,
    "signal": _signal,
    "sweeps": _sweeps,
    "variables": _environment,
    "words": _resume,
}
READERS = {
    option.name: KINDS[option.kind] for option in (*OPTIONS, *ONLY_EDIT) if option.part != "call"
}


def _option(name: str) -> str:
    return name if name.startswith("--") else f"--{name.replace('_', '-')}"


def _not(option: str, value: object, what: str, example: str) -> UsageError:
    return UsageError(f"invalid {option} {_cut(value)}: expected {what}", f"give {example}")


def _cut(value: object) -> str:
    return f"{value!r}"[:80]

"""Turns the text after an option into a value, or into a UsageError that says what to type
instead."""

from __future__ import annotations

import os
import re

from gpq.errors import UsageError

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MIB = {"M": 1, "G": 1024, "T": 1024 * 1024}
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def seconds(text: str, option: str) -> float:
    """`90s`, `90m`, `1h30m`, `2d` in seconds. Refuses a bare number, because its unit is
    unknown."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)", text)
    if match:
        raise UsageError(
            f"invalid {option} {text!r}: the unit is missing", f"use {text}s, {text}m or {text}h"
        )
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not parts or "".join(value + unit for value, unit in parts) != text:
        raise UsageError(
            f"invalid {option} {text!r}: expected a duration", "for example 90s, 30m, 1h30m or 2d"
        )
    total = sum(float(value) * SECONDS[unit] for value, unit in parts)
    if not 0 < total < 1e9:
        raise UsageError(f"{option} {text} is out of range", "for example 90s, 30m, 1h30m or 2d")
    return total


def limit(text: str, option: str) -> float:
    """Like `seconds`, and also `HH:MM:SS`, `D-HH`, `D-HH:MM` and `D-HH:MM:SS`, as Slurm writes
    them. Refuses `1:30`, because its units are ambiguous."""
    clock = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,5})(?::(\d{1,2}))?(?::(\d{1,2}))?", text)
    if clock and clock[1] is None and clock[3] and not clock[4]:
        raise UsageError(
            f"invalid {option} {text!r}: the unit is missing", "use 1h30m, 90s or 01:30:00"
        )
    if not clock or (clock[1] is None and not clock[4]):
        return seconds(text, option)
    days, hours, minutes, second = (int(part or 0) for part in clock.groups())
    return seconds(f"{days * 86400 + hours * 3600 + minutes * 60 + second}s", option)


def readable(path: str, name: str, hint: str, *, special: bool = False) -> None:
    """Raises UsageError if no file is readable at `path`, which `name` names. `special`: a device
    or a pipe is fine too."""
    problem = ""
    if os.path.isdir(path):
        problem = "it is a directory"
    elif os.path.exists(path) and not os.path.isfile(path):
        problem = "" if special else "it is not a regular file"
    else:
        try:
            with open(path, "rb") as stream:
                stream.read(1)
        except FileNotFoundError:
            problem = "no such file"
        except (OSError, ValueError) as error:  # the latter: a NUL in the path
            problem = f"it cannot be read ({getattr(error, 'strerror', None) or error})"
    if problem:
        raise UsageError(f"{name}: {problem}", hint)


def gpus(text: str) -> tuple[int, int | None]:
    """`4` as (4, None), `2-8` as (2, 8), `2-` as (2, 0): from 2 to as many as help."""
    match = re.fullmatch(r"(\d{1,6})(?:(-)(\d{1,6})?)?", text)
    if not match:
        raise UsageError(
            f"invalid --gpus {text!r}: expected N or A-B", "for example --gpus 2 or --gpus 1-8"
        )
    low = int(match.group(1))
    if low == 0:
        raise UsageError(
            f"invalid --gpus {text!r}: a job needs at least 1 GPU",
            "for example --gpus 1 or --gpus 1-8",
        )
    if not match.group(2):
        return low, None
    if not match.group(3):
        return low, 0
    high = int(match.group(3))
    if high < low:
        raise UsageError(
            f"invalid --gpus {text!r}: range end is below its start",
            f"did you mean --gpus {high}-{low}?",
        )
    return low, high


def gpu_list(text: str, target: str) -> list[str]:
    """`0,2-3` as ["0", "2", "3"]. Anything but a number counts as a UUID."""
    gpus: list[str] = []
    for part in text.split(","):
        bounds = re.fullmatch(r"(\d{1,4})-(\d{1,4})", part.strip())
        if bounds and int(bounds.group(1)) <= int(bounds.group(2)):
            gpus.extend(
                str(index) for index in range(int(bounds.group(1)), int(bounds.group(2)) + 1)
            )
        elif not bounds and re.fullmatch(r"[A-Za-z0-9./-]{1,128}", part.strip()):
            gpus.append(part.strip())
        else:
            raise UsageError(f"invalid GPUs in {target[:80]!r}", "for example gpu1:0,1 or gpu1:0-3")
    return gpus


def span(text: str, option: str) -> tuple[int, int]:
    """`8-64` as (8, 64), `32` as (32, 32)."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    if not match or int(match.group(1)) == 0:
        raise UsageError(
            f"invalid {option} {text!r}: expected N or A-B", f"for example {option} 8-64"
        )
    low = int(match.group(1))
    high = int(match.group(2) or low)
    if high < low:
        raise UsageError(
            f"invalid {option} {text!r}: range end is below its start",
            f"did you mean {option} {high}-{low}?",
        )
    return low, high


def memory_mib(text: str, option: str) -> int:
    """`40G`, `16GiB`, `500M` in MiB. Refuses a bare number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:([MGT])(?:i?B)?)?", text)
    if not match:
        raise UsageError(
            f"invalid {option} {text!r}: expected an amount of memory", f"for example {option} 40G"
        )
    if not match.group(2):
        raise UsageError(
            f"invalid {option} {text!r}: the unit is missing", f"use {text}G or {text}M"
        )
    return int(float(match.group(1)) * MIB[match.group(2)])


def name(text: str, option: str) -> str:
    if not NAME.fullmatch(text):
        raise UsageError(
            f"invalid {option} {text[:80]!r}: not a valid name",
            "use 1 to 64 letters, digits, dots, dashes and underscores",
        )
    return text


def assignment(text: str) -> tuple[str, str]:
    """`K=V`. `K` alone takes its present value."""
    key, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
        raise UsageError(
            f"invalid --env {text[:80]!r}: expected NAME=VALUE or NAME",
            "use --env NAME=VALUE, or --env NAME to pass the variable on",
        )
    if equals:
        return key, value
    if key not in os.environ:
        raise UsageError(f"--env {key}: {key} is not set here", f"use --env {key}=VALUE")
    return key, os.environ[key]


def signal_name(text: str) -> str:
    """`USR1`, `SIGUSR1` or `10` as USR1."""
    import signal

    word = text.upper().removeprefix("SIG")
    try:
        member = signal.Signals(int(word)) if word.isdigit() else signal.Signals[f"SIG{word}"]
    except (KeyError, ValueError):
        raise UsageError(
            f"invalid --signal {text!r}: unknown signal", "for example --signal USR1"
        ) from None
    if member in (signal.SIGKILL, signal.SIGSTOP):
        raise UsageError(f"--signal {text} cannot be caught by a job", "for example --signal USR1")
    return member.name.removeprefix("SIG")


def duration_text(total: float) -> str:
    """Seconds as a duration that `seconds` reads: `1d12h`, `90s`. Drops fractions of a second."""
    seconds_left, text = round(total), ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds_left >= size:
            text += f"{seconds_left // size}{unit}"
            seconds_left %= size
    return text or "0s"


def as_name(text: str) -> str:
    """The text without characters that a name may not have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:64].strip("-") or "job"

"""Moments as people write them, in local time: `18:00`, `noon`, `fri 6pm`, `tomorrow 8am`,
`2026-11-27 18:00`, `27 nov`, `+2h`, `now`."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

from gpq.errors import UsageError
from gpq.options.values import seconds

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
PAST_EXAMPLES = "for example 7d, yesterday, 'mon 9:00', 2026-11-01 or '2026-11-01 18:00'"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
HOURS = {"noon": "12:00", "midnight": "0:00"}
TIME = r"(\d{1,2})(?::(\d{2}))?\s*([ap]m)?"
EXAMPLES = "for example 18:00, 'fri 6pm', 'tomorrow 8am', '2026-11-27 18:00' or +2h"


def moment(text: str, option: str, now: datetime) -> float:
    """Seconds since the epoch. Days of the week and bare times are the next ones after `now`, which
    is local and knows its zone. Raises UsageError."""
    word = text.strip().lower()
    if word == "now":
        return now.timestamp()
    if word.startswith(("+", "in ")):
        return now.timestamp() + seconds(
            re.sub(r"\s", "", word[1:] if word[0] == "+" else word[3:]), option
        )
    if re.match(r"\d{4}-", word):
        iso = text.strip().replace("Z", "+00:00").replace("z", "+00:00")
        try:  # in this machine's zone unless it names one
            return datetime.fromisoformat(iso).timestamp()
        except (ValueError, OverflowError):
            raise UsageError(
                f"invalid {option} {text.strip()!r}: expected a time", EXAMPLES
            ) from None
    return _near(word, text, option, now, past=False)


def earlier(text: str, option: str, now: datetime) -> float:
    """Like `moment`, but in the past: days of the week and bare times are the latest past ones, and
    `7d` is that long ago. Raises UsageError."""
    word = text.strip().lower()
    try:
        if re.fullmatch(r"(\d+(\.\d+)?[smhd])+", word):
            return now.timestamp() - seconds(word, option)
        if word == "now" or word.startswith("+") or re.match(r"\d{4}-", word):
            return moment(text, option, now)
        return _near(word, text, option, now, past=True)
    except UsageError as error:
        raise UsageError(error.message, PAST_EXAMPLES) from None


def window(since: str, until: str) -> tuple[float | None, float | None]:
    """Both as seconds since the epoch. Raises UsageError."""
    now = datetime.now().astimezone()
    begin = earlier(since, "--since", now) if since else None
    end = earlier(until, "--until", now) if until else None
    if begin is not None and end is not None and end <= begin:
        raise UsageError(
            f"--until {until} is not after --since {since}",
            "use a later --until or an earlier --since",
        )
    return begin, end


def _near(word: str, text: str, option: str, now: datetime, *, past: bool) -> float:
    """The next moment that the word means, or the latest past one."""
    yesterday = past and word.startswith("yesterday")
    day, hour, minute = _words(
        word.replace("yesterday", "today", 1) if yesterday else word, text, option
    )
    if day and not day.isalpha():
        return _of_the_year(day, hour, minute, now, option, text, past=past)
    start, period, step = now.date(), 1, -1 if past else 1
    if yesterday or day == "tomorrow":
        return _at(start + timedelta(days=-1 if yesterday else 1), hour, minute)
    if day in DAYS:
        start += timedelta(days=step * ((DAYS.index(day) - start.weekday()) * step % 7))
        period = 7
    nearest = _at(start, hour, minute)
    if day == "today" or (nearest <= now.timestamp()) is past:
        return nearest
    return _at(start + timedelta(days=step * period), hour, minute)


def _words(word: str, text: str, option: str) -> tuple[str, int, int]:
    """(day or "", hour, minute)."""
    for name, clock in HOURS.items():
        word = re.sub(rf"\b{name}\b", clock, word)
    names = "|".join((*DAYS, "today", "tomorrow"))
    dates = rf"\d{{1,2}}\.?\s*(?:{'|'.join(MONTHS)})|(?:{'|'.join(MONTHS)})[a-z]*\s*\d{{1,2}}"
    match = re.fullmatch(
        rf"(?:(?:next\s+)?({names})[a-z]*|({dates})[a-z]*)?(?:^|\s+|$)(?:at\s+)?(?:{TIME})?", word
    )
    if match is None:
        raise UsageError(f"invalid {option} {text!r}: expected a time", EXAMPLES)
    day = match[1] or match[2] or ""
    hours, minutes, half = match.group(3, 4, 5)
    if not day and not (hours and (minutes or half)):
        raise UsageError(f"invalid {option} {text!r}: expected a time", EXAMPLES)
    if not hours:
        return day, 0, 0
    hour, minute = int(hours), int(minutes or 0)
    if not minutes and not half:
        raise UsageError(
            f"{option} {text}: {hours} is ambiguous", f"use {hours}:00, {hours}am or {hours}pm"
        )
    if half:
        is_right = 1 <= hour <= 12
        hour = hour % 12 + 12 * (half == "pm")
    else:
        is_right = hour <= 23
    if not is_right or minute > 59:
        raise UsageError(f"{option} {text}: no such time of day", EXAMPLES)
    return day, hour, minute


def _of_the_year(
    day: str, hour: int, minute: int, now: datetime, option: str, text: str, *, past: bool = False
) -> float:
    """`27 nov` or `nov 27`, the next one, or the latest past one."""
    number, month = re.findall(r"\d+", day)[0], re.findall("|".join(MONTHS), day)[0]
    for year in (now.year, now.year - 1 if past else now.year + 1):
        try:
            candidate = _at(date(year, MONTHS.index(month) + 1, int(number)), hour, minute)
        except ValueError:
            raise UsageError(f"invalid {option} {text!r}: no such day", EXAMPLES) from None
        if (candidate <= now.timestamp()) is past:
            break
    return candidate


def _at(day: date, hour: int, minute: int) -> float:
    return datetime(day.year, day.month, day.day, hour, minute).timestamp()

"""Moments as people write them: `18:00`, `fri 18:00`, `tomorrow 9:00`, `2026-11-27 18:00`, `+2h`, `now`; in local time."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

from gpq.cli.values import seconds
from gpq.errors import UsageError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
PAST_EXAMPLES = "write for example 7d, yesterday, 'mon 9:00', 2026-11-01 or '2026-11-01 18:00'"
EXAMPLES = "write for example 18:00, 'fri 18:00', 'tomorrow 9:00', '2026-11-27 18:00' or +2h"


def moment(text: str, option: str, now: datetime) -> float:
    """Seconds since the epoch. Days of the week and bare times are the next such ones after `now`, which is local and knows
    its zone. Raises UsageError."""
    word = text.strip().lower()
    if word == "now":
        return now.timestamp()
    if word.startswith("+"):
        return now.timestamp() + seconds(word[1:], option)
    if re.match(r"\d{4}-", word):
        return _exact(text.strip(), option)
    day, hour, minute = _words(word, text, option)
    today = now.date()
    if day == "tomorrow":
        return _at(today + timedelta(days=1), hour, minute)
    if day in DAYS:
        found = today + timedelta(days=(DAYS.index(day) - today.weekday()) % 7)
        later = _at(found, hour, minute)
        return later if later > now.timestamp() else _at(found + timedelta(days=7), hour, minute)
    later = _at(today, hour, minute)
    return later if day or later > now.timestamp() else _at(today + timedelta(days=1), hour, minute)


def earlier(text: str, option: str, now: datetime) -> float:
    """As `moment`, but looking back: days of the week and bare times are the latest such ones that are over, `7d` is so long
    ago. Raises UsageError."""
    word = text.strip().lower()
    try:
        if re.fullmatch(r"(\d+(\.\d+)?[smhd])+", word):
            return now.timestamp() - seconds(word, option)
        if word == "now" or word.startswith("+") or re.match(r"\d{4}-", word):
            return moment(text, option, now)
        past = word.startswith("yesterday")
        day, hour, minute = _words(word.replace("yesterday", "today", 1) if past else word, text, option)
    except UsageError as error:
        raise UsageError(error.message, PAST_EXAMPLES) from None
    today = now.date()
    if past or day == "tomorrow":
        return _at(today + timedelta(days=-1 if past else 1), hour, minute)
    if day in DAYS:
        found = today - timedelta(days=(today.weekday() - DAYS.index(day)) % 7)
        latest = _at(found, hour, minute)
        return latest if latest <= now.timestamp() else _at(found - timedelta(days=7), hour, minute)
    latest = _at(today, hour, minute)
    return latest if day or latest <= now.timestamp() else _at(today - timedelta(days=1), hour, minute)


def _words(word: str, text: str, option: str) -> tuple[str, int, int]:
    """(day or "", hour, minute)."""
    names = "|".join((*DAYS, "today", "tomorrow"))
    found = re.fullmatch(rf"(?:({names})[a-z]*)?\s*(?:(\d{{1,2}}):(\d{{2}}))?", word)
    if not found or not word or (found.group(1) is None and found.group(2) is None):
        raise UsageError(f"{option} {text}: no such moment", EXAMPLES)
    hour, minute = int(found.group(2) or 0), int(found.group(3) or 0)
    if hour > 23 or minute > 59:
        raise UsageError(f"{option} {text}: no such time of day", EXAMPLES)
    return found.group(1) or "", hour, minute


def _at(day: date, hour: int, minute: int) -> float:
    return datetime(day.year, day.month, day.day, hour, minute).timestamp()


def _exact(text: str, option: str) -> float:
    """ISO 8601; of this machine's zone unless it names one."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00").replace("z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text}: no such moment", EXAMPLES) from None

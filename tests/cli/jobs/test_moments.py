"""Times as people write them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gpq.errors import UsageError
from gpq.options.datetimes import earlier, moment
from gpq.options.values import gpu_list

NOW = datetime(2026, 11, 25, 14, 30).astimezone()  # a Wednesday


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-25 14:30"),
        ("18:00", "2026-11-25 18:00"),
        ("9:00", "2026-11-26 09:00"),
        ("today 9:00", "2026-11-25 09:00"),
        ("tomorrow 9:00", "2026-11-26 09:00"),
        ("tomorrow", "2026-11-26 00:00"),
        ("fri 18:00", "2026-11-27 18:00"),
        ("Friday 18:00", "2026-11-27 18:00"),
        ("wed 18:00", "2026-11-25 18:00"),
        ("wed 14:30", "2026-12-02 14:30"),
        ("tue", "2026-12-01 00:00"),
        ("tomorrow 8am", "2026-11-26 08:00"),
        ("Tomorrow at 8:30 PM", "2026-11-26 20:30"),
        ("6pm", "2026-11-25 18:00"),
        ("12am", "2026-11-26 00:00"),
        ("12pm", "2026-11-26 12:00"),
        ("noon", "2026-11-26 12:00"),
        ("tomorrow noon", "2026-11-26 12:00"),
        ("fri midnight", "2026-11-27 00:00"),
        ("fri 6pm", "2026-11-27 18:00"),
        ("next monday 9:00", "2026-11-30 09:00"),
        ("27 nov 18:00", "2026-11-27 18:00"),
        ("dec 1", "2026-12-01 00:00"),
        ("1. jan 0:30", "2027-01-01 00:30"),
        ("november 24 8am", "2027-11-24 08:00"),
        ("in 2h", "2026-11-25 16:30"),
        ("in 1h 30m", "2026-11-25 16:00"),
        ("2026-12-24 20:15", "2026-12-24 20:15"),
        ("2026-12-24T20:15", "2026-12-24 20:15"),
        ("2026-12-24", "2026-12-24 00:00"),
        ("+1h30m", "2026-11-25 16:00"),
    ],
)
def test_a_time_means_its_next_occurrence_in_local_time(text: str, meant: str) -> None:
    assert moment(text, "--from", NOW) == datetime.fromisoformat(meant).timestamp()


def test_an_explicit_time_zone_counts() -> None:
    assert moment("2026-12-24T20:15:00Z", "--from", NOW) == moment("2026-12-24T21:15:00+01:00", "--from", NOW)
    assert moment("+2d", "--from", NOW) - NOW.timestamp() == timedelta(days=2).total_seconds()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "25:00",
        "18:60",
        "13pm",
        "0am",
        "fri 18",
        "31 feb",
        "8 am 5",
        "next",
        "at",
        "2026-13-01",
        "2026-11-27 25:00",
        "+2",
        "18",
        "fri18",
    ],
)
def test_an_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        moment(text, "--from", NOW)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-25 14:30"),
        ("7d", "2026-11-18 14:30"),
        ("1h30m", "2026-11-25 13:00"),
        ("18:00", "2026-11-24 18:00"),
        ("9:00", "2026-11-25 09:00"),
        ("today", "2026-11-25 00:00"),
        ("yesterday", "2026-11-24 00:00"),
        ("Yesterday 9:00", "2026-11-24 09:00"),
        ("mon 9:00", "2026-11-23 09:00"),
        ("wed 14:30", "2026-11-25 14:30"),
        ("wed 18:00", "2026-11-18 18:00"),
        ("friday", "2026-11-20 00:00"),
        ("2026-11-01", "2026-11-01 00:00"),
        ("1 nov", "2026-11-01 00:00"),
        ("27 nov 8am", "2025-11-27 08:00"),
        ("2026-12-24 20:15", "2026-12-24 20:15"),
        ("+1h", "2026-11-25 15:30"),
        ("tomorrow", "2026-11-26 00:00"),
    ],
)
def test_a_time_in_the_past_means_its_latest_occurrence(text: str, meant: str) -> None:
    assert earlier(text, "--since", NOW) == datetime.fromisoformat(meant).timestamp()


@pytest.mark.parametrize(
    "text", ["", "soon", "7", "7x", "yesterday today", "25:00", "2026-13-01", "-7d", "0d", "last week"]
)
def test_an_invalid_time_in_the_past_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        earlier(text, "--since", NOW)
    assert "7d" in caught.value.hint


def test_lists_of_gpus_are_parsed() -> None:
    assert gpu_list("0,2-4,GPU-1", "") == ["0", "2", "3", "4", "GPU-1"]
    for text in ("", "0,", "3-1", "a b", "\x1b"):
        with pytest.raises(UsageError):
            gpu_list(text, f"gpu1:{text}")

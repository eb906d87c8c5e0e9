"""What an arbiter remembers: an epoch for each start, and what each member owes and had."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gpq.arbiter.ledger import MOST_DAYS, Ledger
from gpq.core.model.accounts import Standing
from gpq.errors import Refused
from tests.agent.harm import HARM
from tests.contract.test_sqlite_store import fill, mounted, needs_root

DAY = 86400.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.json")


def test_a_start_finds_all_and_has_the_next_epoch_on_the_disk(path: str) -> None:
    ledger, _ = Ledger.open(path)
    ledger.standings, ledger.standings_at = {"ana": Standing(3.5, 7.0)}, 1e9
    ledger.charge("ana", 60.0, 1e9)
    ledger.save(path)
    later, notes = Ledger.open(path)
    assert notes == []
    assert later.epoch > ledger.epoch
    assert later.epoch == json.loads(Path(path).read_text())["epoch"]
    ledger.epoch = later.epoch
    assert later == ledger


def test_a_charge_counts_on_its_utc_day_and_a_clock_that_was_set_back_takes_nothing() -> None:
    ledger = Ledger(1)
    for seconds, at in ((10.0, DAY - 1), (5.0, DAY), (-7.0, DAY), (float("nan"), DAY)):
        ledger.charge("ana", seconds, at)
    ledger.charge("bob", 1.0, DAY)
    assert ledger.days == {"1970-01-01": {"ana": 10.0}, "1970-01-02": {"ana": 5.0, "bob": 1.0}}
    assert ledger.gpu_seconds("ana") == 15.0


def test_the_newest_days_stay_in_whatever_order_they_come() -> None:
    ledger = Ledger(1)
    days = [day * 7 % 1000 for day in range(1000)]
    for day in days:
        ledger.charge("ana", 1.0, day * DAY)
    assert min(ledger.days) == time.strftime("%Y-%m-%d", time.gmtime((1000 - MOST_DAYS) * DAY))
    assert ledger.gpu_seconds("ana") == len(ledger.days) == MOST_DAYS


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_ledger_is_set_aside_and_the_next_epoch_is_larger(path: str, tmp_path: Path, harm: str) -> None:
    HARM[harm](Path(path))
    before = int(time.time())
    ledger, notes = Ledger.open(path)
    assert before <= ledger.epoch <= time.time()
    assert ["ledger.json was damaged" in note and "ledger.json.damaged" in note for note in notes] == [True]
    assert os.path.lexists(f"{path}.damaged")
    assert Ledger.open(path)[1] == []


def test_an_old_ledger_that_was_copied_back_does_not_bring_old_epochs(path: str) -> None:
    ledger, notes = Ledger.open(path)
    assert notes == []
    Ledger(7).save(path)
    assert Ledger.open(path)[0].epoch >= ledger.epoch


def test_an_epoch_a_little_ahead_of_the_clock_is_followed_by_the_next_and_one_far_ahead_by_the_time(path: str) -> None:
    now = int(time.time())
    Ledger(now + 30).save(path)
    assert Ledger.open(path)[0].epoch == now + 31
    Ledger(1 << 40).save(path)
    assert now <= Ledger.open(path)[0].epoch <= time.time()


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": -1},
        {"epoch": 1 << 53},
        {"standings_at": -0.5},
        {"standings": {"ana": {"debt": -1.0}}},
        {"standings": {"ana": {"short": 1e300}}},
        {"standings": {"ana": {"debt": "1"}}},
        {"days": {"2026-01-01": {"ana": -1.0}}},
    ],
)
def test_one_wrong_number_makes_a_ledger_damaged(path: str, wrong: dict[str, object]) -> None:
    Path(path).write_text(json.dumps({"epoch": 4, **wrong}))
    ledger, notes = Ledger.open(path)
    assert notes
    assert ledger == Ledger(ledger.epoch)


@needs_root
def test_on_a_full_disk_nothing_starts_and_the_old_ledger_stays(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "256k") as folder:
        path = str(folder / "ledger.json")
        Ledger(4).save(path)
        fill(folder)
        with pytest.raises(Refused, match="No space left"):
            Ledger.open(path)
        (folder / "filler").unlink()
        assert Ledger.open(path)[1] == []

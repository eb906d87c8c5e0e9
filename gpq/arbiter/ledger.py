"""What the arbiter must remember besides the roster: its epoch, debts, and who had how many
GPU-seconds on which day. Members' daemons tell all else again.

ledger.json  {"epoch", "standings": {member: {"debt", "short"}}, "standings_at",
             "days": {day: {member: GPU-seconds}}}
"""

from __future__ import annotations

import time
from datetime import datetime, timezone

import msgspec
from gpq_agent import records

from gpq.arbiter import files
from gpq.core.model.accounts import Standing
from gpq.core.model.units import Seconds
from gpq.rpc.team_messages import AHEAD

MOST_DAYS = 400
MOST = 1 << 53  # of any number in the file


class Ledger(msgspec.Struct):
    epoch: int  # it grows with each start
    standings: dict[str, Standing] = {}  # by member
    standings_at: Seconds = 0.0
    days: dict[str, dict[str, float]] = {}  # GPU-seconds by UTC day and member

    @classmethod
    def open(cls, path: str) -> tuple[Ledger, list[str]]:
        """The ledger of this start, which is written already, and notes for the log. The epoch is
        the time in seconds, or a little larger. So it is the largest also if the file was lost,
        damaged or copied back. One further ahead, of a wrong clock, counts nowhere. Raises
        Refused."""
        notes: list[str] = []
        ledger = cls(0)
        try:
            ledger = _read(path) or ledger
        except records.Damaged as damage:
            notes.append(f"{records.put_away(damage)}. Debts and GPU hours begin again")
        now = int(time.time())
        ledger.epoch = max(ledger.epoch + 1, now) if ledger.epoch < now + AHEAD else now
        ledger.save(path)
        return ledger, notes

    def save(self, path: str) -> None:
        """Raises Refused."""
        files.write(path, self)

    def charge(self, member: str, gpu_seconds: float, at: Seconds) -> None:
        """Count them on the day of `at`. Less than 0 counts as 0, because a clock was set back."""
        day = datetime.fromtimestamp(at, timezone.utc).date().isoformat()
        charges = self.days.setdefault(day, {})
        charges[member] = charges.get(member, 0.0) + max(0.0, gpu_seconds)
        while len(self.days) > MOST_DAYS:
            del self.days[min(self.days)]

    def gpu_seconds(self, member: str) -> float:
        """On all days that it has."""
        return sum(charges.get(member, 0.0) for charges in list(self.days.values()))


def _read(path: str) -> Ledger | None:
    ledger = files.read(path, Ledger)
    if ledger is None:
        return None
    numbers = [ledger.epoch, ledger.standings_at]
    numbers += [number for row in ledger.standings.values() for number in (row.debt, row.short)]
    numbers += [number for charges in ledger.days.values() for number in charges.values()]
    if not all(0 <= number < MOST for number in numbers):
        raise records.Damaged(path, "a number is below 0 or too large")
    return ledger

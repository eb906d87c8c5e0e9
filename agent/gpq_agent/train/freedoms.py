"""What this job's loop leaves open to the allocator: habits that were seen, kept for good beside the checkpoints, and told once.

All replicas lose a freedom at the same step, because the batch of each follows from it. Notices no habit itself.
"""

import os
from typing import Any, Callable, Collection, Dict, Optional, Set

from gpq_agent import records, wire

from .agreement import Agreement
from .batches import Configuration, Limits, ceil_div
from .habits import ACCUMULATE, HABITS, OBSERVED, RESIZE, RETUNE, SPLIT, SUSPECTED

RECORD = "habits.json"
CODES = sorted(HABITS)
SAID = {
    ACCUMULATE: "no micro-batches",
    SPLIT: "no noise scale from one GPU",
    RESIZE: "no other number of GPUs",
    RETUNE: "no other batch size",
}


class Freedoms:
    """`tell` is called with a habit, on rank 0 or on a replica that ends by it. `folder`: that of
    checkpoints on this server."""

    def __init__(
        self,
        folder: Optional[str],
        agreement: Agreement,
        rank: int,
        tell: Callable[[wire.Habit], None],
        accepted: Collection[str] = (),
    ) -> None:
        self._path = os.path.join(folder, "gpq", RECORD) if folder else None
        self._agreement = agreement
        self._rank = rank
        self._tell = tell
        self._known: Dict[str, str] = {}  # habit: its detail
        self._seen: Dict[str, str] = {}  # on this replica, not agreed on yet
        self._accepted = accepted
        self._suspected: Set[str] = set()  # by this replica, and not observed
        self._told: Set[str] = set()
        self.lost: Set[str] = set()

    def recall(self) -> None:
        """Take up what earlier attempts saw, on any server: a replica that ended by a habit has noted
        it on its own. Collective."""
        record = self._read() if self._path is not None else {}
        # What is accepted and was observed will be observed again.
        known = {code: detail for code, detail in record.items() if code in HABITS and code not in self._accepted}
        self._seen.update(known)
        self.agree()

    def see(self, code: str, detail: str = "") -> None:
        """This replica's loop has this habit. Counts once all agree."""
        self._suspected.discard(code)
        if code not in self._known:
            self._seen.setdefault(code, detail)

    def suspect(self, code: str, detail: str = "") -> None:
        """This replica's loop seems to have this habit, which counts unless it is accepted."""
        if code not in self._accepted and not self.noticed(code):
            self._suspected.add(code)
            self._seen[code] = detail

    def knows(self, code: str) -> bool:
        """Has the loop this habit, as far as all agree?"""
        return code in self._known

    def noticed(self, code: str) -> bool:
        """Has the loop this habit, as far as this replica knows?"""
        return code in self._known or code in self._seen

    @property
    def waiting(self) -> bool:
        """Was something seen that is not agreed on?"""
        return bool(self._seen)

    def agree(self) -> bool:
        """What any replica has seen, all have. Returns whether that is more than before. Collective."""
        mine = [float(code in self._seen) for code in CODES]
        agreed = [code for code, seen in zip(CODES, self._agreement.maximum(mine)) if seen and code not in self._known]
        for code in agreed:
            self._known[code] = self._seen.get(code, "")
            self.lost.update(HABITS[code].freedoms)
        self._seen.clear()
        if agreed and self._rank == 0:
            self._write()
            for code in agreed:
                self.say(code)
        return bool(agreed)

    def alone(self, code: str, detail: str) -> None:
        """This replica is about to end, by this habit: nobody can be asked any more. For the next attempt."""
        if code not in self._known:
            self._known[code] = detail
            self.lost.update(HABITS[code].freedoms)
            self._write()
            self.say(code)

    def say(self, code: str) -> None:
        """A line for the user, and up."""
        if code in self._told:
            return
        self._told.add(code)
        suspected = code in self._suspected or HABITS[code].evidence == SUSPECTED
        detail = self._known.get(code) or "on one of the replicas"
        self._tell(self.habit(code, detail, SUSPECTED if suspected else OBSERVED))

    @staticmethod
    def habit(code: str, detail: str, evidence: str) -> wire.Habit:
        """In words."""
        entry = HABITS[code]
        return wire.Habit(code, list(entry.freedoms), entry.message.format(detail), entry.cure, evidence)

    def allowed(self, configuration: Configuration, limits: Limits) -> Configuration:
        """The configuration nearest to this one that needs no freedom that is lost."""
        total = configuration.total
        if RETUNE in self.lost:
            total = limits.base_batch
        if ACCUMULATE not in self.lost:
            if total == configuration.total:
                return configuration
            micros = max(ceil_div(ceil_div(total, limits.replicas), max(configuration.atomic_batch, 1)), 1)
            share = ceil_div(ceil_div(total, limits.replicas), micros)
            return configuration._replace(atomic_batch=share, accum_steps=micros - 1, total=total)
        if RETUNE not in self.lost and configuration.accum_steps > 0:
            # What fits at once decides, as far as the batch that the rate is for allows.
            total = max(limits.base_batch, configuration.atomic_batch * limits.replicas)
        return configuration._replace(atomic_batch=ceil_div(total, limits.replicas), accum_steps=0, total=total)

    def _read(self) -> Dict[str, str]:
        assert self._path is not None
        try:
            content: Any = (wire.read_json(self._path) or {}).get("habits")
        except records.Damaged as damage:
            records.set_aside(damage.path)
            return {}
        except OSError:
            return {}
        if not isinstance(content, dict):
            return {}
        return {str(code): str(detail)[:200] for code, detail in list(content.items())[:100]}

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            wire.write_json(self._path, {"habits": self._known})
        except OSError:
            return  # a full disk; the next attempt sees it again


def line(habit: wire.Habit) -> str:
    """What the user reads: the habit, what follows, the cure."""
    taken = ", ".join(SAID[each] for each in habit.freedoms)
    names = ", ".join(habit.freedoms)
    words = "{}: {} ({}). To get that back: {}".format(habit.message, taken, names, habit.cure)
    if habit.evidence == SUSPECTED:
        words += ". If that is wrong, and gpq check comes out the same: --accept {}".format(habit.code)
    return words

"""What this job's loop leaves open to the allocator: habits that were seen, kept for good beside the checkpoints, and told once.

All replicas lose a freedom at the same step, because the batch of each follows from it. Notices no habit itself.
"""

import os
from typing import Any, Callable, Collection, Dict, List, Optional, Set, Tuple

from gpq_agent import records, wire

from .agreement import Agreement
from .batches import Configuration, Limits, ceil_div
from .habits import ACCUMULATE, HABITS, OBSERVED, RESIZE, RETUNE, SPLIT, SUSPECTED
from .proof import habit as habit_of

RECORD = "habits.json"
CODES = sorted(HABITS)
SURE = 2  # how much an observation weighs, more than a suspicion
SAID = {
    ACCUMULATE: "no micro-batches",
    SPLIT: "no noise scale from one GPU",
    RESIZE: "no other number of GPUs",
    RETUNE: "no other batch size",
}


class Freedoms:
    """`tell` is called with a habit, on rank 0 or on a replica that ends by it. `folder`: that of
    checkpoints on this server. `accepted`: suspicions that count for nothing."""

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
        self._suspected: Set[str] = set()  # of these: none that was observed
        self._seen: Dict[str, str] = {}  # on this replica, not agreed on yet
        self._doubtful: Set[str] = set()  # of these: only suspected
        self._accepted = accepted
        self._same: Set[str] = set()  # freedoms in whose shapes gpq check found the same
        self._proof: Optional[wire.Proof] = None
        self.lost: Set[str] = set()

    def recall(self, proof: Optional[wire.Proof] = None) -> None:
        """Take up what gpq check found, and what earlier attempts saw on any server: a replica that ended by a
        habit has noted it on its own. Collective."""
        first = self._proof is None
        self._proof = proof = self._agreement.first(proof)  # rank 0's
        if proof is not None:
            self._same = set(proof.same)
            self.lost.update(proof.lost)
            if proof.lost and first and self._rank == 0:
                self._tell(habit_of(proof))
        habits, suspected = self._read()
        for code, detail in habits.items():
            # What is accepted and was observed will be observed again.
            if code in HABITS and code not in self._accepted:
                self._seen[code] = detail
                if code in suspected or HABITS[code].evidence == SUSPECTED:
                    self._doubtful.add(code)
        self.agree()

    def see(self, code: str, detail: str = "") -> None:
        """This replica's loop has this habit. Counts once all agree."""
        self._doubtful.discard(code)
        if code not in self._known or code in self._suspected:
            self._seen.setdefault(code, detail)

    def suspect(self, code: str, detail: str = "") -> None:
        """This replica's loop seems to have this habit, which counts unless it is accepted, or refuted."""
        if code not in self._accepted and not self.noticed(code):
            self._doubtful.add(code)
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
        """What any replica has seen, all have. Returns whether freedoms are lost by it. Collective."""
        evidence = self._agreement.maximum([float(self._weight(code)) for code in CODES])
        news = [
            code
            for code, weight in zip(CODES, evidence)
            if weight and (code not in self._known or (weight == SURE and code in self._suspected))
        ]
        for code in news:
            self._known[code] = self._seen.get(code) or self._known.get(code, "")
            (self._suspected.discard if evidence[CODES.index(code)] == SURE else self._suspected.add)(code)
        self._seen.clear()
        self._doubtful.clear()
        taking = [code for code in news if self._taken(code)]
        for code in taking:
            self.lost.update(self._taken(code))
        if news and self._rank == 0:
            self._write()
            for code in taking:
                self._say(code)
        return bool(taking)

    def alone(self, code: str, detail: str) -> None:
        """This replica is about to end, by this habit: nobody can be asked any more. For the next attempt."""
        if code not in self._known:
            self._known[code] = detail
            self.lost.update(HABITS[code].freedoms)
            self._write()
            self._say(code)

    def _weight(self, code: str) -> int:
        if code not in self._seen:
            return 0
        return SURE - 1 if code in self._doubtful else SURE

    def _taken(self, code: str) -> List[str]:
        """The freedoms that a habit takes. gpq check is right where a suspicion is not, but for what shows later
        than in its steps."""
        freedoms = HABITS[code].freedoms
        refuted = self._same if code in self._suspected and code not in wire.SHOWS_LATER else ()
        return [freedom for freedom in freedoms if freedom not in refuted]

    def _say(self, code: str) -> None:
        """A line for the user, and up."""
        detail = self._known.get(code) or "on one of the replicas"
        evidence = SUSPECTED if code in self._suspected else OBSERVED
        self._tell(self.habit(code, detail, evidence)._replace(freedoms=self._taken(code)))

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

    def _read(self) -> Tuple[Dict[str, str], Set[str]]:
        """(habits with their details, those of them that were only suspected)."""
        if self._path is None:
            return {}, set()
        try:
            content: Any = wire.read_json(self._path) or {}
        except records.Damaged as damage:
            records.set_aside(damage.path)
            return {}, set()
        except OSError:
            return {}, set()
        habits, suspected = content.get("habits"), content.get("suspected")
        if not isinstance(habits, dict):
            return {}, set()
        details = {str(code): str(detail)[:200] for code, detail in list(habits.items())[:100]}
        return details, set(map(str, suspected[:100])) if isinstance(suspected, list) else set()

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            wire.write_json(self._path, {"habits": self._known, "suspected": sorted(self._suspected)})
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

"""The freedoms that this job's loop leaves to gpq. Habits that were seen are saved next to the
checkpoints and reported once.

All replicas lose a freedom at the same step, because each one's batch follows from it. Notices no
habit itself.
"""

import contextlib
import json
import os
from typing import Callable, Collection, Dict, Mapping, Optional, Set

from gpq_agent import wire
from gpq_agent.train.checkpoints.store import read_record
from gpq_agent.train.data.batches import Configuration, Limits, ceil_div, spread
from gpq_agent.train.habits.table import (
    ACCEPTABLE,
    ACCUMULATE,
    HABITS,
    RESIZE,
    RETUNE,
    SPLIT,
    SUSPECTED,
    Habit,
    describe,
)
from gpq_agent.train.process.agreement import Agreement

PROVEN = "proven"  # the code of a habit that gpq check found, and its evidence
CURE = "fix the loop (gpq check --last shows where it differs), check it again and resubmit it"
RECORD = "habits.json"
CODES = sorted(HABITS)
SAID = {
    ACCUMULATE: "cut a step into micro-batches",
    SPLIT: "split a step to measure the noise scale",
    RESIZE: "change the number of GPUs",
    RETUNE: "change the batch size",
}


class Freedoms:
    """Calls `tell` with a habit, on rank 0 or on a replica that ends because of it.

    folder: of checkpoints on this server.
    accepted: suspicions that the user has overruled.
    """

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
        self._agreed: Dict[str, str] = {}  # habit: its detail
        self.waiting: Dict[str, str] = {}  # seen on this replica, not agreed on yet
        self._accepted = accepted
        self._proof: Optional[wire.Proof] = None
        self.lost: Set[str] = set()

    def recall(self, proof: Optional[wire.Proof] = None, *, is_cleared: bool = False) -> None:
        """Recall what gpq check found, and what earlier attempts saw on any server. A replica that
        ended because of a habit saved it on its own server. `is_cleared`: the check refuted every
        suspicion. Collective."""
        if is_cleared:
            self._accepted = ACCEPTABLE
        first = self._proof is None
        content = self._agreement.broadcast(proof and list(proof))  # rank 0's
        self._proof = proof = wire.Proof(*content) if content else None
        if proof is not None:
            self.lost.update(proof.lost)
            if proof.lost and first and self._rank == 0:
                message = "gpq check found that it may train differently ({})".format(proof.message)
                self._tell(wire.Habit(PROVEN, list(proof.lost), message, CURE, PROVEN))
        habits = read_record(self._path).get("habits") if self._path is not None else None
        if isinstance(habits, dict):
            for code, detail in habits.items():
                if code in HABITS:
                    self.record(Habit(code, str(detail)[:200]))
        self.agree()

    def record(self, habit: Habit) -> None:
        """This replica's loop has this habit, or seems to have it. It counts once all agree, unless
        it is accepted."""
        if habit.code not in self._agreed and habit.code not in self._accepted:
            self.waiting.setdefault(habit.code, habit.detail)

    def noticed(self, code: str) -> bool:
        """Does the loop have this habit, as far as this replica knows?"""
        return code in self._agreed or code in self.waiting

    def agree(self) -> bool:
        """What any replica has seen, all have. Returns whether this takes freedoms. Collective."""
        marks = self._agreement.all_reduce_max([float(code in self.waiting) for code in CODES])
        noticed_codes = [code for code, mark in zip(CODES, marks) if mark]
        agreed_codes = [code for code in noticed_codes if code not in self._agreed]
        for code in agreed_codes:
            self._agreed[code] = self.waiting.get(code, "")
            self.lost.update(HABITS[code].freedoms)
        self.waiting.clear()
        if agreed_codes and self._rank == 0:
            self._write()
            for code in agreed_codes:
                self._say(code)
        return bool(agreed_codes)

    def record_locally(self, habit: Habit) -> None:
        """This replica is about to end because of this habit, and cannot ask the others. Save it
        for the next attempt."""
        if habit.code not in self._agreed:
            self._agreed[habit.code] = habit.detail
            self.lost.update(HABITS[habit.code].freedoms)
            self._write()
            self._say(habit.code)

    def _say(self, code: str) -> None:
        """Print a line for the user, and report it."""
        detail = self._agreed.get(code) or "on another replica"
        self._tell(describe(Habit(code, detail)))

    def restrict(self, configuration: Configuration, limits: Limits) -> Configuration:
        """The nearest configuration that needs no lost freedom."""
        total = configuration.total
        if RETUNE in self.lost:
            total = limits.base_batch
        if ACCUMULATE not in self.lost:
            if total == configuration.total:
                return configuration
            return spread(limits, configuration.seq, total, configuration.atomic_batch)
        if RETUNE not in self.lost and configuration.accum_steps > 0:
            # What fits at once decides, within the batch size that the rate is for.
            total = max(limits.base_batch, configuration.atomic_batch * limits.replicas)
        share = ceil_div(total, limits.replicas)
        return configuration._replace(atomic_batch=share, accum_steps=0, total=total)

    def _write(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):  # a full disk. The next attempt sees the habit again
                wire.write_json(self._path, {"habits": self._agreed})


def read_proof(environ: Mapping[str, str], notice: Callable[[str], None]) -> Optional[wire.Proof]:
    """The proof that the job was submitted with, or None. Findings against shapes hold whatever
    has changed since."""
    text = environ.get(wire.ENV_PROOF)
    if not text:
        return None
    try:
        return wire.Proof(**json.loads(text))
    except (ValueError, TypeError):
        notice("the verdict of gpq check cannot be read, so it is ignored")
        return None


def line(habit: wire.Habit) -> str:
    """What the user reads: the habit, what gpq will not do, the cure. A habit takes at least one
    freedom."""
    *phrases, last = [SAID[freedom] for freedom in habit.freedoms]
    losses = "{} or {}".format(", ".join(phrases), last) if phrases else last
    names = ", ".join(habit.freedoms)
    words = "{}. gpq will not {} ({}). Cure: {}".format(habit.message, losses, names, habit.cure)
    if habit.evidence == SUSPECTED:
        words += ". If this is wrong and gpq check finds no difference: --accept " + habit.code
    return words

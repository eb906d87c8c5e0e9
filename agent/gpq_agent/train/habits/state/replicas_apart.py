"""Replicas do not train alike."""

from typing import Sequence

from gpq_agent.train.habits.norms import Norms
from gpq_agent.train.habits.observer import Habits, Observer
from gpq_agent.train.habits.table import Habit

MAX_DRIFT = 1e-6  # of the sum of the norms of all weights. A larger gap means different training


class ReplicasApart(Observer):
    """Replicas compare learning rates, and the norms of their weights. Waits for the device."""

    codes = ("replicas-apart",)
    shares = 2

    def share(self) -> Sequence[float]:
        groups = [group for optimizer in self.job.optimizers for group in optimizer.param_groups]
        rates = [float(group["lr"]) for group in groups if group.get("lr") is not None]
        # One number for all rates, which changes if two of them swap places.
        digest = sum(rate * (place + 1) for place, rate in enumerate(rates))
        return [digest, Norms(self.job.parameters()).total]

    def compare(self, rows: Sequence[Sequence[float]]) -> Habits:
        rate, norm = rows[0]
        if any(row[0] != rate for row in rows):
            return [Habit("replicas-apart", "the learning rate")]
        if any(abs(row[1] - norm) > MAX_DRIFT * abs(norm) for row in rows):
            return [Habit("replicas-apart", "what they trained")]
        return ()

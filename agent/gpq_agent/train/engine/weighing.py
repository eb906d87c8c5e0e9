"""Applies `job.weigh`: micro-batches weigh amounts that the script gives, not examples."""

from gpq_agent.train.data.batches import Micro
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.accumulator import Accumulator
from gpq_agent.train.runtime.agreement import Agreement

NOT_IN_ALL = "job.weigh() was called in only some micro-batches of a step"


class Weighing:
    """The weights of the current step. `is_used`: the script weighs this step. `called`: in the
    current micro-batch."""

    def __init__(self, gradients: Accumulator, agreement: Agreement, replicas: int) -> None:
        self.is_used = self.called = False
        self._gradients = gradients
        self._agreement = agreement
        self._replicas = replicas
        self._unit = 1.0  # this replica's gradients so far are multiples of it
        self._amount = 0.0  # of the micro-batches so far

    def check(self) -> None:
        """At the end of a body of a step that it weighs. Raises GpqTrainError."""
        if not self.called:
            raise GpqTrainError(NOT_IN_ALL, "call it in each")

    def weigh(self, micro: Micro, amount: float) -> None:
        """This micro-batch weighs this much. Collective in the last one of a step. Raises
        GpqTrainError."""
        gradients, replicas = self._gradients, self._replicas
        if gradients.passes:
            raise GpqTrainError(
                "job.weigh() was called after backward()", "call it before backward()"
            )
        if micro.place > 0 and not self.is_used:
            raise GpqTrainError(NOT_IN_ALL, "call it in each")
        amount = float(amount) if micro.indices else 0.0
        if not 0.0 <= amount < float("inf"):
            raise GpqTrainError(
                "job.weigh() needs a number that is at least 0, not {}".format(amount)
            )
        if micro.place == 0:
            self.is_used, self._unit, self._amount = True, amount or 1.0, 0.0
        self._amount += amount
        self.called = True
        if not micro.last:
            gradients.weigh(amount / self._unit)
            return
        self._agreement.call = "job.weigh()"
        whole = self._agreement.all_reduce_sum([self._amount])[0]
        if whole <= 0.0:
            raise GpqTrainError(
                "job.weigh() was given 0 in every micro-batch of a step", "leave such batches out"
            )
        gradients.scale(replicas * self._unit / whole)
        gradients.weigh(replicas * amount / whole)

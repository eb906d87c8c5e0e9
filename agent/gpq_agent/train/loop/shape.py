"""The current batch: as gpq ordered it, without what needs a lost freedom."""

from typing import Callable, NamedTuple, Optional, Tuple

from gpq_agent.train.data.batches import Configuration, Limits, ordered_configuration
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.gradients.noise_scale import NoiseScale
from gpq_agent.train.habits.freedoms import Freedoms
from gpq_agent.train.habits.table import ACCUMULATE, SPLIT
from gpq_agent.train.process.agreement import Proposal
from gpq_agent.train.process.channels import Reporter


class BatchSource(NamedTuple):
    """What `job.loader()` made for a loop."""

    limits: Limits
    sampler: GlobalSampler
    noise: NoiseScale


class BatchShape:
    """One per job, the same on every replica. `data`: None in loops without `job.loader()`, which
    have no shape."""

    def __init__(self, freedoms: Freedoms, replicas: int) -> None:
        self.freedoms = freedoms
        self.data: Optional[BatchSource] = None
        self.is_late = False  # freedoms are lost, but the current step continues as it began
        self.seq = 0  # of the current order
        self._replicas = replicas
        self._order: Optional[Configuration] = None  # before freedoms are lost
        self._announced: Optional[Configuration] = None  # the last one reported as in effect

    @property
    def configuration(self) -> Tuple[int, int]:
        """(examples at once on a replica, micro-batches of a step minus one), or (0, 0) without a
        loader."""
        if self.data is None:
            return (0, 0)
        configuration = self.data.sampler.configuration
        return (configuration.atomic_batch, configuration.accum_steps)

    @property
    def may_cut(self) -> bool:
        """May a step consist of several micro-batches?"""
        return ACCUMULATE not in self.freedoms.lost

    def obey(self, agreed: Proposal) -> None:
        if self.data is not None:
            limits, sampler = self.data.limits, self.data.sampler
            if agreed.seq > self.seq:
                self._order = ordered_configuration(
                    limits, agreed.seq, agreed.atomic_batch, agreed.accum_steps
                )
                sampler.configure(self.freedoms.restrict(self._order, limits))
            sampler.sample_every = 0 if self._is_whole() else agreed.sample_every
        self.seq = max(self.seq, agreed.seq)

    def agree(self) -> bool:
        """A habit that any replica noticed takes freedoms from all. Are any lost now?
        Collective."""
        if not self.freedoms.agree():
            return False
        self.reshape()
        return True

    def reshape(self) -> None:
        """Freedoms are lost. The next steps do without them, and are fetched again."""
        self.is_late = False
        if self.data is None:
            return
        limits, sampler = self.data.limits, self.data.sampler
        if self._order is None:
            self._order = sampler.configuration
        sampler.configure(self.freedoms.restrict(self._order, limits))
        if self._is_whole():
            sampler.sample_every = 0
        if not self.may_cut:
            sampler.keep_whole()
        sampler.seek(*sampler.cursor)  # what was issued has the old shape

    def announce(
        self, configuration: Configuration, report: Reporter, factor: Callable[[], float]
    ) -> None:
        """A step of this configuration begins. Report it once it is in effect. `factor`: on the
        learning rate."""
        if configuration.seq <= 0 or configuration == self._announced:
            return
        self._announced = configuration
        content = {
            "atomic_batch": configuration.atomic_batch,
            "accum_steps": configuration.accum_steps,
            "lr_factor": round(factor(), 6),
            "seq": configuration.seq,
        }
        report.send("retuned", content)

    def _is_whole(self) -> bool:
        return SPLIT in self.freedoms.lost and self._replicas == 1

"""Takes gradient statistics from training steps: squared norms of micro-gradients and their mean.
Others decide what gradients consist of, which steps are sampled, and what follows."""

from time import perf_counter
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from gpq_agent.train.gradients.noise_scale import (
    CHUNK,
    NoiseScale,
    NormSums,
    Preconditioner,
    chunks,
    is_adam,
    squares,
    weighed_squares,
)
from gpq_agent.train.internals import foreach_mul_, views_of
from gpq_agent.train.process.timing import StepClock


class SampledStep(NamedTuple):
    """L has tr * mean(1 / b_i), A has tr / n. Equal micro-gradients with these two figures
    represent them by batch and number."""

    micro_batches: int = 1  # of each replica
    batch: float = 1.0
    gradients: float = 1.0
    coordinates: int = 0  # of Adam's, 0 without it


class GradientProbe:
    """Takes squared gradient norms on sampled steps.

    With several replicas a micro-gradient is what a replica has accumulated over its micro-batches
    (K per step, no copies, unbiased), as DDP's buckets show it. With one replica each micro-batch
    is a micro-gradient, and a step of one micro-batch says nothing. Norms are taken before the
    script can clip. Sums stay on the device until `collect`, so no step waits for it or for another
    replica.

    optimizers: gpq measures on their parameters. Several, or one that is not Adam, are not
    preconditioned.
    weights: the sum of the weights of this replica's micro-batches of the step.
    """

    def __init__(
        self, optimizers: Sequence[Any], scale: NoiseScale, replicas: int, group: Any = None
    ) -> None:
        self.weights = 1.0  # of the micro-batches of the current step so far
        self.last_ready: Any = None  # mark of a StepClock, None with one replica
        # Called when the last gradient of a step is ready, before it waits.
        self.arrived: Callable[[], None] = lambda: None
        self.cost = 0.0  # seconds that this thread spent on statistics in the latest sampled step
        self.notice = ""  # why the probe switched itself off
        # gpq reduces the gradients of a model instead of DDP, whose buckets show the norms.
        self.is_blind = False
        self._replicas = replicas
        self._optimizers = list(optimizers)
        self._find_parameters()
        parameters = self._parameters
        device = parameters[0].device if parameters else torch.device("cpu")
        self._clock = StepClock(device)
        self._adam: Optional[Preconditioner] = None
        if len(optimizers) == 1 and is_adam(optimizers[0]):
            self._adam = Preconditioner(optimizers[0], parameters)
        preconditioned = self._adam is not None
        self._sums = NormSums(scale, replicas, group, device, preconditioned=preconditioned)
        self._slots = torch.zeros(0)
        self._bucket_slots: Dict[Tuple[int, int], int] = {}
        # On one replica: the squared norms and weights of the passes of the current step so far.
        self._pass_norms: List[torch.Tensor] = []
        self._pass_weights: List[float] = []
        self._step = SampledStep()
        self.is_sampled = False

    def _find_parameters(self) -> None:
        """Those trained now: some may have been frozen before, or added since."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        items: List[torch.nn.Parameter] = [item for group in groups for item in group["params"]]
        self._parameters = [item for item in items if item.requires_grad]
        self._parameter_set = set(self._parameters)

    def arm(self, *, sampled: bool, micro_batches: int, examples: int, inverse: float) -> None:
        """Called before the first forward pass of an optimizer step of `examples`.

        `micro_batches`: per replica. `inverse`: the mean over micro-gradients of 1 / examples.
        """
        self.weights = 0.0
        self.is_sampled = False
        if not sampled:
            return
        if self.is_blind:
            self.switch_off(
                "DDP cannot reduce a step of this model in micro-batches. Wrap it without "
                "find_unused_parameters and static_graph, and use every parameter in every step"
            )
        self._pass_norms, self._pass_weights = [], []
        self._bucket_slots.clear()
        self._step = SampledStep(micro_batches, 1.0 / inverse, examples * inverse)
        has_several = self._replicas * micro_batches > 1
        self.is_sampled = has_several and not self.notice
        if self._adam is not None:
            self.is_sampled = self.is_sampled and self._adam.ripe()
        if not self.is_sampled:
            return
        start = perf_counter()
        self._find_parameters()
        if self._replicas > 1:
            # Added here, where replicas cannot differ, so that all of them combine the same sums.
            self._sums.open(self._step.batch, self._step.gradients)
        slots = len(self._parameters) + 1
        if self._slots.shape[-1] < slots:
            self._slots = self._sums.zeros(3, slots)
        self._slots.zero_()
        if self._adam is not None:
            self._step = self._step._replace(coordinates=self._adam.prepare())
        self.cost = perf_counter() - start

    def set_scale(self, value: Any) -> None:
        """The loss scale of this step: a number or a tensor. A GradScaler changes its scale in
        place, in the body of the loop, before the norms of the step are divided by it."""
        scale = value.detach().clone() if isinstance(value, torch.Tensor) else value
        self._sums.grad_scale = scale

    def switch_off(self, reason: str) -> None:
        """Measure nothing more, and say why."""
        self.notice = "gpq cannot measure gradient noise: {}".format(reason)
        self.is_sampled = False

    def arrive(self) -> None:
        """The last local gradient of a pass is ready."""
        self.last_ready = self._clock.mark()
        self.arrived()

    def collect(self) -> None:
        """Combine the sums of all replicas since the last time for the NoiseScale. Collective if
        replicas > 1."""
        self._sums.collect()

    # -- several replicas -------------------------------------------------------------------------

    def bucket(
        self, owner: Any, buffer: torch.Tensor, bucket: Any, share: float
    ) -> Optional[Callable[[Any], Any]]:
        """The local gradients of a bucket, times `share`, before they are reduced. Returns a
        function to call with the result."""
        if not self.is_sampled:
            return None
        place = (id(owner), int(bucket.index()))
        if place in self._bucket_slots:
            self.switch_off("a step has more than one backward pass")
            return None
        if not self._parameter_set.issuperset(bucket.parameters()):
            if self._parameter_set.isdisjoint(bucket.parameters()):
                return None
            self.switch_off("the optimizer has only some of the parameters of a model")
            return None
        start = perf_counter()
        index = self._bucket_slots[place] = len(self._bucket_slots)
        weights: Any = None
        if self._adam is not None:
            weights = self._adam.fill(buffer, views_of(bucket), bucket.parameters())
            self._slots[2, index] = weights.sum()
        self._slots[0, index] = weighed_squares(buffer, weights) / (share * self.weights) ** 2
        self.cost += perf_counter() - start

        def reduced(result: torch.Tensor) -> torch.Tensor:
            if self.is_sampled:
                self._slots[1, index] = weighed_squares(result, weights)
            if weights is not None and weights.is_cuda:
                # This runs on its own stream.
                weights.record_stream(torch.cuda.current_stream())
            return result

        return reduced

    # -- one replica ------------------------------------------------------------------------------

    def pass_ended(self, weight: float, *, touched: Any) -> None:
        """A pass of a step in micro-batches left its gradients in `p.grad`, not weighed yet. They
        belong to the parameters `touched`."""
        if not self.is_sampled or self._replicas > 1 or self._parameter_set.isdisjoint(touched):
            return
        if len(self._pass_norms) == self._step.micro_batches:
            self.switch_off("a step has more than one backward pass")
            return
        start = perf_counter()
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or not gradient.is_floating_point():
                self.switch_off("some parameters have no gradient, a sparse one or a complex one")
                return
        self._pass_norms.append(self._norm(total=False))
        self._pass_weights.append(weight)
        self.cost += perf_counter() - start

    def scale(self, factor: float) -> None:
        """The weights so far turned out to be `factor` times the announced ones."""
        self._pass_weights = [weight * factor for weight in self._pass_weights]
        self.weights *= factor

    def step_ended(self) -> None:
        """The gradient of the step is in `p.grad`, on one replica."""
        step, weights = self._step, self._pass_weights
        if not self.is_sampled or len(weights) != step.micro_batches or min(weights) <= 0:
            return
        start = perf_counter()
        mean = self._norm(total=True)
        examples = step.batch * step.gradients
        shares = sum(sum(weights) / weight for weight in weights)
        inverse = shares / step.micro_batches / examples
        local = torch.stack(self._pass_norms).mean()
        self._add(local, mean, self._slots[2].sum(), 1.0 / inverse, examples * inverse)
        self.cost += perf_counter() - start
        self.is_sampled = False

    def _norm(self, *, total: bool) -> torch.Tensor:
        result = self._sums.zeros()
        weigh = not total and not self._pass_norms  # the sum of the weights is needed only once
        parameters = [item for item in self._parameters if item.grad is not None]
        for index, chunk in enumerate(chunks(parameters, CHUNK)):
            gradients = [item.grad.detach() for item in chunk if item.grad is not None]
            if self._adam is None:
                result += squares(gradients, self._sums.dtype)
                continue
            weights = self._adam.of(chunk)
            if weigh:
                self._slots[2, index] = torch.stack([item.sum() for item in weights]).sum()
            foreach_mul_(weights, gradients)
            result += squares(weights, self._sums.dtype)
        return result

    def finish(self) -> None:
        """The last micro-batch of a step is over."""
        if self.is_sampled and self._replicas > 1 and self._bucket_slots:
            start = perf_counter()
            local, mean, weights = self._slots.sum(dim=1)
            self._add(local, mean, weights, self._step.batch, self._step.gradients)
            self.cost += perf_counter() - start
        self.is_sampled = False

    def _add(self, local: Any, mean: Any, weights: Any, batch: float, count: float) -> None:
        unit: Any = 1.0
        if self._adam is not None:
            unit = (weights / max(1, self._step.coordinates)) ** 2
        self._sums.add(local, mean, unit, batch, count)

"""What `job.loader()` makes of its arguments: limits of the batch, the order of the data, and the
loader. Refuses arguments that contradict each other."""

import operator
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from gpq_agent.train.data.batches import Limits, starting
from gpq_agent.train.data.fingerprint import Fingerprint
from gpq_agent.train.data.order import OwnOrder
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.noise_scale import NoiseScale
from gpq_agent.train.loop.engine import Engine
from gpq_agent.train.loop.loader import Loader, dataset_size
from gpq_agent.train.loop.runtime import BatchSource

USUAL_BATCH = "pass the usual number of examples per batch, the one that your learning rate is for"


class LoaderArguments(NamedTuple):
    """The arguments of job.loader(), under its names. `options`: of torch's DataLoader."""

    dataset: Any
    batch_size: Optional[int]
    max_batch_size: Optional[int]
    max_local_batch: Optional[int]
    fixed_batch: bool
    shuffle: Optional[bool]
    sampler: Any
    batch_sampler: Any
    drop_last: bool
    generator: Optional[torch.Generator]
    data_may_change: bool
    options: Dict[str, Any]

    @property
    def has_sampler(self) -> bool:
        """Does the script have its own sampler or batch sampler?"""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def shuffles(self) -> bool:
        return self.shuffle is None or bool(self.shuffle)

    def own_order(self, size: int) -> Optional[OwnOrder]:
        """The script's own order of an epoch over `size` examples, or None. Raises
        GpqTrainError."""
        if self.batch_sampler is not None:
            arguments = {
                "sampler": self.sampler is not None,
                "shuffle": self.shuffle,
                "drop_last": self.drop_last,
            }
            rivals = [name for name, is_set in arguments.items() if is_set]
            _refuse_rivals("batch_sampler=", "it decides that itself", rivals)
            return OwnOrder(self.batch_sampler, size, batched=True)
        if self.sampler is None:
            return None
        rivals = ["shuffle"] if self.shuffle else []
        _refuse_rivals("sampler=", "the sampler decides the order", rivals)
        return OwnOrder(self.sampler, size, batched=False)

    def limits(self, replicas: int, own_order: Optional[OwnOrder], seed: int) -> Limits:
        """What the sizes allow `replicas`, with `own_order` of the script or None. `seed`: of that
        order, whose first epoch shows its longest batch. Raises GpqTrainError."""
        for name in ("batch_size", "max_batch_size", "max_local_batch"):
            value = getattr(self, name)
            try:
                is_too_small = value is not None and operator.index(value) < 1
            except TypeError:
                problem = "{} must be a whole number, not {!r}".format(name, value)
                raise GpqTrainError(problem) from None
            if is_too_small:
                raise GpqTrainError("{} must be at least 1, not {}".format(name, value))
        batch, max_batch = self.batch_size, self.max_batch_size
        batches = own_order if own_order is not None and own_order.batched else None
        if batches is not None:
            batch = self._batch_of_sampler(batches.batch_size())
        if batch is None:
            hint = "the total over all replicas that your learning rate is for"
            raise GpqTrainError("job.loader() needs batch_size", hint)
        if max_batch is not None and max_batch < batch:
            raise GpqTrainError(
                "max_batch_size {} is below batch_size {}".format(max_batch, batch),
                "batch_size is the total over all replicas, and max_batch_size is how far it "
                "may grow",
            )
        if batches is None:
            most = batch if self.fixed_batch else max_batch or batch
            return Limits(batch, most, self.max_local_batch or batch, replicas, self.fixed_batch)
        if max_batch is not None and max_batch > batch:
            raise GpqTrainError(
                "max_batch_size cannot be combined with batch_sampler=, whose batches are the "
                "steps",
                "leave it out, or use sampler= and let gpq make the batches",
            )
        # One replica alone would process each of its batches at once.
        local = self.max_local_batch or max(batch, batches.draw(seed, 0).longest())
        return Limits(batch, batch, local, replicas, True)

    def _batch_of_sampler(self, own_size: Optional[int]) -> int:
        """With a batch sampler. `own_size`: the batch size that it states."""
        batch = own_size if own_size is not None else self.batch_size
        if batch is None:
            words = (
                "job.loader() needs batch_size, because the batch sampler has no "
                "batch_size of its own"
            )
            raise GpqTrainError(words, USUAL_BATCH)
        if self.batch_size not in (None, batch):
            words = "batch_size {} differs from the {} of the batch sampler"
            raise GpqTrainError(words.format(self.batch_size, batch), "leave batch_size out")
        return batch


def make_loader(engine: Engine, seed: int, arguments: LoaderArguments) -> Loader:
    """Make the loader that a script asks for, and attach it to the engine. Collective. `seed`: for
    the order if the script gives no generator, the same on every replica. Raises GpqTrainError for
    arguments that make no loader, and after job.prepare()."""
    if engine.checkpointer.is_ready:
        hint = "call job.loader() first"
        raise GpqTrainError("job.prepare() was called before job.loader()", hint)
    environment, agreement = engine.runtime.environment, engine.runtime.agreement
    check, dataset = engine.runtime.recorder, arguments.dataset
    size = dataset_size(dataset)
    if arguments.generator is not None:
        seed = arguments.generator.initial_seed()
    seed = agreement.broadcast(seed)
    if check is not None and not arguments.has_sampler:
        size = check.size(size, arguments.batch_size or 1)
    own_order = arguments.own_order(size)
    limits = _within_memory(engine, arguments.limits(environment.replicas, own_order, seed))
    facts = {
        "data set": size,
        "batch_size": int(limits.base_batch),
        "max_batch_size": int(limits.max_batch),
        "fixed_batch": bool(limits.fixed),
        "shuffle": arguments.shuffles,
        "drop_last": bool(arguments.drop_last),
        "sampler": arguments.has_sampler,
    }
    unlike = agreement.unlike(list(facts.values()))
    if unlike is not None:
        rank, place = unlike
        words = "replica {} calls job.loader() with another {} than replica 0"
        hint = "pass the same on every replica"
        raise GpqTrainError(words.format(rank, list(facts)[place]), hint)
    if check is not None:
        limits = check.limits(limits)
    cursor = GlobalSampler(
        size,
        starting(limits),
        replicas=environment.replicas,
        rank=environment.rank,
        seed=seed,
        shuffle=arguments.shuffles,
        base=limits.base_batch,
        most=limits.max_local,
        drop_last=arguments.drop_last,
        own_order=own_order,
        gather=agreement.gather,
        tell=engine.runtime.notice,
    )
    # It is unknown how often a sampler repeats an example, so the data counts as endless.
    noise = NoiseScale(limits.base_batch, size if own_order is None else 0)
    options = arguments.options
    loader = Loader(dataset, cursor, engine, generator=arguments.generator, **options)
    loader.share_workers(agreement.gather)
    fingerprint = None
    if not arguments.data_may_change and (environment.replicas > 1 or environment.checkpoint_dir):
        fingerprint = Fingerprint(dataset, dataset_size(dataset), options)
    engine.shape.data = BatchSource(limits, cursor, noise, fingerprint)
    return loader


def _within_memory(engine: Engine, limits: Limits) -> Limits:
    """Limit examples at once to what earlier attempts had memory for. Collective. If the noise
    scale did not fit, the engine no longer measures it."""
    memory = engine.failures.memory
    record = memory.bound() if memory is not None else None
    own_bound = float(min(record or limits.max_local, limits.max_local))
    is_refused = memory is not None and not memory.may_sample()
    # Each server may have its own record. The smallest bound applies to all.
    maxima = engine.runtime.agreement.all_reduce_max([-own_bound, float(is_refused)])
    bound, engine.statistics.measures = -int(maxima[0]), not maxima[1]
    if bound >= limits.max_local:
        return limits
    words = "an earlier attempt ran out of memory, so gpq uses at most {} examples at once"
    engine.runtime.notice(words.format(bound))
    return limits._replace(max_local=bound)


def _refuse_rivals(option: str, reason: str, rivals: List[str]) -> None:
    if rivals:
        words = "{} and {} were both given: {}"
        raise GpqTrainError(words.format(option, "=, ".join(rivals) + "=", reason), "leave one out")

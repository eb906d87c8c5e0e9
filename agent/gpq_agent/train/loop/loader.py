"""What `job.loader()` makes of its arguments: limits of the batch, the order of the data, and the
loader that a script iterates over. That is a DataLoader fed by the steps of the training loop."""

import dis
import inspect
import operator
import sys
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
from torch.utils.data import DataLoader, IterableDataset

from gpq_agent.train import internals
from gpq_agent.train.data.batches import Limits, Micro, starting
from gpq_agent.train.data.fingerprint import Fingerprint
from gpq_agent.train.data.order import OwnOrder
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.noise_scale import NoiseScale
from gpq_agent.train.loop.engine import Engine
from gpq_agent.train.loop.runtime import BatchSource
from gpq_agent.train.process.rng import stable_seed
from gpq_agent.train.prove.trial import Trial

# Options of torch's DataLoader, with the same meaning.
OPTIONS = (
    "num_workers", "collate_fn", "pin_memory", "pin_memory_device", "persistent_workers",
    "prefetch_factor", "timeout", "worker_init_fn", "multiprocessing_context", "in_order",
)  # fmt: skip
DEEPEST = 8  # data sets within data sets
USUAL_BATCH = "pass the usual number of examples per batch, the one that your learning rate is for"


class Loader:
    """Iterating yields the micro-batches of the rest of an epoch.

    counted: how many examples of the current micro-batch count. It is the length of the batch, or 0
    if the batch only keeps this replica in step with the others at the end of an epoch, or is part
    of a trial.

    `len(loader)` is `steps_per_epoch`.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: GlobalSampler,
        engine: Engine,
        *,
        generator: Optional[torch.Generator] = None,
        **options: Any,
    ) -> None:
        """`generator` seeds the worker processes, `options` are those of OPTIONS.

        Raises GpqTrainError.
        """
        self.dataset = dataset
        self.sampler = sampler
        self.counted = 0
        self._early_exit = False  # the script left a loop early in which a batch was used up
        self._engine = engine
        self._has_renewed = False
        self._copied: List[Any] = []  # values of the data set that the workers have
        # Not the script's own generator: numbers drawn from that must not depend on the number of
        # stops.
        self._workers = None if generator is None else torch.Generator()
        self._seed = 0 if generator is None else generator.initial_seed()
        unknown_options = sorted(set(options) - set(OPTIONS))
        if unknown_options:
            problem = "job.loader() has no option {}".format(", ".join(unknown_options))
            raise GpqTrainError(problem, "it has " + ", ".join(("generator", *OPTIONS)))
        if options.pop("in_order", True) is False:
            engine.runtime.notice("in_order=False has no effect: gpq needs the batches in order")
        self.trial = Trial(engine, dataset, options)
        recorder = engine.runtime.recorder
        data: Any = dataset
        batches: Any = sampler
        if recorder is not None:
            data, batches = recorder.sampler(dataset, sampler)
        try:
            self._data: Any = DataLoader(
                data, batch_sampler=batches, generator=self._workers, **options
            )
        except (ValueError, TypeError) as error:
            raise GpqTrainError("job.loader(): {}".format(" ".join(str(error).split()))) from None

    def share_workers(self, gather: Callable[[List[float]], List[List[float]]]) -> None:
        """Prefetch equally far on every replica: with the fewest workers of any that has some.
        Collective.

        An order takes effect after what is prefetched, so it must find the same on every replica.
        """
        data = self._data
        rows = gather([data.num_workers, data.prefetch_factor or 0])
        with_workers = [row for row in rows if row[0] > 0]
        if all(row == rows[0] for row in rows):
            return
        data.num_workers, data.prefetch_factor = (int(min(row)) for row in zip(*with_workers))
        self._engine.runtime.notice(
            "num_workers or prefetch_factor differ between the replicas, so each uses {} workers, "
            "which prefetch {} batches each".format(data.num_workers, data.prefetch_factor)
        )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch at the base batch size. Build schedules from it.

        Replicas, accumulation, another batch size or a restart never change it, and schedulers
        advance in the same unit. A loop over the loader runs more often if steps accumulate.
        """
        return self.sampler.steps_per_epoch

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self._after_the_end() if self._engine.runtime.finished else self._batches()

    def _after_the_end(self) -> Iterator[Any]:
        """Training is over. A loop that trains nothing leaves the place in the data as it was."""
        place = self.sampler.cursor
        try:
            yield from self._batches()
        finally:
            if self._engine.runtime.finished:
                self.sampler.seek(*place)

    def _batches(self) -> Iterator[Any]:
        sampler, loop = self.sampler, self._engine.training_loop()
        epoch = loop.begin_loop(by_next=is_called_by_next(sys._getframe(1)))
        if epoch is not None and loop.is_over:
            raise GpqTrainError(
                "the script started a second loop over the loader in one epoch of job.epochs()",
                "loop once per epoch with job.epochs(2 * count), or use a separate DataLoader "
                "if the second loop does not train",
            )
        # A loop without job.epochs() starts the next epoch, even after it left the last one early.
        if epoch is None and (sampler.is_over or self._early_exit):
            sampler.next_pass()
            self._engine.runtime.meter.end_epoch(0.0)
        else:
            sampler.seek(*sampler.cursor)  # forgets what was prefetched
        is_begun = self._early_exit = False
        fetcher = Fetcher(self)
        step = loop.next_step()
        while step is not None:
            for micro in step.micros:
                batch = fetcher.fetch(micro)
                self.counted = len(micro.indices)
                loop.begin_micro(micro)
                left_early = True  # the script breaks out of the loop, or fails in it
                try:
                    yield batch
                    left_early = False
                finally:
                    is_used = loop.end_micro(left_early=left_early)
                    is_begun = is_begun or is_used
                    self._early_exit = left_early and is_begun
                    if is_used and micro.last:
                        loop.end_step(applied=loop.applied)
            if is_begun and not self.trial.is_over and self.trial.is_due():
                self.counted = 0
                yield from self.trial.batches()
            step = loop.next_step()

    def start_workers(self) -> Iterator[Any]:
        """What they fetch, from the next step on. Those that ran before have ended."""
        self._renew_workers()
        if self._workers is not None:
            sampler = self.sampler
            self._workers.manual_seed(stable_seed(self._seed, *sampler.cursor, sampler.rank))
        return iter(self._data)

    def _renew_workers(self) -> None:
        """Persistent workers keep their copy of the data set. If the script has changed it since,
        as with set_epoch(), they start again, as they would after a restart."""
        if not self._data.persistent_workers:
            return
        values: List[Any] = []  # of the attributes of the data set, and of those in it
        dataset = self.dataset
        for _ in range(DEEPEST):
            values += getattr(dataset, "__dict__", {}).values()
            dataset = getattr(dataset, "dataset", None)
        copied, self._copied = self._copied, values
        if copied and list(map(id, copied)) != list(map(id, self._copied)):
            if not self._has_renewed:
                self._has_renewed = True
                self._engine.runtime.notice(
                    "the data set has changed since its persistent workers started, so gpq starts "
                    "new ones for each such epoch"
                )
            internals.end_workers(self._data)


class Fetcher:
    """Fetches the data of micro-batches, for one loop over them or for an adapter."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Any = None
        self._seeks = -1  # of the sampler, when the workers started

    def fetch(self, micro: Micro) -> Any:
        """The data of this micro-batch. Fetch each one, in order."""
        seeks = self._loader.sampler.seeks
        if micro.place == 0 and self._seeks != seeks:
            self._batches = None  # its workers end before others start
            self._batches, self._seeks = self._loader.start_workers(), seeks
        return next(self._batches)


def is_called_by_next(frame: Any) -> bool:
    """Does the script call next() itself?

    A for loop asks for all batches, also through enumerate(), tqdm() and similar.
    """
    while frame is not None:
        code = frame.f_code
        passes_on = code.co_flags & inspect.CO_GENERATOR and "backward" not in code.co_names
        if not passes_on and code.co_name != "__next__":
            # Python 3.11 calls in CALL at first, and in PRECALL once the function is warm.
            return "CALL" in dis.opname[code.co_code[frame.f_lasti]]
        frame = frame.f_back  # it only passes batches on, so look at its caller
    return False


def dataset_size(dataset: Any) -> int:
    """The number of examples.

    Raises GpqTrainError for a stream, because its examples cannot be visited exactly once.
    """
    if isinstance(dataset, IterableDataset):
        raise GpqTrainError(
            "job.loader() needs a data set with a length and an index, but {} is an "
            "IterableDataset".format(type(dataset).__name__),
            "give it a Dataset with __len__ and __getitem__, or keep your own loader and use "
            "job.should_stop()",
        )
    try:
        return len(dataset)
    except TypeError:
        words = "job.loader() needs a data set with a length, but {} has none"
        hint = "give it __len__ and __getitem__"
        raise GpqTrainError(words.format(type(dataset).__name__), hint) from None


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

"""What `job.loader()` makes: limits of the batch, the order of the data, and the loader."""

from typing import NamedTuple, Optional

from gpq_agent.train.data.batches import Limits, starting
from gpq_agent.train.data.fingerprint import Fingerprint
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.engine.engine import Engine
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.job.loader import Loader, dataset_size
from gpq_agent.train.job.loader_options import BatchSizes, Ordering, Source
from gpq_agent.train.noise.noise_scale import NoiseScale


class TrainingData(NamedTuple):
    """The training data of a job, as the engine sees them."""

    limits: Limits
    noise: NoiseScale
    loader: Loader
    fingerprint: Optional[Fingerprint]  # None if data may change, or if there is nothing to compare


def make_training_data(
    engine: Engine,
    seed: int,
    source: Source,
    sizes: BatchSizes,
    ordering: Ordering,
) -> TrainingData:
    """Make the loader that a script asks for, and attach it to the engine. Collective.

    `seed`: for the order if the script gives no generator, the same on every replica. Raises
    GpqTrainError for arguments that make no loader, and after job.prepare().
    """
    if engine.checkpointer.is_ready:
        hint = "call job.loader() first"
        raise GpqTrainError("job.prepare() was called before job.loader()", hint)
    environment, check = engine.runtime.environment, engine.runtime.recorder
    size = dataset_size(source.dataset)
    if ordering.generator is not None:
        seed = ordering.generator.initial_seed()
    seed = engine.runtime.agreement.broadcast(seed)
    if check is not None and not ordering.has_sampler:
        size = check.size(size, sizes.batch_size or 1)
    own_order = ordering.own_order(size)
    limits = _within_memory(engine, sizes.limits(environment.replicas, own_order, seed))
    arguments = {
        "data set": size,
        "batch_size": int(limits.base_batch),
        "max_batch_size": int(limits.max_batch),
        "fixed_batch": bool(limits.fixed),
        "shuffle": ordering.shuffle is None or bool(ordering.shuffle),
        "drop_last": bool(ordering.drop_last),
        "sampler": ordering.has_sampler,
    }
    unlike = engine.runtime.agreement.unlike(list(arguments.values()))
    if unlike is not None:
        rank, place = unlike
        words = "replica {} calls job.loader() with another {} than replica 0"
        hint = "pass the same on every replica"
        raise GpqTrainError(words.format(rank, list(arguments)[place]), hint)
    if check is not None:
        limits = check.limits(limits)
    cursor = GlobalSampler(
        size,
        starting(limits),
        replicas=environment.replicas,
        rank=environment.rank,
        seed=seed,
        shuffle=ordering.shuffle is None or bool(ordering.shuffle),
        base=limits.base_batch,
        most=limits.max_local,
        drop_last=ordering.drop_last,
        own_order=own_order,
        gather=engine.runtime.agreement.gather,
        tell=engine.runtime.notice,
    )
    # It is unknown how often a sampler repeats an example, so the data counts as endless.
    noise = NoiseScale(limits.base_batch, size if own_order is None else 0)
    loader = Loader(
        source.dataset,
        cursor,
        engine,
        generator=ordering.generator,
        **source.options,
    )
    loader.share_workers(engine.runtime.agreement.gather)
    fingerprint = None
    if not source.may_change and (environment.replicas > 1 or environment.checkpoint_dir):
        fingerprint = Fingerprint(source.dataset, dataset_size(source.dataset), source.options)
    engine.attach_data(limits, cursor, noise)
    return TrainingData(limits, noise, loader, fingerprint)


def _within_memory(engine: Engine, limits: Limits) -> Limits:
    """Limit examples at once to what earlier attempts had memory for. Collective.

    If the noise scale did not fit, the engine no longer measures it.
    """
    memory = engine.failures.memory
    record = memory.bound() if memory is not None else None
    # Each server may have its own record. The smallest bound applies to all.
    smallest_bound = float(min(record or limits.max_local, limits.max_local))
    is_refused = memory is not None and not memory.may_sample()
    maxima = engine.runtime.agreement.all_reduce_max([-smallest_bound, float(is_refused)])
    bound, engine.statistics.measures = -int(maxima[0]), not maxima[1]
    if bound >= limits.max_local:
        return limits
    engine.runtime.notice(
        "an earlier attempt ran out of memory, so gpq uses at most {} examples at once".format(
            bound
        ),
    )
    return limits._replace(max_local=bound)

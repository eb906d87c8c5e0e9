"""What an adapter makes of a script's own DataLoader, and of how many GPUs its numbers are for."""

from typing import Any, Dict, Optional

from torch.utils import data

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.job import Job
from gpq_agent.train.loop.loader import OPTIONS

MEANT_FOR = (
    "each step has the batch of {} GPUs in all attempts, the smallest --gpus at the first start. "
    "If the script is meant for another number, submit a new job with gpq.{}(..., gpus=N)"
)


def refusal(what: str, cure: str = "leave it out") -> GpqTrainError:
    """The error for a training with `what`, which would train otherwise on other GPUs."""
    hint = "{}. Or train without gpq's adapter, and gpq keeps the number of GPUs".format(cure)
    return GpqTrainError("gpq cannot resize a training with {}".format(what), hint)


def is_own(item: Any, *packages: str) -> bool:
    """Is this class or function of the script, and of none of these packages?"""
    return str(item.__module__).partition(".")[0] not in packages


def intended_gpus(job: Job, gpus: Optional[int], function: str) -> int:
    """How many GPUs the batch and the schedule of a script are meant for, in all attempts: the
    `gpus` that it gave to this `function` of gpq, or the smallest number that the job asked for.
    Without gpq, the replicas of this run. Raises GpqTrainError."""
    if gpus is not None and (not isinstance(gpus, int) or gpus < 1):
        raise GpqTrainError("gpus={!r} is below 1 or no integer".format(gpus), "use 1 or more")
    runtime = job._engine.runtime
    least = runtime.environment.least_gpus
    own_number = gpus or (1 if runtime.recorder else least or job.replicas)
    number: int = job.state("gpq.gpus", 0)
    if not number and gpus is None and job._engine.checkpointer.parts.is_awaited:
        problem = (
            "the checkpoint is of an earlier gpq, and does not say how many GPUs a step is for"
        )
        hint = "write gpq.{}(..., gpus=N) with those of the first attempt, or submit a new job"
        raise GpqTrainError(problem, hint.format(function))
    number = job.state("gpq.gpus", number or own_number)
    if gpus is None and least:
        runtime.notice(MEANT_FOR.format(number, function))
    elif gpus not in (None, number):
        problem = "gpus={}, but the job began with a step of {} GPUs".format(gpus, number)
        raise GpqTrainError(problem, "use that number, or submit a new job")
    return number


def loader_arguments(dataloader: Any, batches: int, most: Optional[int] = None) -> Dict[str, Any]:
    """Those of job.loader() for steps of so many `batches` of a DataLoader. `most`: the largest
    step in examples, None for steps that never change. Raises GpqTrainError."""
    dataset, sampler, per_batch = dataloader.dataset, dataloader.sampler, dataloader.batch_size
    if isinstance(dataset, data.IterableDataset):
        raise refusal("an IterableDataset", "use a Dataset with __len__ and __getitem__")
    if isinstance(sampler, data.DistributedSampler):
        raise refusal("a DistributedSampler", "use the sampler that a single GPU would use")
    arguments = {name: getattr(dataloader, name) for name in OPTIONS if hasattr(dataloader, name)}
    arguments.update(generator=dataloader.generator, max_batch_size=most)
    if type(dataloader.batch_sampler) is not data.BatchSampler:
        if batches > 1 or dataloader.batch_sampler is None:
            cure = "use batch_size and a sampler"
            raise refusal("a batch_sampler for several GPUs, or accumulation of its batches", cure)
        return {**arguments, "batch_sampler": dataloader.batch_sampler}
    arguments.update(batch_size=batches * per_batch, max_local_batch=per_batch)
    arguments.update(drop_last=dataloader.drop_last, fixed_batch=most is None)
    if type(sampler) is data.SequentialSampler:
        return {**arguments, "shuffle": False}
    is_usual = type(sampler) is data.RandomSampler and not sampler.replacement
    if is_usual and sampler.num_samples == len(dataset):
        return arguments
    return {**arguments, "sampler": sampler}

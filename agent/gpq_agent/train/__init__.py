"""Elastic training for plain PyTorch: gpq may move, resize and re-batch the job while it runs.

    import gpq_agent.train as gpq

    job = gpq.init()                               # instead of init_process_group and set_device
    loader = job.loader(dataset, batch_size=256, max_batch_size=4096, max_local_batch=64)
    model = job.wrap(Net())                        # or your own DistributedDataParallel(...)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90 * len(loader))
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    for epoch in job.epochs(90):
        for x, y in loader:
            loss = loss_fn(model(x.to(job.device)), y.to(job.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        job.log(loss=loss)

The same script runs alone (`python train.py`), under torchrun, and under gpq
(`gpq submit train.py`). docs/training.md explains all of it, and docs/loops.md which loops work.

    * `batch_size` is the total over all replicas that your learning rate is for. gpq may raise it
      up to `max_batch_size`. It also picks the replicas, the micro-batch and the accumulation. With
      `fixed_batch=True` the total never changes.
    * The loop body runs once per micro-batch. When a step accumulates several, `optimizer.step()`,
      `scheduler.step()` and a GradScaler act only in the last one. There `p.grad` is the gradient
      of the whole step, averaged over replicas, as soon as `backward()` returns. Clip, unscale,
      edit or log it as usual. In earlier micro-batches it is zero, and changes to it have no
      effect.
    * If a loop does something that gpq cannot do right with micro-batches, on other replicas or at
      another batch size, gpq stops doing just that and prints one line.
    * `len(loader)` is the number of optimizer steps in an epoch at `batch_size`. It never changes,
      so build schedules from it. For a mean loss, add up `loss.item() * loader.counted` and divide
      by the sum of `loader.counted`. It is the length of the micro-batch, or 0 for a replica that
      gets no example and repeats others.
    * `job.wrap(model, batch_norm=32)` keeps the statistics of batch norm over groups of 32
      examples, so that replicas and micro-batches do not change them.
    * No replica gets a single example of a larger step, because batch norm refuses one. The
      exceptions are `max_local_batch=1`, and 2 with an odd number of examples.
    * Each attempt is seeded by (seed, step, rank). What you draw between `gpq.init()` and
      `job.prepare()` is the same on all replicas and in all attempts.
    * A stop takes effect between two steps: gpq writes a checkpoint and raises `StopTraining`, a
      SystemExit, where the loop asks for its next batch. The next attempt resumes in the middle of
      the epoch. If you leave the epochs early, call `job.done()`.

A loop that draws its own batches uses `job.steps` and `job.share`, and any other loop saves by
itself: `job.resume_path`, `job.should_stop()`, `job.save_path` and `job.exit_preempted(step)`.
Their batch size is fixed. docs/training.md has an example of each.
"""

import os
import sys
from typing import Any, Dict, Optional, Type

from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.init import init
from gpq_agent.train.loop.job import Job
from gpq_agent.train.loop.side_effects import hear_early
from gpq_agent.train.process.process_group import meet_in_files
from gpq_agent.train.process.rng import seed_unseeded
from gpq_agent.train.process.shutdown import StopTraining
from gpq_agent.train.prove.redirect import guard

guard(os.environ, sys.addaudithook)  # before the script opens a file
hear_early()  # as well
seed_unseeded()  # before the script draws
meet_in_files()  # before the script opens a process group

__all__ = ["GpqTrainError", "Job", "StopTraining", "accelerate", "elastic", "init", "lightning"]


def accelerate(
    accelerator: Any,
    max_batch_size: Optional[int] = None,
    gpus: Optional[int] = None,
    batch_norm: Optional[int] = None,
) -> Any:
    """Make an Accelerator of Hugging Face Accelerate elastic in place, and return it.

        accelerator = gpq.accelerate(Accelerator(gradient_accumulation_steps=2))
        model, optimizer, loader, scheduler = accelerator.prepare(...)
        for epoch in accelerator.epochs(3):
            for batch in loader:
                with accelerator.accumulate(model):
                    ...

    The first loader that `prepare` gets has the training data. The batch of a step is that of a
    process, times accumulation, times `gpus`. `accelerator.epochs(n)` resumes where the job was
    stopped. `accelerator.job` is the Job, as `init` returns it.

    gpus: the number that the script is meant for. Default: the smallest of `gpq submit --gpus`.
    max_batch_size: the largest total batch that gpq may use. By default the batch never changes.
    batch_norm: as in `Job.wrap`, for all models that `prepare` gets.

    With a version of Accelerate that was not tested it changes nothing, and says so. The script
    then runs as without gpq. Raises GpqTrainError for settings under which gpq cannot resize a job.
    """
    from gpq_agent.train.frameworks.versions import is_tested

    if not is_tested("accelerate"):
        from gpq_agent.train.frameworks.untested import FixedJob

        accelerator.epochs, accelerator.job = range, FixedJob(accelerator)
        return accelerator
    from gpq_agent.train.frameworks.accelerate import adapt

    return adapt(accelerator, gpus, max_batch_size=max_batch_size, batch_norm=batch_norm)


def elastic(
    trainer: Type[Any],
    gpus: Optional[int] = None,
    *,
    max_batch_size: Optional[int] = None,
    batch_norm: Optional[int] = None,
) -> Type[Any]:
    """Make a Trainer of Hugging Face resizable: transformers.Trainer, a class of yours that is
    derived from it, or trl's SFTTrainer and DPOTrainer. Call it at the start of the script, before
    you make TrainingArguments.

        Trainer = gpq.elastic(transformers.Trainer)
        args = transformers.TrainingArguments("out", per_device_train_batch_size=8)
        Trainer(model, args, train_dataset=dataset).train()

    A step has per_device_train_batch_size x gradient_accumulation_steps x `gpus` examples on any
    number of GPUs.

    gpus: the number that the script is meant for. Default: the smallest of `gpq submit --gpus`.
    max_batch_size: the largest total batch that gpq may use. By default the batch never changes.
    batch_norm: batch norm uses the statistics of groups of so many examples, as in `Job.wrap`.

    Returns the same class without gpq, and also, with a line on stderr, if gpq cannot resize it.
    Its methods raise GpqTrainError for settings that would train something else on another number
    of GPUs.
    """
    from gpq_agent.train.frameworks import huggingface

    options = {"gpus": gpus, "max_batch_size": max_batch_size, "batch_norm": batch_norm}
    return huggingface.elastic(trainer, **options)


def lightning(
    *,
    gpus: Optional[int] = None,
    max_batch_size: Optional[int] = None,
    batch_norm: Optional[int] = None,
    seed: Optional[int] = None,
    **ddp: Any,
) -> Dict[str, Any]:
    """Arguments of Lightning's Trainer with which gpq may resize the job while it trains.

        trainer = pl.Trainer(**gpq.lightning(gpus=4), max_epochs=3, gradient_clip_val=1.0)
        trainer.fit(module, train_dataloader)

    They say where to train, so leave out accelerator, devices, num_nodes and strategy.

    gpus: a step has the batch size of the dataloader, times accumulate_grad_batches, times this.
    More or fewer GPUs only change the accumulation. Default: the smallest number of
    `gpq submit --gpus`, which is 1 if that is left out.
    max_batch_size: the largest total batch that gpq may use. By default the batch never changes.
    batch_norm: as in `Job.wrap`, for the layers of the module.
    seed: as in `init`, which this calls. ddp: options of DistributedDataParallel, such as
    find_unused_parameters.

    With a version of Lightning that gpq was not tested with, there are no arguments, and a line
    says so. Raises GpqTrainError if this process already has a job.
    """
    from gpq_agent.train.frameworks.lightning import trainer_arguments

    options = {"gpus": gpus, "max_batch_size": max_batch_size, "batch_norm": batch_norm}
    return trainer_arguments(seed, ddp, **options)

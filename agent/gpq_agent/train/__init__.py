"""Elastic training for plain PyTorch: a job that gpq may move, resize and re-batch while it runs.

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
(`gpq submit train.py`).

What changes and what does not
    * `batch_size` is the total batch over all replicas for which your learning rate is right. gpq
      may raise it, up to `max_batch_size`, and picks replicas, micro-batch and accumulation. `rule`
      says how the learning rate follows: auto, adascale, adam-sqrt, linear, sqrt, legw or none.
      `fixed_batch=True` keeps the total batch as it is. Then the loss curve is the same on any
      number of replicas, up to rounding (without dropout or batch norm).
    * The loop body runs once per micro-batch. Where a step accumulates several, `optimizer.step()`,
      `scheduler.step()` and a GradScaler act in the last only. There `p.grad` holds the gradient of
      the whole step, averaged over replicas, as soon as `backward()` returns: clip, unscale, edit
      or log it as ever. In the micro-batches before, it is zero, and nothing that is done to it has
      an effect. Parameters are those of the optimizers, whatever module they are in.
    * Models, optimizers and schedulers may be lists: `job.prepare([maker, judge], [first, second],
      schedules)`. `measure=` names the optimizer on whose parameters the gradient noise is
      measured, by default all.
    * For losses that are means per token, `job.weigh(tokens)` before `backward()`, in every
      micro-batch, makes the step a mean over all its tokens.
    * `scale_betas`: at k times the base batch Adam's betas become beta^k for that step, so that the
      half-life of its averages, in examples, stays. False keeps them.
    * What a loop does that is not safe in pieces, on other replicas or with another batch takes
      just that away, says so in one line, and keeps it for this job: see "Your loop under gpq" in
      README.md.
    * To measure the gradient noise, a single replica splits one step in a hundred into two
      micro-batches (early on, more). The step has the same examples and gradient.
      `fixed_batch=True` measures nothing.
    * A `scheduler.step()` in the loop advances by the gain of the step, in steps at the base batch.
      One after the loop counts once. The scheduler sees the base learning rate only.
    * An epoch is one pass: every example once, in an order that depends on the seed and the epoch,
      not on replicas. No replica gets a lone example of a step that has more (batch norm refuses
      one), unless `max_local_batch` is 1, or 2 and the number odd. A replica that gets none runs
      repeated ones with weight zero. `loader.counted` is then 0, else the length of the
      micro-batch.
    * `len(loader)` (or `loader.steps_per_epoch`) is the optimizer steps of an epoch at
      `batch_size`, always the same: build schedules from it. The body may run more often, so take a
      mean of losses by examples: add up `loss.item() * loader.counted`, and divide by the sum of
      `loader.counted`.
    * Each attempt is seeded by (seed, step, rank): the same history of attempts gives the same run.
      What is drawn between `gpq.init()` and `job.prepare()` comes out alike on all replicas and in
      all attempts. A few examples are compared before the first step, and other ones stop the job
      (`data_may_change=True` in job.loader() compares nothing).

Data
    job.loader(dataset, 256, sampler=WeightedRandomSampler(weights, 50_000))
    job.loader(dataset, batch_sampler=BucketBatchSampler(lengths, 64), collate_fn=pad)
    * What a sampler yields in an epoch is the epoch, on any replicas and through restarts. gpq
      lists it once an epoch, after `set_epoch(epoch)` if it has that, with torch's, numpy's and
      Python's generators and those that it holds seeded by (seed, epoch). Give the sampler that a
      single process would use. A DistributedSampler is refused.
    * The batches of a `batch_sampler` are the steps, split over replicas, and the batch then never
      changes. `batch_size` is its own, or given for one that does not say. `max_local_batch` is by
      default its largest batch.
    * `drop_last=True` leaves out what is less than `batch_size` at the end of an epoch. The initial
      seed of `generator=` is that of the order and the worker processes, instead of
      `gpq.init(seed=...)`. Also, as for torch's DataLoader: num_workers, collate_fn, pin_memory,
      persistent_workers, prefetch_factor, timeout, worker_init_fn, multiprocessing_context. Batches
      come in order (`in_order=False` is not obeyed).
    * A look at a batch, `next(iter(loader))` on every replica, takes nothing from the training. One
      loop over the loader at a time: keep no such iterator.

Stopping and resuming
    A stop order or SIGTERM takes effect between two steps: checkpoint, exit. The next attempt goes
    on in the middle of the epoch. Checkpoints hold models, optimizers, schedulers, scaler, progress
    and what `job.state(thing)` registered. `best = job.state("best", 0.0)` gets a plain value back,
    and `job.state("best", best)` keeps it. They are also written every minute or more, and at the
    end. Nothing stops inside `with job.eval():`.
    On the way out `StopTraining`, a SystemExit, is raised where the loop asks for its next batch.
    Open files are written out, and `finally` blocks, context managers and atexit handlers run, for
    as long as the job's --grace. The checkpoint is complete before. A loop in another thread than
    the main one gets its files written out and no more.
    The end of `job.epochs` is the end of the job. One that was asked to stop in that very moment
    and ends with 0 is queued again where nothing says so: leave the epochs early with `job.done()`.

Loops that draw their own batches, fixed batch
    model, optimizer, _ = job.prepare(model, optimizer)
    for step in job.steps(100_000):                # from the step of the checkpoint
        x, y = job.share(*draw_batch())            # drawn alike on all replicas: own rows of it
        ...                                        # accumulate as you like, in equal micro-batches

Any other loop, fixed batch, saving by yourself
    job = gpq.init()
    if job.resume_path:
        load(job.resume_path)
    for step in range(job.start_step, steps):
        ...
        if job.should_stop():                      # on every replica
            if job.rank == 0:
                save(job.save_path)                # a folder of its own
            job.exit_preempted(step + 1)           # where to go on; does not return
    job.done()                                     # once all is written: exit 0 ends the job
"""

import os
import sys

from gpq_agent.train.job.init import init
from gpq_agent.train.job.job import Job
from gpq_agent.train.runtime.shutdown import StopTraining

from .errors import GpqTrainError
from .prove.redirect import guard

guard(os.environ, sys.addaudithook)  # before the script opens a file

__all__ = ["GpqTrainError", "Job", "StopTraining", "init"]

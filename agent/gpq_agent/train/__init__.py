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
(`gpq submit train.py`).

Batch size and learning rate
    * `batch_size` is the total over all replicas that your learning rate is for. gpq may raise it
      up to `max_batch_size`. It also picks the replicas, the micro-batch and the accumulation.
    * `rule` says how the learning rate follows: auto, adascale, adam-sqrt, linear, sqrt, legw or
      none.
    * With `fixed_batch=True` the total never changes. The loss curve is then the same on any number
      of replicas, up to rounding (without dropout and batch norm).
    * `scale_betas`: at k times the base batch size, Adam uses beta^k for that step. Its averages
      keep their half-life in examples. False keeps the betas.
    * `scheduler.step()` in the loop advances by the gain of the step, in steps at the base batch
      size. After the loop it counts once. The scheduler sees only the base learning rate.
    * To measure gradient noise, a single replica splits one step in a hundred into two
      micro-batches, and more at the start. The step keeps its examples and its gradient.
      `fixed_batch=True` measures nothing. `measure=` names one optimizer of several: gpq then
      measures noise on its parameters only.

The loop
    * The loop body runs once per micro-batch. When a step accumulates several, `optimizer.step()`,
      `scheduler.step()` and a GradScaler act only in the last one. There `p.grad` is the gradient
      of the whole step, averaged over replicas, as soon as `backward()` returns. Clip, unscale,
      edit or log it as usual. In earlier micro-batches it is zero, and changes to it have no
      effect. This covers all parameters of the optimizers, in any module.
    * Models, optimizers and schedulers may be lists: `job.prepare([maker, judge], [first, second],
      schedules)`.
    * If the loss is a mean per token, call `job.weigh(tokens)` before `backward()` in every
      micro-batch. The step is then a mean over all its tokens.
    * If a loop does something that gpq cannot do right with micro-batches, on other replicas or at
      another batch size, gpq stops doing just that and prints one line. It remembers this for the
      job. See docs/loops.md.
    * `len(loader)` (or `loader.steps_per_epoch`) is the number of optimizer steps in an epoch at
      `batch_size`. It never changes, so build schedules from it. The body may run more often. For a
      mean loss, add up `loss.item() * loader.counted` and divide by the sum of `loader.counted`.

Epochs and randomness
    * An epoch uses every example once. The order depends on the seed and the epoch, not on the
      replicas.
    * No replica gets a single example of a larger step, because batch norm refuses one. The
      exceptions are `max_local_batch=1`, and 2 with an odd number of examples. A replica that gets
      no example runs repeated ones with weight zero, and `loader.counted` is 0. Otherwise
      `loader.counted` is the length of the micro-batch.
    * Each attempt is seeded by (seed, step, rank), so the same history of attempts gives the same
      run. What you draw between `gpq.init()` and `job.prepare()` is the same on all replicas and in
      all attempts.
    * gpq compares a few examples before the first step, and stops the job if they differ. Use
      `job.loader(..., data_may_change=True)` to compare nothing.

Data
    job.loader(dataset, 256, sampler=WeightedRandomSampler(weights, 50_000))
    job.loader(dataset, batch_sampler=BucketBatchSampler(lengths, 64), collate_fn=pad)
    * What a sampler yields is the epoch, on any replicas and through restarts. gpq lists it once
      per epoch, after `set_epoch(epoch)` if it has that. The generators of torch, numpy and Python,
      and those that the sampler holds, are seeded by (seed, epoch). Pass the sampler that a single
      process would use. gpq refuses a DistributedSampler.
    * The batches of a `batch_sampler` are the steps. gpq splits them over the replicas and never
      changes their size. `batch_size` comes from it, or from you if it has none. `max_local_batch`
      defaults to its largest batch.
    * `drop_last=True` drops an incomplete batch at the end of an epoch. The initial seed of
      `generator=` seeds the order and the worker processes, instead of `gpq.init(seed=...)`.
    * These options work as in torch's DataLoader: num_workers, collate_fn, pin_memory,
      persistent_workers, prefetch_factor, timeout, worker_init_fn, multiprocessing_context. Batches
      always come in order (`in_order=False` has no effect).
    * `next(iter(loader))` on every replica looks at a batch without using it up. Do not keep that
      iterator, run one loop over the loader at a time, and step only in its body.

Stopping and resuming
    * A stop order or SIGTERM takes effect between two steps: gpq writes a checkpoint and exits. The
      next attempt resumes in the middle of the epoch.
    * Checkpoints hold models, optimizers, schedulers, scaler, progress and everything that
      `job.state(thing)` registered. `best = job.state("best", 0.0)` restores a plain value, and
      `job.state("best", best)` keeps a new one. gpq also writes them at most once a minute and at
      the end. It never stops inside `with job.eval():`.
    * On the way out gpq raises `StopTraining`, a SystemExit, where the loop asks for its next
      batch. The checkpoint is already complete. Open files are flushed, and `finally` blocks,
      context managers and atexit handlers run, within the job's --grace. If the loop runs in
      another thread than the main one, only files are flushed.
    * The end of `job.epochs` is the end of the job. If you leave the epochs early, call
      `job.done()`. Otherwise gpq queues the job again if a stop order comes just before it exits
      with 0.

Loops that draw their own batches (fixed batch size)
    model, optimizer, _ = job.prepare(model, optimizer)
    for step in job.steps(100_000):                # from the step of the checkpoint
        x, y = job.share(*draw_batch())            # all replicas draw the same, each gets its rows
        ...                                        # accumulate as you like, in equal micro-batches

Any other loop, which saves by itself (fixed batch size)
    job = gpq.init()
    if job.resume_path:
        load(job.resume_path)
    for step in range(job.start_step, steps):
        ...
        if job.should_stop():                      # on every replica
            if job.rank == 0:
                save(job.save_path)                # a folder of its own
            job.exit_preempted(step + 1)           # the step to resume at. Does not return
    job.done()                                     # everything is saved: exit 0 ends the job
"""

import os
import sys

from gpq_agent.train.attempt.side_effects import hear_early
from gpq_agent.train.job.init import init
from gpq_agent.train.job.job import Job
from gpq_agent.train.runtime.shutdown import StopTraining

from .errors import GpqTrainError
from .prove.redirect import guard
from .runtime.process_group import meet_in_files
from .runtime.rng import seed_unseeded

guard(os.environ, sys.addaudithook)  # before the script opens a file
hear_early()  # as well
seed_unseeded()  # before the script draws
meet_in_files()  # before the script opens a process group

__all__ = ["GpqTrainError", "Job", "StopTraining", "init"]

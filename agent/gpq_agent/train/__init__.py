"""Elastic training for plain PyTorch: a job that gpq may move, resize and re-batch while it runs.

    import gpq_agent.train as gpq

    job = gpq.init()                               # instead of init_process_group and set_device
    loader = job.loader(dataset, batch_size=256, max_batch_size=4096, max_local_batch=64)
    model = job.wrap(Net())                        # or your own DistributedDataParallel(...)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    for epoch in job.epochs(90):
        for x, y in loader:
            loss = loss_fn(model(x.to(job.device)), y.to(job.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        job.log(loss=loss)

The same script runs alone (`python train.py`), under torchrun, and under gpq (`gpq submit train.py`).

What changes and what does not
    * `batch_size` is the total batch over all replicas for which your learning rate is right. gpq may raise it, up to
      `max_batch_size`, and picks replicas, micro-batch and accumulation; `rule` says how the learning rate follows:
      auto, adascale, adam-sqrt, linear, sqrt, legw or none. `fixed_batch=True` keeps the total batch as it is: then the
      loss curve is the same on any number of replicas, up to rounding (without dropout or batch norm).
    * The loop body runs once per micro-batch. Where a step accumulates several, `optimizer.step()`, `zero_grad()` and
      `scheduler.step()` act on the last only, on the mean gradient of all of it. Clip with `job.clip_grad_norm_(1.0)`.
    * To measure the gradient noise, a single replica splits one step in twenty into two micro-batches (early on, more);
      the gradient of the step is the same. `fixed_batch=True` measures nothing.
    * A `scheduler.step()` in the loop advances by the gain of the step, in steps at the base batch; one after the loop
      counts once. The scheduler sees the base learning rate only.
    * An epoch is one pass: every example once, in an order that depends on the seed and the epoch, not on replicas. A
      replica for which an epoch's last step has no example runs a repeated one with weight zero: `loader.counted` is 0.
    * Each attempt is seeded by (seed, step, rank): the same history of attempts gives the same run.

Stopping and resuming
    A stop order or SIGTERM takes effect between two steps: checkpoint, exit. The next attempt goes on in the middle of
    the epoch. Checkpoints hold model, optimizer, scheduler, scaler, progress and what `job.state(thing)` registered;
    they are also written every minute or more, and at the end. Nothing stops inside `with job.eval():`.
    On the way out `StopTraining`, a SystemExit, is raised where the loop asks for its next batch: open files are written
    out, `finally` blocks, context managers and atexit handlers run, for as long as the job's --grace; the checkpoint is
    complete before. A loop in another thread than the main one gets its files written out and no more.
    The end of `job.epochs` is the end of the job. One that was asked to stop in that very moment and ends with 0 is
    queued again where nothing says so: leave the epochs early with `job.done()`.

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
    job.done()                                     # once all is written: an exit with 0 is the end of the job
"""

from .errors import GpqTrainError
from .leaving import StopTraining
from .session import Job, init

__all__ = ["GpqTrainError", "Job", "StopTraining", "init"]

"""What happens in a script's loop: over epochs, over steps with its own batches, or any other."""

import os
import time
from contextlib import contextmanager
from typing import Any, Iterator, Tuple

import torch

from gpq_agent.train.checkpoints.script_checkpoints import ScriptCheckpoints, files_below
from gpq_agent.train.data.sampler import GlobalSampler
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.progress import ROUNDING
from gpq_agent.train.loop.engine import Engine
from gpq_agent.train.process.rng import generator_states, reseed, set_generators
from gpq_agent.train.process.shutdown import raise_if_stopping


def epoch_loop(
    engine: Engine, sampler: GlobalSampler, count: int, *, passes: bool
) -> Iterator[int]:
    """Epochs up to `count - 1`, from the place of the meter. Collective at each end. `passes`: an
    epoch ends with the pass over the data, and otherwise when its base steps are done."""
    meter, boundaries = engine.runtime.meter, engine.boundaries
    meter.epochs, meter.passes = count, passes
    while meter.epoch < count:
        if engine.runtime.finished:
            engine.runtime.reopen()
        engine.runtime.epoch = meter.epoch
        if engine.loop is not None:
            engine.loop.gate.resumes_epoch = meter.samples > 0
        try:
            yield meter.epoch
        except GeneratorExit:
            boundaries.ending.terminator.disarm()
            meter.passes = True  # of what follows the training
            raise
        boundaries.close_epoch()
        excess = meter.position - sampler.base_steps
        if passes or excess < -ROUNDING:  # or the script left the epoch early
            boundaries.close_pass(sampler.size)
            excess = 0.0
        elif sampler.is_over or meter.epoch == count - 1:
            boundaries.close_pass(sampler.cursor.consumed)
        meter.end_epoch(excess)
        if meter.epoch < count and not engine.runtime.finished:
            boundaries.run()
    boundaries.finish()
    meter.passes = True


def step_loop(engine: Engine, count: int, seed: int) -> Iterator[int]:
    """Steps up to `count - 1`, from the position of the engine. Collective at each boundary.
    `seed`: seeds every generator of random numbers, together with the step, the same on all
    replicas. Raises GpqTrainError before job.prepare()."""
    if not engine.checkpointer.is_ready:
        hint = "call job.prepare() first"
        raise GpqTrainError("job.steps() was called before job.prepare()", hint)
    engine.statistics.total_steps = count
    engine.statistics.declare()
    while engine.runtime.meter.steps < count:
        engine.boundaries.run()
        reseed(seed, engine.runtime.meter.steps, 0)
        if engine.own_batches is not None:
            engine.own_batches.begin_step()
        try:
            yield engine.runtime.meter.steps
        except GeneratorExit:
            engine.boundaries.ending.terminator.disarm()
            raise
        engine.runtime.meter.stepped(1.0)
        engine.statistics.say_ready()
    engine.boundaries.finish()


def rows_of_replica(engine: Engine, batch: Tuple[Any, ...]) -> Any:
    """This replica's rows of a batch that all replicas share, and their weight for the engine.
    `batch`: tensors or sequences with the same number of rows. Returns one part for one, else a
    tuple. Raises GpqTrainError for parts of different lengths, and for fewer rows than replicas."""
    rank, replicas = engine.runtime.environment.rank, engine.runtime.environment.replicas
    sizes = {len(part) for part in batch}
    if len(sizes) != 1:
        words = "job.share() was given parts of different lengths: {}"
        raise GpqTrainError(words.format(sorted(sizes)))
    size = sizes.pop()
    if size < replicas:
        words = "a batch of {} is too small for {} replicas"
        hint = "submit with --gpus 1-{}, or draw larger batches"
        raise GpqTrainError(words.format(size, replicas), hint.format(size))
    shares = [part[rank::replicas] for part in batch]
    # Models call view() on a batch, which needs contiguous memory. Rows of it need a copy for that.
    shares = [part.contiguous() if isinstance(part, torch.Tensor) else part for part in shares]
    if engine.own_batches is not None:
        engine.own_batches.weigh(replicas * len(shares[0]) / size)
    return shares[0] if len(shares) == 1 else tuple(shares)


def pass_boundary(engine: Engine) -> None:
    """One step of a loop that only calls should_stop(). Collective, and may not return."""
    engine.statistics.declare()
    engine.runtime.meter.steps += 1
    engine.statistics.say_ready()
    engine.boundaries.run()
    if engine.own_batches is not None:
        engine.own_batches.begin_step()


def commit_save(engine: Engine, saves: ScriptCheckpoints, next_step: int) -> None:
    """The script's own save is complete, and training resumes at `next_step`. Rank 0 commits it.
    Collective. Raises OSError on rank 0 if the disk refuses it."""
    raise_if_stopping()
    runtime = engine.runtime
    runtime.agreement.call = "job.saved()"
    if runtime.is_lead:
        begin = time.perf_counter()
        path = saves.commit(next_step)
        size = sum(os.path.getsize(name) for name in files_below(path))
        seconds = time.perf_counter() - begin
        content = {"step": next_step, "seconds": seconds, "bytes": size, "why": "periodic"}
        runtime.report.send("checkpoint", content)
    else:
        saves.advance()
    runtime.meter.steps = next_step
    runtime.agreement.broadcast_flag(success=True)


def finish_saves(engine: Engine, saves: ScriptCheckpoints) -> None:
    """Training is over, and the newest save of the script is its last."""
    if engine.runtime.is_lead:
        try:
            saves.finish()
        except OSError as error:
            engine.runtime.notice("cannot mark the last save: {}".format(error))


@contextmanager
def evaluation(engine: Engine, *, restores_generators: bool) -> Iterator[None]:
    """Nothing inside counts as training, and the engine neither stops nor saves.
    `restores_generators`: random numbers drawn inside do not change those outside, which all
    replicas draw alike."""
    generators = generator_states() if restores_generators else []
    engine.runtime.evaluating += 1
    engine.runtime.pulse.phase("evaluating")
    engine.statistics.times.discard()
    try:
        yield
    except BaseException:
        engine.runtime.evaluation_failed = True
        raise
    finally:
        set_generators(generators)
        engine.runtime.evaluating -= 1
        engine.runtime.pulse.phase("computing")

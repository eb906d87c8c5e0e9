"""`gpq.init()`: sets up a replica once, in the order that device, process group and exit need."""

import atexit
import os
import sys
import weakref
from typing import List, Optional

import torch

from gpq_agent import wire
from gpq_agent.train.errors import GpqTrainError, UnusableGpu
from gpq_agent.train.internals import untried_notice
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import bind_cores, open_device, read_environment
from gpq_agent.train.process.process_group import let_threads_rest, open_group
from gpq_agent.train.process.rng import script_seed
from gpq_agent.train.process.shutdown import be_one_of_many, note_departure, note_error
from gpq_agent.train.prove.recorder import begin

_current: "List[weakref.ref[Job]]" = []  # at most one, to recognise a script that asks for a second


def init(*, seed: Optional[int] = None, checkpoint_dir: Optional[str] = None) -> Job:
    """Set up this replica: process group, device, CPU cores and seeds. Call it once, before you
    draw anything at random.

    seed: seeds torch, numpy and random the same on all replicas and in all attempts. Rank 0's value
    counts. Default: the seed that the script gave torch before, or 0.
    checkpoint_dir: the folder for checkpoints if gpq gives none. Without either there are none.

    Raises GpqTrainError if this process already has a job.
    """
    sys.audit(wire.AUDIT_INIT)
    if _current and _current[0]() is not None:
        hint = "keep the job that the first call returned"
        raise GpqTrainError("gpq.init() was called twice in one process", hint)
    environment = read_environment(os.environ)
    if environment.checkpoint_dir is None and checkpoint_dir is not None:
        environment = environment._replace(checkpoint_dir=os.path.abspath(checkpoint_dir))
    problem = bind_cores(environment.cores)
    try:
        device = open_device(environment)
    except UnusableGpu as error:
        if environment.run_dir and environment.local_rank < len(environment.gpus):
            gpu = environment.gpus[environment.local_rank]
            note_error(environment.run_dir, environment.rank, error, gpu)
        raise
    if environment.replicas > 1:
        be_one_of_many()
        atexit.register(let_threads_rest)  # exit handlers run from the last to the first
    open_group(environment, device)
    if environment.replicas > 1 and environment.run_dir:
        atexit.register(note_departure, environment.run_dir, environment.rank)
    recorder = begin(os.environ, environment)
    seed = script_seed() if seed is None else seed
    job = Job(environment, device, seed, os.environ, recorder)
    for words in (problem, untried_notice(torch.__version__)):
        if words:
            job._engine.runtime.notice(words)
    _current[:] = [weakref.ref(job)]
    return job

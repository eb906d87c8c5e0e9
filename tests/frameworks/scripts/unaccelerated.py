"""Prints what gpq says to scripts of Accelerate that it cannot make elastic, a line each."""

import os
import sys

import gpq_agent.train as gpq
import torch
from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs
from accelerate.local_sgd import LocalSGD
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DDPCommunicationHookType, GradientAccumulationPlugin
from gpq_agent.train.frameworks import versions
from gpq_agent.train.frameworks.dataloaders import intended_gpus
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset


class Stream(IterableDataset):
    """Without a length."""

    def __iter__(self):
        return iter(())


def tell(action, *arguments, **options):
    """Print what gpq says to this call."""
    try:
        action(*arguments, **options)
        sys.stdout.write("nothing\n")
    except gpq.GpqTrainError as error:
        sys.stdout.write(error.message + "\n")


def refused(gpus=None, **options):
    """Tell what gpq.accelerate() says to an Accelerator with these options."""
    tell(gpq.accelerate, Accelerator(cpu=True, **options), gpus=gpus)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


refused(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
refused(dataloader_config=DataLoaderConfiguration(split_batches=True))
refused(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False))
refused(step_scheduler_with_optimizer=False)
refused(kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)])
os.environ["ACCELERATE_USE_FSDP"] = "true"  # as accelerate launch does
refused()
del os.environ["ACCELERATE_USE_FSDP"]

os.environ["GPQ_LEAST_GPUS"] = "2"  # as gpq submit --gpus 2-4
refused(gpus=0)
accelerator = gpq.accelerate(Accelerator(cpu=True))
data = TensorDataset(torch.randn(40, 2))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tell(lambda: next(iter(accelerator.epochs(1))))
tell(accelerator.prepare, DataLoader(Stream(), 4))
tell(accelerator.prepare, DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, False)))
loader, model, optimizer = accelerator.prepare(DataLoader(data, 4), model, optimizer)
assert (accelerator.num_processes, len(loader)) == (2, 5)
tell(accelerator.prepare, DataLoader(data, 4, shuffle=True))
tell(lambda: next(iter(loader)))
tell(LocalSGD, accelerator, model, 4)
tell(accelerator.skip_first_batches, loader, 2)
other_loader = accelerator.prepare(DataLoader(data, 4))
next(iter(accelerator.epochs(1)))
tell(lambda: next(iter(loader)))
accelerator.backward(model(next(iter(other_loader))[0]).mean())
tell(optimizer.step)
accelerator.job._engine.checkpointer.parts.offer({"user:gpus": {}})  # of a checkpoint without user:gpq.gpus
tell(intended_gpus, accelerator.job, None, "accelerate")

versions.FRAMEWORKS["accelerate"] = versions.Framework(("0.1",), ())
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
assert gpq.accelerate(accelerator, gpus=2) is accelerator
assert type(accelerator) is Accelerator
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters()), DataLoader(data, 4))
job, steps = accelerator.job, []
assert job.state("best", 0.5) == 0.5
for _ in accelerator.epochs(2):
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            optimizer.step()
        steps.append((job.step, job.at_step))
    job.log(loss=0.0)
    with job.eval():
        model(x)
assert (job.replicas, job.rank) == (1, 0)
assert steps == [((number + 1) // 2, number % 2 == 1) for number in range(20)]

"""A linear decay that ends after other steps on other numbers of GPUs, which is wrong."""

import sys
from pathlib import Path

import gpq_agent.train as gpq
import torch
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, SequentialLR
from torch.utils.data import TensorDataset

job = gpq.init(seed=0)
loader = job.loader(TensorDataset(torch.randn(64, 2)), batch_size=8)
model = job.wrap(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 1000 * job.replicas
decay = LambdaLR(optimizer, lambda step: (1 - step / steps) ** 0.9)  # a complex number beyond its end
schedule = SequentialLR(optimizer, [ConstantLR(optimizer, total_iters=4), decay], [4])
try:
    job.prepare(model, optimizer, schedule)
except gpq.GpqTrainError as error:
    Path(sys.argv[1] + ".error").write_text(error.message)
    raise
for _ in job.epochs(2):
    for (x,) in loader:
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
if job.rank == 0:
    torch.save(model.state_dict(), sys.argv[1])

"""A small elastic script, which takes whatever options the documents give it."""

import gpq_agent.train as gpq
import torch
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
job = gpq.init()
loader = job.loader(TensorDataset(torch.randn(256, 8), torch.randn(256, 1)), batch_size=32, max_batch_size=128)
model = job.wrap(nn.Linear(8, 1).to(job.device))
model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
for _ in job.epochs(1):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.log(loss=loss)

"""Trains a model of so many million parameters, and writes down when each step ended.

Each line of the file has the attempt, the number of replicas, and the moment in seconds.
"""

import argparse
import time
from pathlib import Path

import gpq_agent.train as gpq
import torch
from torch import nn
from torch.utils.data import TensorDataset

WIDTH = 1024
EXAMPLES = 4096
BATCH = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("moments", type=Path, help="file to write to")
    parser.add_argument("--millions", type=int, default=25, help="parameters of the model")
    options = parser.parse_args()
    job = gpq.init()
    examples = torch.randn(EXAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
    loader = job.loader(TensorDataset(examples), batch_size=BATCH)
    layers = max(round(options.millions * 1e6 / WIDTH**2), 1)
    model = job.wrap(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, _ = job.prepare(model, optimizer, None)
    with options.moments.open("a") as moments:
        for _ in job.epochs(1000):
            for (batch,) in loader:
                batch = batch.to(job.device)
                nn.functional.mse_loss(model(batch), batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                if job.rank == 0:
                    moments.write(f"{job.attempt} {job.replicas} {time.time():.4f}\n")
                    moments.flush()


if __name__ == "__main__":
    main()

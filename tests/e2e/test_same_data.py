"""Jobs that hold out random examples are restarted. They draw the same examples each time, or end with a line that says
why."""

from __future__ import annotations

from gpq.rpc.job_answers import Changed
from gpq.rpc.requests import Requeue
from tests.e2e.harness import Daemon
from tests.support.waiting import wait_until

LONG = 150.0  # seconds

# Both hold out examples without setting a seed. One draws before gpq.init(), where gpq can only detect a difference.
TRAINING = """
import os, random, sys
import numpy as np
import torch
import gpq_agent.train as gpq

full = torch.utils.data.TensorDataset(torch.randn(400, 1, generator=torch.Generator().manual_seed(1)))
order = np.random.permutation(400)
job = gpq.init()
if sys.argv[1] == "after":
    order = np.random.permutation(400)
words = "".join({"red", "green", "blue", "cyan", "pink", "grey", "gold", "teal"})
held, kept = order[:80], order[80:]
with open(f"{sys.argv[1]}.{job.attempt}", "w") as stream:
    stream.write(f"{held.tolist()} {words} {random.random()} {torch.rand(1).item()}")
loader = job.loader(torch.utils.data.Subset(full, kept), batch_size=32, fixed_batch=True)
model = job.wrap(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, _ = job.prepare(model, optimizer)
for epoch in job.epochs(1_000_000):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        open(f"{sys.argv[1]}.{job.attempt}.step", "a").close()
        if job.attempt > 1 and sys.argv[1] == "after":
            sys.exit(0)
"""


def test_a_restarted_script_draws_the_same_numbers_or_the_job_ends() -> None:
    with Daemon(slots=2, interval=0.5) as daemon:
        (daemon.work / "train.py").write_text(TRAINING)
        before, after = (
            daemon.submit("train.py", name, level="script", grace=60.0, retries=0) for name in ("before", "after")
        )
        for job in (before, after):
            wait_until(lambda job=job: daemon.detail(job).rows, f"job {job} trains", LONG)
        daemon.call(Requeue([str(before), str(after)]), Changed)
        assert daemon.until(before, "failed", "completed", patience=LONG).job.state == "failed"
        assert "the training data has changed since the previous attempt" in daemon.log(before, 2)
        assert not (daemon.work / "before.2.step").exists()
        assert daemon.until(after, "failed", "completed", patience=LONG).job.attempt == 2, daemon.log(after, 2)
        first, second = ((daemon.work / f"after.{attempt}").read_text() for attempt in (1, 2))
        assert first == second

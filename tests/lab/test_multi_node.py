"""One training job over two servers that share no files, 3 replicas on one and 1 on the other. It finds its network by
trying, says which replica is slow, and ends everywhere with a reason when one replica is gone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.daemons import HOME, LabDaemon
from tests.lab.kinds import Kind
from tests.lab.lab import Lab
from tests.support.figures import Figures
from tests.support.waiting import wait_until

LONG = 150.0  # seconds. Four replicas and two launchers import torch on a busy machine
SLOW = 3  # the rank that delays the others
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

SCRIPT = """
import json, os, sys, time
import gpq_agent.train as gpq
import torch

job = gpq.init()
x = torch.randn(4000, 8, generator=torch.Generator().manual_seed(5))
loader = job.loader(torch.utils.data.TensorDataset(x), batch_size=16, fixed_batch=True)
model = job.wrap(torch.nn.Linear(8, 1))
model, optimizer, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
names, slow = json.loads(sys.argv[1])
with open(f"rank-{job.rank}.part", "w") as stream:
    json.dump([os.getpid(), {name: os.environ.get(name) for name in names}], stream)
os.rename(f"rank-{job.rank}.part", f"rank-{job.rank}")
for epoch in job.epochs(1000):
    for (part,) in loader:
        time.sleep(0.06 if job.rank == slow else 0.02)
        model(part).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[Lab]:
    """They see the environment of the tests, for torch."""
    kind = Kind(shown=(Path(sys.prefix),))
    with Lab({"srv-a": kind, "srv-b": kind}) as lab:
        yield lab


@pytest.mark.long
def test_three_replicas_and_one_train_over_gloo(pair: Lab, figures: Figures) -> None:
    for server in pair:
        # Like docker's: the same address everywhere, first in the alphabet, and no route to anywhere.
        server.inside("ip", "link", "add", "docker0", "type", "bridge")
        server.inside("ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
        server.inside("ip", "link", "set", "docker0", "up")
        (server.home / "train.py").write_text(SCRIPT)
    with LabDaemon(pair, {"srv-a": 3, "srv-b": 1}) as daemon:
        daemon.up()
        began = time.monotonic()
        job = daemon.submit(
            "train.py", json.dumps([NAMES, SLOW]), level="script", cwd=HOME, min_gpus=4, max_gpus=4,
            env={"GPQ_REPORT_SECONDS": "0.5", "OMP_NUM_THREADS": "1", "NCCL_SOCKET_IFNAME": "mine"},
        )  # fmt: skip
        homes = [pair["srv-a"].home] * 3 + [pair["srv-b"].home]
        wait_until(lambda: all((home / f"rank-{rank}").exists() for rank, home in enumerate(homes)), "all train", LONG)
        figures.note("from submit to training on two servers", f"{time.monotonic() - began:.1f} s")
        found = [json.loads((home / f"rank-{rank}").read_text()) for rank, home in enumerate(homes)]
        master = pair["srv-a"].address
        assert [tuple(env.values()) for _, env in found] == [
            (str(rank), str(local), "4", master, "eth0", "mine") for rank, local in enumerate((0, 1, 2, 0))
        ]

        wait_until(lambda: daemon.detail(job).job.stragglers == [SLOW], "the slow one is reported", LONG)
        shown = daemon.detail(job)
        seats = [(one.rank, one.node, one.straggler) for one in shown.ranks]
        assert seats == [(0, "srv-a", False), (1, "srv-a", False), (2, "srv-a", False), (3, "srv-b", True)]
        waits = [one.wait_share or 0.0 for one in shown.ranks]
        assert waits[SLOW] < min(waits[:SLOW]), "the replica that makes the others wait waits least"
        assert any("rank 3 on srv-b is a straggler" in line for line in shown.notices)
        figures.note("share of a step that ranks 0 to 3 wait", ", ".join(f"{share:.0%}" for share in waits))

        began = time.monotonic()
        pair["srv-b"].inside("kill", "-9", str(found[SLOW][0]))
        detail = daemon.until(job, "failed", "completed", patience=LONG)
        figures.at_most("all replicas end after one was killed", time.monotonic() - began, 30.0)
        assert "rank 3 was killed by SIGKILL (server srv-b)" in detail.job.reason
        assert not pair["srv-a"].inside("pgrep", "-f", "train.py", check=False)


def test_servers_behind_a_firewall_are_reported_and_use_no_retry(pair: Lab, figures: Figures) -> None:
    """Drops everything that comes to the second server, except ssh. It reaches the first server, but nothing reaches
    it."""
    new = ("-i", "eth0", "-p", "tcp", "--syn", "!", "--dport", "22", "-j", "DROP")
    for server in pair:
        (server.home / "train.py").write_text("raise SystemExit('it ran')")
    with LabDaemon(pair, {"srv-a": 1, "srv-b": 1}) as daemon:
        daemon.up()
        pair["srv-b"].inside("iptables", "-w", "-I", "INPUT", *new)
        began = time.monotonic()
        job = daemon.submit("train.py", level="script", cwd=HOME, min_gpus=2, max_gpus=2)
        wait_until(lambda: daemon.detail(job).notices, "the reason is shown", LONG)
        figures.note("from submit to the reason why the servers do not meet", f"{time.monotonic() - began:.1f} s")
        detail = daemon.detail(job)
        told = "srv-b reaches srv-a, but not the other way round: " + pair["srv-b"].address
        assert told in detail.notices[-1]
        assert "Is there a firewall?" in detail.notices[-1]
        assert detail.job.state not in ("failed", "completed"), "it has no retries and needs none"
        assert "it ran" not in daemon.log(job, 1)

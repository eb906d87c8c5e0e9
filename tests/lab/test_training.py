"""A language model on servers that share no files. The policy chooses 3 + 1, then 2, then 2 + 2 of their slots."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpq.rpc.job_answers import JobDetail
from gpq.rpc.node_answers import Drained
from gpq.rpc.requests import Drain, Undrain
from tests.e2e.harness import ROOT
from tests.lab.daemons import HOME, LabDaemon
from tests.lab.kinds import Kind
from tests.lab.lab import Lab
from tests.support.figures import Figures
from tests.support.waiting import wait_until

LONG = 180.0  # seconds. Four replicas and two launchers import torch on a busy machine
EPOCHS = 8
TARGET = 3.2  # nats per character. Guessing gives 4.85, and the text is short.

# The example itself is unchanged, but the device has a fixed speed. On slots that share two cores, four replicas would
# be no faster than two, and no policy would want them. The time on this device grows with the batch and is not shared,
# as on a GPU.
PACED = """
import importlib.util, os, sys, time
import torch

spec = importlib.util.spec_from_file_location("chargpt", sys.argv[1])
chargpt = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chargpt)
forward = chargpt.CharGPT.forward

def paced(self, text):
    if torch.is_grad_enabled() and not os.path.exists("hurry"):
        time.sleep(len(text) / 4)
    return forward(self, text)

chargpt.CharGPT.forward = paced
del sys.argv[1]
sys.exit(chargpt.main())
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[Lab]:
    """They see the environment of the tests, for torch, and the examples. Their homes are their own."""
    kind = Kind(shown=(Path(sys.prefix), ROOT / "examples"))
    with Lab({"srv-a": kind, "srv-b": kind, "srv-c": kind}) as lab:
        yield lab


def counts(detail: JobDetail) -> list[int]:
    return sorted((len(part.devices) for part in detail.job.placement), reverse=True)


@pytest.mark.long
def test_a_model_is_trained_over_servers_that_share_nothing(servers: Lab, figures: Figures) -> None:
    for server in servers:
        (server.home / "train.py").write_text(PACED)
    slots = {"srv-a": 3, "srv-b": 2, "srv-c": 2}
    with LabDaemon(servers, slots, policy="goodput", interval=2.0, settle_seconds=3.0, restart_seconds=5.0) as daemon:
        daemon.up()
        began = time.monotonic()
        wait = "while ! test -e enough-$GPQ_JOB_ID; do sleep 0.1; done"
        daemon.call(Drain("srv-a", "the two move elsewhere"), Drained)
        pair = daemon.run(wait, min_gpus=2, max_gpus=2)
        beside = daemon.place(pair)
        single = daemon.run(wait)
        other = daemon.place(single)
        assert {beside, other} == {"srv-b", "srv-c"}
        daemon.call(Undrain("srv-a"), Drained)
        words = f"--epochs {EPOCHS} --text 60000 --width 32 --layers 1 --target {TARGET}".split()
        job = daemon.submit(
            "train.py", str(ROOT / "examples" / "chargpt" / "train.py"), *words,
            level="script", cwd=HOME, min_gpus=1, max_gpus=4, env={"GPQ_REPORT_SECONDS": "0.5", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

        def trains_on(*wanted: int) -> bool:
            detail = daemon.detail(job)
            assert detail.job.state not in ("completed", "failed"), detail
            return detail.job.state == "running" and counts(detail) == list(wanted) and detail.job.goodput is not None

        wait_until(lambda: trains_on(3, 1), "3 + 1", LONG)
        (servers[other].home / f"enough-{single}").touch()
        large = daemon.run(wait, min_gpus=3, max_gpus=3, priority=5)  # fits the largest server alone
        wait_until(lambda: trains_on(2), "2", LONG)
        assert daemon.place(large) == "srv-a"
        (servers[beside].home / f"enough-{pair}").touch()
        wait_until(lambda: trains_on(2, 2), "2 + 2", LONG)
        for server in servers:
            (server.home / "hurry").touch()
        detail = daemon.until(job, "completed", "failed", patience=LONG)
        assert detail.job.state == "completed", (detail, daemon.log(job))
        assert f"target {TARGET}: reached" in daemon.log(job, len(detail.attempts))
        passes = detail.metrics["gpq_passes"]
        figures.exactly("passes that visited each sample once", detail.metrics["gpq_passes_exact"], passes)
        sizes = [sorted((len(part.devices) for part in one.placement), reverse=True) for one in detail.attempts]
        figures.note("slots of its attempts", " -> ".join("+".join(map(str, size)) for size in sizes))
        figures.note("held-out loss", f"{detail.metrics.get('held_out_loss', 0.0):.2f}, target {TARGET}")
        figures.note("whole run", f"{time.monotonic() - began:.0f} s")
        (servers["srv-a"].home / f"enough-{large}").touch()
        daemon.ended(large)

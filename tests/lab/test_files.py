"""A job moves between servers that share nothing and resumes from its checkpoint, although the network is cut during
the transfer."""

from __future__ import annotations

import re
import time

from gpq.rpc.job_answers import JobView
from gpq.rpc.node_answers import Drained
from gpq.rpc.requests import Drain, Undrain
from tests.daemon.daemons import QUICK
from tests.lab.daemons import LabDaemon
from tests.lab.lab import Lab
from tests.support.figures import Figures
from tests.support.waiting import wait_until

SAMPLES = 200
BALLAST, PARTS = 4_000_000, 8  # bytes of a checkpoint, some seconds at 8 Mbit/s, in files
# Prints each sample that it takes. On TERM it saves its position and data that would be expensive to lose.
PROGRAM = f"""
import os, signal, sys, time
folder = os.environ["GPQ_CHECKPOINT_DIR"]
path = folder + "/state"
parts = [folder + "/part-%d" % number for number in range({PARTS})]
wanted = []
signal.signal(signal.SIGTERM, lambda *_: wanted.append(1))
at = 0
if os.path.exists(path):
    with open(path) as stream:
        at = int(stream.read())
    assert sum(map(os.path.getsize, parts)) == {BALLAST}
while at < {SAMPLES}:
    print("sample", at, flush=True)
    at += 1
    time.sleep(0.05)
    if wanted:
        for part in parts:
            with open(part, "wb") as stream:
                stream.write(os.urandom({BALLAST // PARTS}))
        with open(path + ".new", "w") as stream:
            stream.write(str(at))
        os.replace(path + ".new", path)
        sys.exit(75)
"""


def test_a_checkpoint_follows_its_job_although_the_link_is_cut_during_the_transfer(lab: Lab, figures: Figures) -> None:
    with LabDaemon(lab, {"srv-a": 1, "srv-b": 1}, pace=QUICK) as daemon:
        daemon.up()

        def row(job: int) -> JobView:
            return daemon.detail(job).job

        daemon.call(Drain("srv-b", "the job starts on the other one"), Drained)
        job = daemon.run(f"exec python3 -c '{PROGRAM}'", level="signal", signal="TERM")
        wait_until(lambda: "sample 20\n" in daemon.log(job), "it takes samples")
        server = lab["srv-b"]
        server.link.slow("8mbit")
        daemon.call(Undrain("srv-b"), Drained)
        daemon.call(Drain("srv-a", "it should move to the other one"), Drained)

        def sent() -> int:
            staging = row(job).staging
            return staging.done if staging is not None else 0

        before = wait_until(lambda: sent() if sent() > BALLAST // 4 else 0, "a quarter of it was sent")
        server.link.cut()
        wait_until(
            lambda: (found := row(job).staging) is not None and "interrupted" in found.note, "the cut was noticed"
        )
        server.link.heal()
        server.link.slow("8mbit")
        least, began = BALLAST, time.monotonic()

        def goes_on() -> bool:
            nonlocal least
            staging = row(job).staging
            least = min(least, staging.done) if staging is not None else least
            return staging is None

        wait_until(goes_on, "all of it was sent")
        figures.note("the rest of 4 MB at 8 Mbit/s after a cut", f"{time.monotonic() - began:.1f} s after the healing")
        assert daemon.ended(job) == {job: ("completed", 0)}
        assert least >= before - (1 << 20), "only the file under way came again"
        told = [
            int(number)
            for number in re.findall(r"^sample (\d+)$", daemon.log(job, 1) + daemon.log(job, 2), re.MULTILINE)
        ]
        figures.exactly("samples not taken exactly once", SAMPLES - len(set(told)) + len(told) - len(set(told)), 0)
        assert told == list(range(SAMPLES))
        assert daemon.detail(job).job.attempt == 2
        folders = [one.parent.parent for server in lab for one in server.home.rglob("checkpoints/*/state")]
        assert len(folders) == 2, "each server has its own copy"

"""One job on two nodes of this machine, with more replicas on one than on the other. It uses every example once, and
gpq reports it correctly."""

from __future__ import annotations

import os

from tests.e2e.harness import Daemon
from tests.e2e.test_training import LONG, lines, train, visited


def test_three_replicas_and_one_train_on_every_example_once() -> None:
    with Daemon(nodes={"a": 3, "b": 1}, policy="fifo") as daemon:
        size, epochs = 640, 2
        env = {"GPQ_REPORT_SECONDS": "0.5", "OMP_NUM_THREADS": "1"}
        job = train(daemon, "uneven", size=size, epochs=epochs, pace=0.02, fixed=True, gpus=4, min_gpus=4, env=env)
        detail = daemon.until(job, "completed", "failed", patience=LONG)
        assert (detail.job.state, detail.job.exit_status) == ("completed", 0), daemon.log(job)
        assert visited(daemon, "uneven", size, epochs)
        assert {line[5] for line in lines(daemon, "uneven")} == {4}
        assert [[part.node, len(part.devices)] for part in detail.attempts[0].placement] == [["a", 3], ["b", 1]]
        said = daemon.log(job)
        assert "the servers of this job meet at 127.0.0.1 port" in said, "all on one machine: no network is needed"
        assert "this one through lo" in said


UNLUCKY = """#!/bin/sh
test "$GPQ_ATTEMPT" = 1 || exit 0
echo "failed to listen. port: $MASTER_PORT, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
exit 1
"""


def test_a_port_taken_after_its_check_uses_no_retry() -> None:
    with Daemon(slots=1) as daemon:
        python = daemon.work / "python"
        python.write_text(UNLUCKY)  # in torch's words
        os.chmod(python, 0o700)
        job = daemon.submit("train.py", level="script", python=str(python))
        detail = daemon.until(job, "completed", "failed")
        assert (detail.job.state, detail.job.attempt) == ("completed", 2)
        assert any("was taken" in line for line in detail.notices)

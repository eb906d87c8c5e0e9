"""Many clients at once: how long each submission takes, and how long a look at the queue that they filled."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from gpq.rpc.messages import JobList, SpecMessage, Status, Submit, Submitted
from tests.e2e.harness import Daemon


@dataclass
class Crowd:
    submit_seconds: list[float] = field(default_factory=list)
    status_seconds: list[float] = field(default_factory=list)  # of the first screen: `gpq status`
    jobs: int = 0  # in the queue afterwards
    ids: set[int] = field(default_factory=set)
    restart_seconds: float = 0.0


def crowd(jobs: int, clients: int) -> Crowd:
    """`clients` submit at once until there are `jobs`. All wait: the daemon's one slot is taken."""
    found, lock, left = Crowd(), threading.Lock(), list(range(jobs))
    with Daemon(slots=1, interval=600.0) as daemon:
        daemon.until(daemon.shell("while :; do sleep 1; done", grace=0.5), "running")
        spec = SpecMessage(["true"], str(daemon.work), "black-box", max_gpus=1)

        def submit() -> None:
            while True:
                with lock:
                    if not left:
                        return
                    left.pop()
                began = time.monotonic()
                job = daemon.call(Submit(spec), Submitted).id
                with lock:
                    found.submit_seconds.append(time.monotonic() - began)
                    found.ids.add(job)

        threads = [threading.Thread(target=submit) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(5):
            began = time.monotonic()
            found.jobs = len(daemon.call(Status(), JobList).jobs)
            found.status_seconds.append(time.monotonic() - began)
        daemon.kill()
        began = time.monotonic()
        daemon.start()
        found.restart_seconds = time.monotonic() - began
    return found

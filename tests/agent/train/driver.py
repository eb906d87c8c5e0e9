"""Plays the agent for a training job: starts attempts with real process groups, writes orders and reads reports.

Replicas are forked from one server process that has imported torch once, so an attempt takes under a second.
"""

import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpq_agent import wire

from tests.support.ports import free_port
from tests.support.promises import demand_no_crash

from .script import Settings

DEADLINE = 120.0  # seconds, and a busy machine may need most of them
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    ["torch", "torch._dynamo", "gpq_agent.train", "tests.agent.train.driver", "tests.support.frozen"]
)


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `condition`. Fails with `what` after DEADLINE seconds."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {DEADLINE} s without success for: {what}")


def run_replica(environment: Mapping[str, str], text: str) -> None:
    """The main function of a forked replica."""
    os.environ.update(environment)
    # Otherwise each loader process would start a fork server of its own and import torch again.
    multiprocessing.set_start_method("fork", force=True)
    from . import script

    script.main(text)


class Attempt:
    """One attempt: `replicas` processes and a folder for this attempt."""

    def __init__(
        self,
        job: "TrainingJob",
        number: int,
        replicas: int,
        control: wire.Control | None,
        brake: int | None,
    ) -> None:
        self.job = job
        self.number = number
        self.replicas = replicas
        self.run_dir = job.folder / f"attempt-{number}"
        self.run_dir.mkdir()
        self._seq = 0
        wire.write_json(str(self.run_dir / wire.STARTED), {"started_at": time.time(), "warm": False})
        if control is not None:
            wire.write_json(str(self.run_dir / wire.CONTROL), control._asdict())
            self._seq = control.seq
        if brake is not None:
            (job.out / f"brake.{number}").write_text(str(brake))
        port = str(free_port())
        self.processes = []
        for rank in range(replicas):
            environment = {
                wire.ENV_RUN_DIR: str(self.run_dir),
                wire.ENV_CHECKPOINT_DIR: str(job.checkpoints),
                wire.ENV_ATTEMPT: str(number),
                "GPQ_REPORT_SECONDS": "0.5",
            }
            if replicas > 1:
                environment.update(
                    RANK=str(rank), WORLD_SIZE=str(replicas), LOCAL_RANK=str(rank),
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                )  # fmt: skip
            process = FORKSERVER.Process(target=run_replica, args=(environment, job.text))
            process.start()
            self.processes.append(process)

    def order(self, **fields: Any) -> int:
        """Write the next order and return its number."""
        self._seq += 1
        control = wire.Control(attempt=self.number, seq=self._seq, **fields)
        wire.write_json(str(self.run_dir / wire.CONTROL), control._asdict())
        return self._seq

    def reports(self, kind: str) -> list[dict[str, Any]]:
        """Return the complete lines of this kind so far."""
        path = self.run_dir / wire.REPORT
        if not path.exists():
            return []
        lines = [wire.decode(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        return [line for line in lines if line["kind"] == kind]

    def micros(self, rank: int = 0) -> list[dict[str, Any]]:
        """What a replica wrote, complete lines only."""
        path = self.job.out / f"visits.{self.number}.{rank}"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def after_micros(self, count: int) -> "Attempt":
        """Wait for this many micro-batches of rank 0, or for the end of the attempt."""
        wait_until(lambda: len(self.micros()) >= count or not self.alive, f"{count} micro-batches")
        return self

    @property
    def alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def wait(self) -> list[int | None]:
        """Exit codes by rank, once all replicas have ended."""
        for process in self.processes:
            process.join(DEADLINE)
        codes = [process.exitcode for process in self.processes]
        demand_no_crash(codes)
        return codes

    def stop(self, **fields: Any) -> list[int | None]:
        self.order(stop=True, **fields)
        return self.wait()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


class TrainingJob:
    """A job and all its attempts."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.checkpoints = folder / "checkpoints"
        self.out.mkdir(parents=True)
        self.checkpoints.mkdir()
        self.settings = Settings(out=str(self.out), **settings)
        self.text = json.dumps(asdict(self.settings))
        self.attempts: list[Attempt] = []

    def start(
        self,
        replicas: int,
        control: wire.Control | None = None,
        *,
        brake: int | None = None,
    ) -> Attempt:
        """`brake`: after this many micro-batches the replica is slow, so that a busy machine can still stop it in
        time."""
        attempt = Attempt(self, len(self.attempts) + 1, replicas, control, brake)
        self.attempts.append(attempt)
        return attempt

    def run(self, replicas: int) -> Attempt:
        """Run one attempt that must end successfully without a stop."""
        attempt = self.start(replicas)
        assert attempt.wait() == [0] * replicas
        return attempt

    def visits(self) -> dict[int, list[int]]:
        """Examples by pass over the data, in ascending order, over all attempts and replicas."""
        result: dict[int, list[int]] = defaultdict(list)
        for micro in self._micros():
            result[micro["pass"]] += micro["seen"]
        return {number: sorted(seen) for number, seen in sorted(result.items())}

    def losses(self) -> dict[int, float]:
        """Mean loss over the examples of each optimizer step."""
        sums: dict[int, float] = defaultdict(float)
        counts: dict[int, int] = defaultdict(int)
        for micro in self._micros():
            sums[micro["step"]] += micro["loss"] * len(micro["seen"])
            counts[micro["step"]] += len(micro["seen"])
        return {step: sums[step] / counts[step] for step in sorted(sums)}

    def close(self) -> None:
        for attempt in self.attempts:
            attempt.kill()

    def _micros(self) -> list[dict[str, Any]]:
        return [
            micro for attempt in self.attempts for rank in range(attempt.replicas) for micro in attempt.micros(rank)
        ]

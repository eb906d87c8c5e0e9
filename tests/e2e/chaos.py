"""Kills the daemon with kill -9, again and again, under a load of short jobs. The judge is the jobs' own ledger, not
gpq.

Every job appends "start" and "end" to one file, with its id, its attempt and the exit code that it is about to give.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gpq.errors import GpqError
from tests.e2e.harness import ENDED, Daemon
from tests.support.waiting import wait_until

CODES = (0, 0, 0, 1, 3, 42)
# Each line is one write to a file opened for appending, so lines of different jobs cannot mix.
JOB = """
echo "start $GPQ_JOB_ID $GPQ_ATTEMPT {code} {token}" >> {ledger}
sleep {seconds:.3f}
echo "end $GPQ_JOB_ID $GPQ_ATTEMPT {code} {token}" >> {ledger}
exit {code}
"""
MOST_AGAIN = 3  # kills in a row during recovery
# With this many acknowledged jobs that have not ended, the next kill waits. So kills hit jobs of every age.
BACKLOG = 100
PATIENCE = 180.0  # give up after this many seconds in which no job ends


@dataclass
class Verdict:
    """Counts of violations, and of what the run did."""

    kills: int = 0
    kills_at_submission: int = 0  # aimed at the moment of a submission
    kills_before_ready: int = 0  # while the daemon was still recovering from the previous kill
    acknowledged: int = 0
    unanswered: int = 0  # submissions cut off by the kill: they may exist or not, but never twice
    lost: list[int] = field(default_factory=list)  # acknowledged, but unknown or never run
    doubled: list[int] = field(default_factory=list)  # started more than once
    wrong: list[int] = field(default_factory=list)  # recorded with an exit code that the job did not give
    unfinished: list[int] = field(default_factory=list)
    seconds: float = 0.0
    ready_seconds: list[float] = field(default_factory=list)  # from start to serving

    @property
    def good(self) -> bool:
        return not (self.lost or self.doubled or self.wrong or self.unfinished)

    def table(self) -> str:
        ready = sorted(self.ready_seconds)
        rows = [
            ("kill -9 of the daemon", self.kills),
            ("  aimed at a submission", self.kills_at_submission),
            ("  during a recovery", self.kills_before_ready),
            ("jobs acknowledged", self.acknowledged),
            ("submissions cut off by a kill", self.unanswered),
            ("acknowledged jobs lost", len(self.lost)),
            ("jobs started twice", len(self.doubled)),
            ("wrong exit codes", len(self.wrong)),
            ("jobs that did not end", len(self.unfinished)),
            ("start to serving, median s", f"{ready[len(ready) // 2]:.2f}" if ready else "-"),
            ("total seconds", f"{self.seconds:.0f}"),
        ]
        return "\n".join(f"{name:<32}{value:>8}" for name, value in rows)


class Submitter(threading.Thread):
    """Submits `jobs` jobs, as far as `allow` permits, to whichever daemon is running."""

    def __init__(self, daemon: Daemon, jobs: int, ledger: Path, seed: int, longest: float) -> None:
        super().__init__(name="submitter", daemon=True)
        self.daemon_ = daemon
        self.jobs = jobs
        self.ledger = ledger
        self.random = random.Random(seed)
        self.longest = longest
        self.acknowledged: dict[int, int] = {}  # id -> exit code that the job will give
        self.overwritten: list[int] = []  # ids acknowledged twice, so the first job is lost
        self.unanswered = 0
        self.allowed = 0
        self.begun = threading.Event()  # a submission is under way
        self.error: BaseException | None = None
        self._condition = threading.Condition()

    def allow(self, number: int) -> None:
        with self._condition:
            self.allowed = number
            self._condition.notify_all()

    def run(self) -> None:
        try:
            while len(self.acknowledged) < self.jobs:
                with self._condition:
                    self._condition.wait_for(lambda: self.allowed > len(self.acknowledged))
                self._submit()
        except BaseException as error:
            self.error = error

    def _submit(self) -> None:
        code = self.random.choice(CODES)
        token = f"{len(self.acknowledged)}.{self.unanswered}"
        seconds = self.random.uniform(0.05, self.longest)
        command = JOB.format(code=code, token=token, seconds=seconds, ledger=self.ledger)
        self.begun.set()
        try:
            job = self.daemon_.shell(command)
        except (OSError, GpqError) as error:
            if not isinstance(error, ConnectionRefusedError | FileNotFoundError):
                self.unanswered += 1
            time.sleep(0.02)  # until a daemon serves again
            return
        if job in self.acknowledged:
            self.overwritten.append(job)
        self.acknowledged[job] = code


def chaos(
    *,
    jobs: int,
    kills: int,
    slots: int = 8,
    seed: int = 0,
    longest: float = 2.0,
    policy: str = "fifo",
    again: float = 0.3,
    kind: type[Daemon] = Daemon,
) -> Verdict:
    """Run it. Jobs take up to `longest` seconds and are submitted in step with the kills.

    `again`: the share of kills followed by another one while the daemon recovers. Each further kill has the same
    probability. `kind`: its `kill` may do something worse than kill -9.
    """
    dice = random.Random(seed)
    verdict = Verdict()
    began = time.monotonic()
    with kind(slots=slots, policy=policy) as daemon:
        submitter = Submitter(daemon, jobs, daemon.work / "ledger", seed, longest)
        submitter.start()
        for number in range(kills):
            upto = max(1, (number + 1) * jobs // kills)
            submitter.allow(upto - 1)
            time.sleep(dice.uniform(0.0, 0.5))
            submitter.begun.clear()
            submitter.allow(upto)
            if dice.random() < 0.5:  # aimed: a submission is under way or has just been answered
                submitter.begun.wait(1.0)
                time.sleep(dice.uniform(0.0, 0.03))
                verdict.kills_at_submission += 1
            daemon.kill()
            verdict.kills += 1
            for _ in range(MOST_AGAIN):  # and again while it recovers
                if dice.random() >= again:
                    break
                _close(daemon.spawn())
                time.sleep(dice.uniform(0.05, 1.2 * max([*verdict.ready_seconds[-1:], 0.5])))
                daemon.kill()
                verdict.kills += 1
                verdict.kills_before_ready += 1
            started = time.monotonic()
            daemon.start()
            verdict.ready_seconds.append(time.monotonic() - started)
            _catch_up(submitter)
        submitter.allow(jobs)
        submitter.join(timeout=PATIENCE)
        assert not submitter.is_alive(), f"{len(submitter.acknowledged)} of {jobs} jobs were submitted"
        if submitter.error is not None:
            raise submitter.error
        verdict.acknowledged, verdict.unanswered = len(submitter.acknowledged), submitter.unanswered
        _judge(daemon, submitter, verdict)
    verdict.seconds = time.monotonic() - began
    return verdict


def _close(descriptor: int) -> None:
    with open(descriptor, "rb"):
        pass


def _ended(ledger: Path) -> int:
    return ledger.read_bytes().count(b"end ") if ledger.exists() else 0


def _catch_up(submitter: Submitter) -> None:
    wait_until(
        lambda: len(submitter.acknowledged) - _ended(submitter.ledger) < BACKLOG or submitter.error is not None,
        "enough jobs have ended",
        patience=PATIENCE,
    )


def _judge(daemon: Daemon, submitter: Submitter, verdict: Verdict) -> None:
    ended, since = _ended(submitter.ledger), time.monotonic()
    while unfinished := [row.id for row in daemon.rows().jobs if row.state not in ENDED]:
        if (now := _ended(submitter.ledger)) != ended:
            ended, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            verdict.unfinished = unfinished
            break
        time.sleep(0.2 + len(unfinished) / 100)  # each look at all jobs costs the daemon work
    lines = [line.split() for line in submitter.ledger.read_text().splitlines()]
    starts = Counter(int(line[1]) for line in lines if line[0] == "start")
    ends = {int(line[1]): int(line[3]) for line in lines if line[0] == "end"}
    told = {row.id: row.exit_status for row in daemon.rows().jobs}
    verdict.lost = [job for job in submitter.acknowledged if job not in told or job not in starts]
    verdict.lost += submitter.overwritten
    verdict.doubled = [job for job, count in starts.items() if count > 1]
    verdict.wrong = [
        job
        for job, status in told.items()
        if job not in verdict.unfinished
        and (status != ends.get(job) or status != submitter.acknowledged.get(job, status))
    ]

"""Random operations of three users on the locked slots of two servers, under random faults of everything.

Each user has a daemon. Nobody waits for anything but time, so most faults meet something that is under way. The judge
compares what gpq says with what the jobs wrote: when each attempt lived, on which slots, and with which code it ended.

A seed draws operations and faults. Their instants depend on the machine, so a seed may show something only sometimes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gpq.errors import GpqError, NotFound
from gpq.rpc.job_answers import CancelResult, Changed, JobView
from gpq.rpc.requests import Cancel, Hold, Release, Requeue
from tests.chaos.lives import JOB, Order, agrees, copies, lives_of, overlaps
from tests.chaos.runs import Measured, run
from tests.chaos.servers import LEASE, agents, laboratory
from tests.e2e.harness import ENDED
from tests.lab.daemons import LabDaemon
from tests.lab.lab import Lab
from tests.lab.server import UID, Server
from tests.support.waiting import wait_until

USERS = ("ana", "bo", "cem")
SLOTS = 3  # of each server, which the users share
MOST = 6  # live jobs of a user. With a long queue, operations would meet only jobs that wait
PATIENCE = 300.0  # seconds after the last fault until everything has ended


@dataclass
class User:
    name: str
    daemon: LabDaemon
    dice: random.Random
    orders: dict[int, Order] = field(default_factory=dict)
    deeds: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    def act(self) -> None:
        """One random operation. Only what is acknowledged counts."""
        deed = self.dice.choices(
            (self.submit, self.cancel, self.hold, self.release, self.requeue, self.look, self.kill_daemon),
            (30, 8, 4, 8, 4, 20, 2),
        )[0]
        try:
            if deed == self.submit and self.is_busy():
                deed = self.look
            self.deeds[deed.__name__] += 1
            deed()
        except (OSError, GpqError):  # refused, or cut off
            self.refused += 1

    def submit(self) -> None:
        seconds, code = self.dice.uniform(0.2, 6.0), self.dice.choice((0, 0, 0, 3))
        lease = self.dice.random() < 0.5
        more = {"requeue_on_lost": LEASE} if lease else {}
        gpus = self.dice.choice((1, 1, 2))
        command = f"exec python3 job.py {self.name} {seconds:.2f} {code}"
        job = self.daemon.run(command, min_gpus=gpus, max_gpus=gpus, **more)
        self.orders[job] = Order(code, lease)

    def cancel(self) -> None:
        if job := self._some():
            self.orders[job].cancelled = True
            self.daemon.call(Cancel([str(job)], wait=self.dice.choice((0.0, 2.0))), CancelResult)

    def hold(self) -> None:
        if job := self._some():
            self.daemon.call(Hold([str(job)]), Changed)

    def release(self) -> None:
        for job in [self._some() for _ in range(5)]:
            with suppress(GpqError):
                self.daemon.call(Release([str(job)]), Changed)

    def requeue(self) -> None:
        if job := self._some():
            self.orders[job].starts += 1  # also if the answer is lost
            self.daemon.call(Requeue([str(job)]), Changed)

    def look(self) -> None:
        self.daemon.rows()
        if job := self._some():
            self.daemon.log(job)

    def kill_daemon(self) -> None:
        """At a random instant of a submission, because few instants of a daemon matter as much."""
        kill = threading.Timer(self.dice.uniform(0.0, 0.03), self.daemon.kill)
        kill.start()
        with suppress(OSError, GpqError):
            self.submit()
        kill.join()
        self.daemon.start()

    def live(self) -> list[JobView]:
        return [row for row in self.daemon.rows().jobs if row.state not in ENDED]

    def is_busy(self) -> bool:
        return sum(row.state != "held" for row in self.live()) >= MOST

    def is_done(self) -> bool:
        """Has every job ended? Releases those that are held, also by gpq, after the loss of several servers."""
        rows = [row for row in self.live() if row.id in self.orders]
        held = [str(row.id) for row in rows if row.state == "held"]
        with suppress(GpqError):  # one of them has just ended
            self.daemon.call(Release(held), Changed)
        return not rows

    def _some(self) -> int:
        """One of the latest, 0 without any."""
        return self.dice.choice([*self.orders, 0][-2 * MOST :])


def _faults(server: Server, dice: random.Random) -> Mapping[str, Callable[[], Iterator[float]]]:
    """Each yields the seconds until it goes on."""
    link = server.link

    def kill(pids: Sequence[int]) -> Iterator[float]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        yield 0.0

    def cut() -> Iterator[float]:
        link.cut()
        yield dice.choice((1.0, 5.0, 2 * LEASE))

    def one_way() -> Iterator[float]:
        dice.choice((link.drop_in, link.drop_out))()
        yield dice.choice((1.0, 5.0, 2 * LEASE))

    def sshd() -> Iterator[float]:
        server.kill_sshd()
        yield dice.choice((0.0, 2.0))
        server.start_sshd()

    def frozen() -> Iterator[float]:
        server.freeze_sshd()
        yield dice.choice((1.0, 2 * LEASE))
        server.thaw_sshd()

    def power() -> Iterator[float]:
        server.power_off()
        yield dice.choice((0.0, 5.0))
        server.boot()

    def slow() -> Iterator[float]:
        link.slow("256kbit")
        yield 5.0

    return {
        "agents killed": lambda: kill(agents(server)),
        "supervisors killed": lambda: kill(_shims(server, dice)),
        "network cut": cut,
        "network cut one way": one_way,
        "sshd killed": sshd,
        "sshd stopped": frozen,
        "power cut": power,
        "network slow": slow,
    }


def _harm(server: Server, dice: random.Random, harms: Counter[str]) -> Iterator[float]:
    """Fault after fault, and the seconds until the next step."""
    while True:
        name, harm = dice.choice(list(_faults(server, dice).items()))
        harms[name] += 1
        yield from harm()
        server.link.heal()
        yield dice.uniform(0.0, 8.0)


def _shims(server: Server, dice: random.Random) -> list[int]:
    """Some of them."""
    inner = {int(pid) for pid in server.inside("pgrep", "-f", "gpq_agent", check=False).split()}
    pids = [pid for pid in server.processes() if server.pid_inside(pid) in inner and pid not in agents(server)]
    return [pid for pid in pids if dice.random() < 0.5]


@run(
    "stress",
    row="21, 22, 23, 24, 25, 26",
    times=3600,
    unit="second of random operations of three users under random faults",
)
def stress(times: int, seed: int, lab: Lab | None = None) -> Sequence[Measured]:
    """Everything at random. Nothing acknowledged is lost, runs twice, ends wrong or stays."""
    harms: Counter[str] = Counter()
    with laboratory(lab) as here:
        slots = {"slots": SLOTS, "lock": True, "cores": sorted(os.sched_getaffinity(0))}
        users = [User(name, _daemon(here, slots), random.Random(f"{name} {seed}")) for name in USERS]
        with users[0].daemon, users[1].daemon, users[2].daemon:
            for server in here:
                (server.home / "job.py").write_text(JOB)
                (server.home / "stress").mkdir()
                os.chown(server.home / "stress", UID, UID)
            # In this thread: a server dies with the one that booted it.
            faults = {server: _harm(server, random.Random(f"{server.name} {seed}"), harms) for server in here}
            due = dict.fromkeys(faults, 0.0)
            with _busy(users) as errors:
                end = time.monotonic() + times
                while time.monotonic() < end and not errors:
                    time.sleep(max(min(due.values()) - time.monotonic(), 0.0))
                    server = min(due, key=due.__getitem__)
                    due[server] = time.monotonic() + next(faults[server])
            if errors:
                raise errors[0]
            here.repair()
            for user in users:
                harms["daemon killed"] += user.deeds.pop("kill_daemon", 0)
            measured = [*_judge(users, list(here)), *_counts("fault", harms)]
    return measured


def _daemon(lab: Lab, slots: Mapping[str, object]) -> LabDaemon:
    daemon = LabDaemon(lab, {server.name: SLOTS for server in lab})
    text = daemon.config.read_text().replace(f"slots = {SLOTS}", "\n".join(
        f"{key} = {json.dumps(value)}" for key, value in slots.items()
    ))  # fmt: skip
    daemon.config.write_text(text)
    return daemon


@contextmanager
def _busy(users: Sequence[User]) -> Iterator[list[BaseException]]:
    """They act until the end of this context. Yields what went wrong with that."""
    over, errors = threading.Event(), list[BaseException]()

    def act(user: User) -> None:
        try:
            while not over.wait(user.dice.uniform(0.0, 1.0)):
                user.act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _judge(users: Sequence[User], servers: Sequence[Server]) -> list[Measured]:
    end = time.monotonic() + PATIENCE
    for user in users:
        user.daemon.up(patience=PATIENCE)
    for user in users:
        with suppress(AssertionError):
            wait_until(user.is_done, "all have ended", max(end - time.monotonic(), 1.0))
    lives = lives_of({server.name: server.home / "stress" for server in servers})
    lost, stuck, wrong, rerun = list[str](), list[str](), list[str](), list[str]()
    for user in users:
        for job, order in user.orders.items():
            attempts = lives.get((user.name, job), {})
            try:
                row = user.daemon.detail(job).job
            except NotFound:
                lost.append(f"{user.name} {job}")
                continue
            text = f"{user.name} {job}: {row.state} {row.exit_status} {row.reason}, {order}, {attempts}"
            if row.state not in ENDED:
                stuck.append(text)
            elif not agrees(row.state, row.exit_status, row.reason, order, attempts):
                wrong.append(text)
            if copies(attempts) > len(attempts) or (copies(attempts) > order.starts and not order.lease):
                rerun.append(text)
    deeds = sum((user.deeds for user in users), Counter[str]())
    return [
        *_counts("operation", deeds),
        Measured("operations refused or cut off", sum(user.refused for user in users)),
        Measured("jobs", sum(len(user.orders) for user in users), at_least=1),
        Measured("attempts", sum(map(len, lives.values()))),
        _none("lost", lost),
        _none("double", overlaps(lives)),
        _none("wrong", wrong),
        _none("run again without a request", rerun),
        _none("stuck", stuck),
    ]


def _counts(what: str, counter: Counter[str]) -> list[Measured]:
    kinds = [Measured(f"{what}: {kind}", counter[kind]) for kind in sorted(counter)]
    return [Measured(f"{what}s", counter.total()), *kinds]


def _none(what: str, cases: Sequence[str]) -> Measured:
    return Measured(what, len(cases), at_most=0, why="\n".join(cases))

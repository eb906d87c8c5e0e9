"""What a seed draws: the network's weather, jobs, user actions and faults. It is plain data, so that a fault can be
removed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpq.core.feasibility.shapes import feasible, shape_now
from gpq.core.model.jobs import Allotment, Level
from gpq.core.model.placements import Shape
from gpq.core.model.policy import Policy
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import JobId
from gpq.policies.shared.eligible import eligible
from tests.dst.network import Weather
from tests.dst.programs import Program

FAULTS = {  # by name: relative frequency
    "cut": 6, "reboot": 2, "agent kill": 3, "shim kill": 2, "start kill": 2, "port busy": 3, "daemon kill": 5,
    "daemon kill at commit": 5, "freeze": 3, "slow disk": 2, "full disk": 3,
}  # fmt: skip
FOCUSED = 0.1  # share of the seeds that try rare situations on purpose
USERS = ("ana", "bo", "cleo")
ENDLESS = 1e6  # seconds of work, so it runs until somebody cancels it


@dataclass(frozen=True)
class Fault:
    """`share` in [0, 1) and `number` decide what the fault has to choose. `seconds` is its duration."""

    at: float
    kind: str
    node: int = 0
    ways: str = "both"
    seconds: float = 1.0
    number: int = 0
    share: float = 0.0


@dataclass(frozen=True)
class Deed:
    """A user's action: "submit" for the program of that number, or what the user does to its job."""

    at: float
    kind: str
    program: int


@dataclass(frozen=True)
class Plan:
    seed: int
    nodes: int
    policy: str
    interval: float
    weather: Weather
    programs: tuple[Program, ...]
    deeds: tuple[Deed, ...]
    faults: tuple[Fault, ...]
    wrong_clocks: tuple[float, ...]
    release_after: tuple[float, ...]
    rates: tuple[float, ...]  # of the clocks that nobody sets
    end: float = 300.0  # no faults after this

    def smaller(self) -> Iterator[Plan]:
        """Each plan with one fault, one job or one user action less."""
        for fault in self.faults:
            yield replace(self, faults=tuple(each for each in self.faults if each is not fault))
        for deed in self.deeds:
            rest = (each for each in self.deeds if each is not deed)
            if deed.kind == "submit":
                rest = (each for each in rest if each.program != deed.program)
            yield replace(self, deeds=tuple(rest))


def drawn(seed: int) -> Plan:
    """Each seed has its own mix: the kinds and number of faults, the quality of the network, the policy."""
    if random.Random(f"focus {seed}").random() < FOCUSED:
        return _focused(seed)
    dice = random.Random(f"plan {seed}")
    nodes = dice.choice((2, 2, 3))
    users = USERS[: random.Random(f"users {seed}").choice((1, 2, 2, 3))]
    programs = tuple(
        replace(_program(dice, number), user=users[number % len(users)]) for number in range(dice.randrange(3, 9))
    )
    kinds = [name for name in FAULTS if dice.random() < 0.5] or ["cut"]
    deeds = _deeds(dice, programs)
    faults = [_fault(dice, kinds, nodes, deeds) for _ in range(dice.randrange(14))]
    return Plan(
        seed=seed,
        nodes=nodes,
        policy=dice.choices(("restless", "backfill", "tiresias", "goodput"), (12, 4, 3, 1))[0],
        interval=dice.choice((10.0, 60.0)),
        weather=_weather(dice),
        programs=programs,
        deeds=deeds,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        wrong_clocks=tuple(dice.choice((0.0, dice.uniform(-3600, 3600))) for _ in range(nodes)),
        release_after=tuple(dice.choice((0.0, dice.uniform(0.1, 8.0))) for _ in range(nodes)),
        rates=tuple(dice.uniform(0.999, 1.001) for _ in range(nodes)),
    )


def _focused(seed: int) -> Plan:
    """One job. While its start is under way, the servers are cut off or refuse it. Then the head's disk is full for
    longer than its lease, or longer than the daemon's patience."""
    dice = random.Random(f"focused {seed}")
    job = replace(_program(dice, 0), level=Level.BLACK_BOX, gpus=2, most=2, work=400.0, lease=dice.choice((0.0, 20.0)))
    kind = "cut" if job.lease else "port busy"
    first = [Fault(dice.uniform(0.0, 1.0), kind, node, "both", dice.uniform(5.0, 90.0)) for node in range(2)]
    full = Fault(dice.uniform(2.0, 12.0), "full disk", seconds=dice.uniform(60.0, 120.0))
    return Plan(
        seed=seed,
        nodes=2,
        policy="backfill",
        interval=10.0,
        weather=_weather(dice),
        programs=(job,),
        deeds=(Deed(0.5, "submit", 0),),
        faults=tuple(sorted((*first, full), key=lambda fault: fault.at)),
        wrong_clocks=(0.0, 0.0),
        release_after=(0.0, 0.0),
        rates=(1.0, 1.0),
    )


def _program(dice: random.Random, number: int) -> Program:
    level = dice.choice((Level.BLACK_BOX, Level.BLACK_BOX, Level.SIGNAL, Level.SCRIPT, Level.SCRIPT))
    gpus = dice.choice((1, 1, 1, 2))
    return Program(
        token=f"job{number}",
        level=level,
        gpus=gpus,
        most=dice.choice((2, 4, 6)) if level is Level.SCRIPT else gpus,
        work=dice.choice((1.0, dice.uniform(2, 40), dice.uniform(20, 150), ENDLESS if dice.random() < 0.4 else 5.0)),
        codes=dice.choice(((0,), (0,), (3,), (1, 0), (2, 1, 0))),
        saves_in=dice.choice((0.2, 2.0, dice.uniform(1, 40))),
        heeds_term=dice.random() < 0.8,
        retries=dice.choice((0, 0, 2)),
        grace=dice.choice((5.0, 20.0)),
        lease=dice.choice((0.0, 0.0, 20.0, 60.0)),
    )


def _weather(dice: random.Random) -> Weather:
    weather = Weather(most=dice.choice((0.02, 0.2, 2.0)))
    if dice.random() < 0.3:
        weather.drop = dice.choice((0.01, 0.1))
    if dice.random() < 0.3:
        weather.twice = dice.choice((0.02, 0.2))
    weather.ordered = dice.random() < 0.7
    return weather


def _deeds(dice: random.Random, programs: tuple[Program, ...]) -> tuple[Deed, ...]:
    deeds: list[Deed] = []
    for number, program in enumerate(programs):
        at = dice.choice((0.5, dice.uniform(0, 200)))
        deeds.append(Deed(at, "submit", number))
        while dice.random() < 0.4:
            at += dice.choice((0.05, dice.uniform(0, 3), dice.uniform(0, 60)))
            deeds.append(Deed(at, dice.choice(("cancel", "hold", "release", "requeue")), number))
        if program.work >= ENDLESS:
            deeds.append(Deed(max(at, dice.uniform(100, 290)), "cancel", number))
    return tuple(sorted(deeds, key=lambda deed: deed.at))


def _fault(dice: random.Random, kinds: list[str], nodes: int, deeds: tuple[Deed, ...]) -> Fault:
    """Half of them strike near a user's action, when something is going on."""
    kind = dice.choices(kinds, [FAULTS[name] for name in kinds])[0]
    at = dice.uniform(0.0, 240.0)
    if dice.random() < 0.6:
        at = max(dice.choice(deeds).at + dice.choice((0.0, dice.uniform(-1.0, 2.0), dice.uniform(-5.0, 20.0))), 0.0)
    return Fault(
        at=at,
        kind=kind,
        node=dice.randrange(nodes),
        ways=dice.choice(("both", "up", "down")),
        seconds=dice.choice((0.5, dice.uniform(1, 15), dice.uniform(10, 60), dice.uniform(30, 150))),
        number=dice.randrange(4),
        share=dice.random(),
    )


class Restless(Policy):
    """Gives movable jobs another shape at random times. This exercises every kind of start and stop."""

    name = "restless"

    def __init__(self, until: float) -> None:
        self.until = until  # after this, running jobs are left alone, because some would never end otherwise

    def allocate(self, snapshot: Snapshot) -> Mapping[JobId, Allotment]:
        dice = random.Random(int(snapshot.now * 1000))
        wanted: dict[JobId, Allotment] = {}
        jobs = eligible(snapshot)
        kept = {job.id for job in jobs}
        for name, job in sorted(snapshot.jobs.items()):
            if name not in kept and job.placement is not None and (shape := _kept(snapshot, name)) is not None:
                wanted[name] = shape
        for job in dice.sample(jobs, len(jobs)):
            shapes = feasible(job, snapshot)
            now = shape_now(job, snapshot)
            if job.placement is not None and now is not None and (snapshot.now > self.until or dice.random() < 0.5):
                wanted[job.id] = now
            elif shapes and dice.random() < 0.9:
                wanted[job.id] = dice.choice(shapes)
        return wanted


def _kept(snapshot: Snapshot, name: JobId) -> Shape | None:
    placement = snapshot.jobs[name].placement
    return placement.shape if placement is not None else None

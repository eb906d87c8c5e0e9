"""Who submits what, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.lab.kinds import KINDS

COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job. `at`: seconds after the start. `gpus`: what a tuned user asks for. A `fixed` job has
    as many under every policy."""

    at: float
    name: str
    gpus: int
    fixed: bool = False
    seconds: float = 0.0  # of a command, which sleeps

    @property
    def kind(self) -> str:
        return kind_of(self.name)


def kind_of(name: str) -> str:
    """The kind of a training, or COMMAND."""
    return name.rsplit("-", 1)[0]


def job(at: float, name: str, gpus: int = 0, *, fixed: bool = False) -> Arrival:
    return Arrival(at, name, gpus or KINDS[kind_of(name)].asks, fixed)


def command(at: float, name: str, gpus: int, seconds: float) -> Arrival:
    return Arrival(at, name, gpus, True, seconds)


def sweep(at: float, kind: str, letters: str) -> Iterator[Arrival]:
    return (job(at + place, f"{kind}-{letter}") for place, letter in enumerate(letters))


def half_fixed(seed: int) -> Iterator[Arrival]:
    """Twenty jobs by a Poisson process. Ten are fixed: three commands and seven scripts."""
    random = Random(seed)
    kinds = [*["cifar"] * 6, *["ncf"] * 4, *["deepspeech"] * 3, *["bert"] * 2, "yolo", "imagenet"]
    kinds += [COMMAND] * 3
    random.shuffle(kinds)
    at, scripts = 0.0, 0
    for number, kind in enumerate(kinds):
        name = f"{kind}-{chr(ord('a') + number)}"
        if kind == COMMAND:
            yield command(at, name, random.choice((1, 2, 4)), random.uniform(40, 120))
        else:
            scripts += 1
            yield job(at, name, fixed=scripts % 5 in (1, 3))
        at = round(at + random.expovariate(1 / 20), 1)


# Six minutes of a lab before a deadline.
LAB = (
    job(0, "cifar-a"),
    job(3, "deepspeech-a"),
    job(15, "ncf-a"),
    job(35, "imagenet-a"),
    job(60, "cifar-b"),
    command(65, "command-a", 2, 100),
    job(85, "bert-a"),
    # Before the group meets.
    job(130, "cifar-c"),
    job(133, "ncf-b"),
    job(137, "deepspeech-b"),
    job(141, "cifar-d", 4),
    # Lunch is over.
    job(190, "yolo-a"),
    job(215, "cifar-e"),
    job(260, "cifar-f"),
    job(263, "bert-b"),
    command(266, "command-b", 4, 80),
    job(270, "ncf-c"),
    job(330, "cifar-g"),
    # The last evening.
    job(370, "cifar-h", 4),
    job(375, "deepspeech-c"),
    job(385, "ncf-d"),
)
# Three bursts, next to trainings that come alone.
SWEEPS = (
    job(0, "deepspeech-a"),
    *sweep(30, "cifar", "abcdef"),
    job(75, "bert-a"),
    job(100, "yolo-a"),
    *sweep(150, "ncf", "abcdef"),
    job(180, "imagenet-a"),
    job(220, "deepspeech-b"),
    *sweep(280, "cifar", "ghij"),
    job(310, "bert-b"),
)
# Some minutes, to see that everything works.
SMOKE = (
    job(0, "cifar-a"),
    job(3, "ncf-a"),
    command(5, "command-a", 2, 20),
    job(10, "deepspeech-a"),
)
TINY = (job(0, "tiny-a"), command(0, "command-a", 4, 1))
FULL = {"lab": LAB, "half-fixed": tuple(half_fixed(2)), "sweeps": SWEEPS}
WORKLOADS = {**FULL, "smoke": SMOKE, "tiny": TINY}

"""What a job manager must do for the comparison, and what it may say about a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Told:
    """What a job manager says about a job: its own word, the exit code if it knows one, and whether
    that is final."""

    state: str
    over: bool
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to submit a job that matters if its server is cut off."""

    label: str
    options: Mapping[str, object] = field(default_factory=dict)
    moves: bool = False  # whether the job should start on another server


class System(Protocol):
    """Runs inside `with`. A job is known by the token that it was submitted with."""

    name: str
    settings: Sequence[str]  # one line each: how it was set up
    better: Sequence[str]  # one line each: what would improve its result
    home: str  # of the ledger, as jobs see it
    node: str  # how the shell of a job names its server
    slots: int

    def __enter__(self) -> object: ...

    def __exit__(self, *details: object) -> None: ...

    def homes(self) -> list[Path]:
        """`home` of every server, as this machine sees it."""
        ...

    def submit(self, token: str, script: str, **options: object) -> str:
        """Returns the id of the job, once it is acknowledged."""
        ...

    def jobs(self) -> dict[str, Told]:
        """Every job that it knows."""
        ...

    def kill(self) -> None:
        """kill -9 of the controller."""
        ...

    def restart(self) -> None:
        """Starts it as its administrator would. Returns once it answers and has its servers."""
        ...


@runtime_checkable
class Networked(System, Protocol):
    """A job manager whose jobs run on other servers than its controller."""

    variants: Sequence[Variant]

    def cut(self, node: str) -> None:
        """Nothing passes between the server and all others. The jobs there are not touched."""
        ...

    def heal(self, node: str) -> None: ...

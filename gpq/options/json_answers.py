"""What the command line itself answers with `--json`, where no answer of the daemon is passed on. A
public format, as those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from gpq.config import FileConfig

SCHEMA = 2


class Error(msgspec.Struct, frozen=True):
    """What is printed instead when a command fails; the exit code tells the kind (2 usage, 3 no
    daemon, 4 not found, 5 refused, 124 timed out, 1 anything else)."""

    error: str  # what is so, one line
    hint: str  # what to do; may be empty


class CheckView(msgspec.Struct, frozen=True):
    name: str
    verdict: str  # "ok" | "warn" | "fail"
    message: str
    fix: str  # "" where there is nothing to mend
    node: str  # the server that it is about, "" for this machine, or for several


class Checkup(msgspec.Struct, frozen=True):
    """Answer of `gpq doctor`."""

    checks: list[CheckView]
    schema: int = SCHEMA


class GpuCheckView(msgspec.Struct, frozen=True):
    node: str  # "" for this machine
    section: str  # "A" of the driver, "B" of one replica, "C" of several
    name: str
    verdict: str  # "PASS" | "FAIL" | "SKIP"
    figure: str  # what was measured, or why it was not
    seconds: float  # that the check took


class GpuReport(msgspec.Struct, frozen=True):
    """Answer of `gpq doctor --gpu`."""

    gpq: str  # its version
    seconds: float  # that all of it took
    checks: list[GpuCheckView]
    schema: int = SCHEMA


class AddedNode(msgspec.Struct, frozen=True):
    name: str
    host: str
    host_key: str  # how its key was settled
    python: str
    cores: int
    memory_mib: int
    driver: str
    problem: str  # of its GPUs
    notice: str  # on its GPUs, though nothing is wrong
    devices: list[dict[str, Any]]
    address: str


class NodesAdded(msgspec.Struct, frozen=True):
    """Answer of `gpq nodes add`."""

    added: list[AddedNode]
    live: bool  # a daemon runs, and has them
    schema: int = SCHEMA


class NodeRemoved(msgspec.Struct, frozen=True):
    """Answer of `gpq nodes remove`."""

    removed: str
    live: bool  # a daemon runs, and has it no more
    schema: int = SCHEMA


class ConfigChecked(msgspec.Struct, frozen=True):
    path: str
    exists: bool  # without a file the defaults hold
    ok: bool = True  # a file that is not is an error
    schema: int = SCHEMA


class ConfigPath(msgspec.Struct, frozen=True):
    path: str
    schema: int = SCHEMA


class LibraryPath(msgspec.Struct, frozen=True):
    path: str
    schema: int = SCHEMA


class PolicyView(msgspec.Struct, frozen=True):
    name: str
    sentence: str
    chosen: bool  # by config.toml


class Policies(msgspec.Struct, frozen=True):
    policies: list[PolicyView]
    schema: int = SCHEMA


class ImportView(msgspec.Struct, frozen=True):
    source: str  # the script's path, or the number in task-spooler
    argv: list[str]  # the line of `gpq submit` that says the same; empty where it is refused
    notes: list[str]
    after: str  # the source that it waits for, "" for none
    refused: str  # why it is not queued, "" where it is or can be
    hint: str
    id: int | None  # of the job, or of the array, that was queued


class Imported(msgspec.Struct, frozen=True):
    """Answer of `gpq import slurm` and `gpq import ts`."""

    jobs: list[ImportView]
    schema: int = SCHEMA


class Targets(msgspec.Struct, frozen=True):
    """Answer of `gpq notify list`."""

    targets: dict[str, str]  # of config.toml: name and kind of service; no URL
    default: list[str]  # whom jobs tell that name nobody
    on: list[str]  # of what
    lines: int  # of the log's end that go along
    schema: int = SCHEMA


class SentView(msgspec.Struct, frozen=True):
    name: str
    sent: bool
    problem: str  # "" where it was sent


class Sent(msgspec.Struct, frozen=True):
    """Answer of `gpq notify test`."""

    targets: list[SentView]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Settings(FileConfig):
    """All settings that hold, defaults included, by the names that they have in config.toml."""

    schema: int = SCHEMA

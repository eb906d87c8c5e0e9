"""Answers with `--json` of the command line itself, when it does not pass on an answer of the
daemon. They are a public format, like those of the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from gpq.config import FileConfig

SCHEMA = 2


class Error(msgspec.Struct, frozen=True):
    """What a command prints when it fails. The exit code tells the kind (2 usage, 3 no daemon, 4
    not found, 5 refused, 124 timed out, 1 anything else)."""

    error: str  # the problem in one line
    hint: str  # what to do, may be empty


class CheckView(msgspec.Struct, frozen=True):
    name: str
    verdict: str  # "ok" | "warn" | "fail"
    message: str
    fix: str = ""  # "" if there is nothing to fix
    node: str = ""  # the server, "" for this machine or for several servers


class Checkup(msgspec.Struct, frozen=True):
    """Answer of `gpq doctor`."""

    checks: list[CheckView]
    schema: int = SCHEMA


class GpuCheckView(msgspec.Struct, frozen=True):
    node: str  # "" for this machine
    name: str
    verdict: str  # "PASS" | "FAIL" | "SKIP"
    figure: str  # the measurement, or why there is none
    seconds: float  # duration of the check
    fix: str  # what to do about a FAIL
    section: str = "A"  # always


class GpuReport(msgspec.Struct, frozen=True):
    """Answer of `gpq doctor --gpu`."""

    gpq: str  # version of gpq
    seconds: float  # duration of the whole report
    checks: list[GpuCheckView]
    schema: int = SCHEMA


class AddedNode(msgspec.Struct, frozen=True):
    name: str
    host: str
    host_key: str  # what happened with its host key
    python: str
    cores: int
    memory_mib: int
    driver: str
    problem: str  # problem with its GPUs
    notice: str  # note about its GPUs, although nothing is wrong
    devices: list[dict[str, Any]]
    address: str


class NodesAdded(msgspec.Struct, frozen=True):
    """Answer of `gpq nodes add`."""

    added: list[AddedNode]
    live: bool  # a daemon runs and uses them
    schema: int = SCHEMA


class NodeRemoved(msgspec.Struct, frozen=True):
    """Answer of `gpq nodes remove`."""

    removed: str
    live: bool  # a daemon runs and no longer uses it
    schema: int = SCHEMA


class ConfigChecked(msgspec.Struct, frozen=True):
    path: str
    exists: bool  # without a file the defaults apply
    ok: bool = True  # an invalid file is an error
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
    chosen: bool  # chosen in config.toml


class Policies(msgspec.Struct, frozen=True):
    policies: list[PolicyView]
    schema: int = SCHEMA


class ImportView(msgspec.Struct, frozen=True):
    source: str  # the script's path, or the number in task-spooler
    argv: list[str]  # words of the `gpq submit` command that does the same, empty if refused
    notes: list[str]
    after: str  # the source that it waits for, "" if none
    refused: str  # why it is not queued, "" if it is or can be
    hint: str
    id: int | None  # id of the queued job or array


class Imported(msgspec.Struct, frozen=True):
    """Answer of `gpq import slurm` and `gpq import ts`."""

    jobs: list[ImportView]
    schema: int = SCHEMA


class Targets(msgspec.Struct, frozen=True):
    """Answer of `gpq notify list`."""

    targets: dict[str, str]  # in config.toml: name and kind of service, without URLs
    default: list[str]  # targets of jobs that name none
    on: list[str]  # which news
    lines: int  # lines from the end of the log in a message
    schema: int = SCHEMA


class SentView(msgspec.Struct, frozen=True):
    name: str
    sent: bool
    problem: str  # "" if it was sent


class Sent(msgspec.Struct, frozen=True):
    """Answer of `gpq notify test`."""

    targets: list[SentView]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Settings(FileConfig):
    """All settings in use, defaults included, by their names in config.toml."""

    schema: int = SCHEMA

"""Reads and checks config.toml: its keys, their defaults, and errors with line and column. Never
writes it.

A flag beats the environment, the environment the file, the file the default. The daemon reads the
file when it starts.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gpq import decoding, paths
from gpq.config_rules import core_problems, problems
from gpq.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECK = "correct it, then run `gpq config check`"
KINDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text in quotes",
    "array": "a list in square brackets",
    "object": "a table",
}


# The comment of a field is its line in docs/configuration.md and in the JSON schema.


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`[nodes.NAME]`, one server. A local server without `slots` offers its GPUs. If it has none,
    it offers one CPU slot per core."""

    # `local` for this machine, `ssh` for a server that you reach by ssh
    connector: str = "local"
    # Offer this many CPU slots instead of GPUs. 0 means GPUs only, even if there are none
    slots: int | None = None
    cores: list[int] = field(default_factory=list)  # Cores that the CPU slots share. Empty: all
    # Lock each of these CPU slots as gpq locks GPUs: users who offer as many on the same cores take
    # turns
    lock: bool = False
    # Use only these GPUs, by UUID or index. Empty: all
    gpus: list[str] = field(default_factory=list)
    python: str = ""  # Python 3.8 or newer on the server, which runs gpq's agent
    # Python on the server that runs scripts, unless the job was submitted with `--python`
    script_python: str = ""
    # Where other servers reach this one. Empty: they try all its addresses
    address: str = ""
    # Network interface to train over, such as `ib0`. Empty: the one on which the servers reach each
    # other
    interface: str = ""
    # For ssh: `USER@HOST`, or a name of ~/.ssh/config, whose jump hosts, ports and keys apply
    host: str = ""
    port: int = 0  # For ssh: the port. 0: as ~/.ssh/config says
    identity: str = ""  # For ssh: the key file. Empty: as ~/.ssh/config says
    spool: str = ""  # For ssh: gpq's folder on the server. Empty: a folder in `~/.gpq/nodes`
    # For ssh: the command that starts ssh, such as `["ssh", "-F", "FILE"]`. Empty: `ssh`
    ssh: list[str] = field(default_factory=list)
    # Folder on the server for checkpoints and code. Name a disk with room, or one that servers
    # share. `$USER` is your login name there. Empty: next to the spools
    checkpoints: str = ""
    # MB/s that checkpoints may take on their way from or to the server. 0: no limit
    transfer_limit: float = 0.0
    # `uuid` or `index`: how CUDA_VISIBLE_DEVICES names the GPUs of a job
    visible: str = "uuid"
    # User of the server who owns it. gpq leaves when the owner uses a GPU or says `gpq yield`
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TeamConfig:
    """`[team]`: one queue with other users. An arbiter, which one of them runs, divides the
    GPUs between all. Each user's own daemon starts their jobs."""

    name: str = ""  # Name of the team. Empty: this daemon decides alone
    uid: int = 0  # User who runs the arbiter. gpq believes no other
    # Machine of the arbiter, if it is another one: `USER@HOST`, or a name of ~/.ssh/config
    arbiter: str = ""
    # While the arbiter is silent, jobs start on as many GPUs as are yours by right (`share`), or
    # wait (`wait`)
    without_arbiter: str = "share"
    private: bool = False  # Do not tell the arbiter the names of jobs


@dataclass(frozen=True, slots=True)
class FileConfig:
    """The whole file."""

    # Seconds between two rounds. A round also runs when a job or a GPU comes or goes
    interval: float = 60.0
    policy: str = "goodput"  # How gpq shares GPUs. `gpq config policies` lists the names
    # For `goodput`: 1 maximises the sum of speedups, 0 is proportional fairness, -1 the harmonic
    # mean
    fairness_power: float = 0.25
    restart_seconds: float = 30.0  # Cost of a restart in seconds, until a job has measured its own
    # Seconds that a job has to save before TERM and KILL, unless `gpq submit --grace` says
    # otherwise
    grace: float = 120.0
    # Seconds without contact after which a job ends itself, unless `gpq submit --requeue-on-lost`
    # says otherwise. 0: never. Otherwise at least 60
    requeue_on_lost: float = 0.0
    # Seconds that a job may leave a GPU unused before gpq reports it. After twice as long a job
    # that can be resized keeps only its minimum. 0: never
    idle_after: float = 1800.0
    setup_limit: float = 600.0  # Seconds that `gpq submit --setup` may take on a server
    settle_seconds: float = 15.0  # Seconds that gpq leaves a job alone after it has moved it
    # MiB to keep of the log of each attempt, from its head and its end. 0: everything
    log_limit: float = 1024.0
    # Days to keep a job after its end, such as `90d`: then its row, logs and checkpoints go from
    # all servers. Empty: for ever
    keep: str = ""
    # Servers keep an interpreter ready for scripts that gpq may resize, so that they restart in a
    # second. It takes up to 256 MB. `false`: none
    standby: bool = True
    # `gpq submit` names the variables that a job seems to use but does not get
    note_env: bool = True
    # `first`: `gpq submit` runs `gpq check` on a new version of a script that uses the training
    # library, unless you pass `--no-check`. Empty: only with `--check`
    check: str = ""
    seed: int = 0  # Random seed of the policies that search at random
    metrics: str = ""  # Serve Prometheus metrics on this `[ADDRESS:]PORT`. Empty: serve none
    # Run a round also when something happens. `false`: only every `interval` seconds
    events: bool = True
    # Share GPUs between users first, then between their jobs. `false`: between all jobs
    by_user: bool = True
    # Seconds that a user may be worse off than with a fair share of the GPUs alone. 0: none, at
    # most 86400
    floor_patience: float = 600.0
    # Beyond a user's fair share, jobs that gpq cannot stop get GPUs only if they end within this
    # many seconds. 0: never
    borrow_limit: float = 7200.0
    # By user: how much they count in fair shares, above 0 and at most 1000. All others count 1
    user_weights: dict[str, float] = field(default_factory=dict)
    # The team whose queue you share, written by `gpq join`
    team: TeamConfig = field(default_factory=TeamConfig)
    # The servers, one table each
    nodes: dict[str, NodeConfig] = field(default_factory=lambda: {"local": NodeConfig()})
    # Targets of notifications and their URLs, which may hold secrets
    notify: dict[str, object] = field(default_factory=dict, repr=False)
    # By script: habits that you know to be harmless, as for `gpq submit --accept`
    accept: dict[str, list[str]] = field(default_factory=dict)


def load(
    path: str | None = None, *, policies: Collection[str] | None = None, cores: Collection[int] = ()
) -> FileConfig:
    """The checked configuration, or the defaults if there is no file. Raises UsageError with line
    and column.

    `policies` are the known ones, `cores` those of this machine. Without them neither is checked.
    This floor knows no policy, and a submission from inside a job may have few cores.
    """
    path = path or paths.config()
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except FileNotFoundError:
        if os.environ.get("GPQ_CONFIG"):
            raise UsageError(
                f"no configuration file at {path}",
                "GPQ_CONFIG names it: correct or unset that variable",
            ) from None
        return FileConfig()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise UsageError(f"cannot read {path}: {reason}", "make it a readable UTF-8 file") from None
    return parse(text, path, policies=policies, cores=cores)


def fingerprint() -> str:
    """A digest of the file in use, which changes with its content. "" if it cannot be read."""
    try:
        with open(paths.config(), "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def parse(
    text: str,
    path: str = "config.toml",
    *,
    policies: Collection[str] | None = None,
    cores: Collection[int] = (),
) -> FileConfig:
    """Like `load`, but from the text. Raises UsageError."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {_plain(str(error))}", CHECK) from None
    try:
        config: FileConfig = decoding.convert(tree, FileConfig)
    except msgspec.ValidationError as error:
        raise _locate(str(error), tree, text, path) from None
    _check_keys(tree, text, path)
    if config.team.name:  # who shares servers takes turns on all of them
        nodes = {name: replace(node, lock=True) for name, node in config.nodes.items()}
        config = replace(config, nodes=nodes)
    for problem in problems(config):
        raise _error(problem.message, problem.keys, text, path, problem.hint)
    if policies is not None and config.policy not in policies:
        hint = f"choose {', '.join(policies)}. `gpq config policies` explains them"
        raise _error(f"unknown policy `{config.policy}`", ["policy"], text, path, hint)
    if cores:
        for problem in core_problems(config, cores):
            raise _error(problem.message, problem.keys, text, path, problem.hint)
    return config


def _locate(problem: str, tree: dict[str, Any], text: str, path: str) -> UsageError:
    """A validation message with the line of its key."""
    for table, kind in (("nodes", NodeConfig), ("user_weights", float)):
        if f"`$.{table}[...]" in problem:  # msgspec leaves out which one
            name = next(name for name, value in tree[table].items() if _is_wrong(value, kind))
            problem = problem.replace("[...]", f".{name}", 1)
    message, _, place = problem.partition(" - at `")
    keys = re.findall(r"[\w-]+", place)
    name = ".".join(keys) or "file"
    match = re.match(r"Expected `(\w+)", message)
    if match is not None and match.group(1) in KINDS:
        return _error(f"{name} must be {KINDS[match.group(1)]}", keys, text, path)
    return _error(f"{name}: {message}", keys, text, path)


def _is_wrong(value: object, kind: type) -> bool:
    try:
        decoding.convert(value, kind)
    except msgspec.ValidationError:
        return True
    return False


def _error(problem: str, keys: list[str], text: str, path: str, hint: str = "") -> UsageError:
    """`keys` lead to the value. The place is that of the last key, searched after the keys before
    it."""
    lines = text.splitlines()
    number, column, place = 0, 0, ""
    for key in keys:
        # a key, not a value with the same text
        key_pattern = re.compile(rf"(?<![\w-]){re.escape(key)}(?=[\"']?\s*[=.\]])")
        for index in range(number, len(lines)):
            match = key_pattern.search(lines[index], column if index == number else 0)
            if match and not lines[index].lstrip().startswith("#"):
                number, column = index, match.start()
                place = f" (at line {number + 1}, column {column + 1})"
                break
    return UsageError(f"{path}: {problem}{place}", hint or CHECK)


def _plain(message: str) -> str:
    """The message of the TOML reader without its Python notation."""
    duplicate = re.match(r"Cannot declare \((.*?),?\) twice", message)
    if duplicate is None:
        return message
    name = ".".join(re.findall("'([^']*)'", duplicate[1]))
    return f"[{name}] appears twice{message[duplicate.end() :]}"


def _check_keys(tree: dict[str, Any], text: str, path: str) -> None:
    tables: list[tuple[list[str], dict[str, Any], type[FileConfig | TeamConfig | NodeConfig]]] = [
        ([], tree, FileConfig),
        (["team"], tree.get("team", {}), TeamConfig),
        *((["nodes", name], node, NodeConfig) for name, node in tree.get("nodes", {}).items()),
    ]
    for keys, table, kind in tables:
        names = sorted(kind.__dataclass_fields__)
        unknown_keys = [key for key in table if key not in names]
        if unknown_keys:
            import difflib  # imported only for mistakes

            key, place = unknown_keys[0], f" in {'.'.join(keys)}" if keys else ""
            hint = f"known keys: {', '.join(names)}"
            neighbours = difflib.get_close_matches(key, names, n=2, cutoff=0.6)
            if neighbours:
                hint = f"did you mean {' or '.join(neighbours)}?"
            raise _error(f"unknown key `{key}`{place}", [*keys, key], text, path, hint)

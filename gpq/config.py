"""config.toml, checked: what may be in it, its defaults, and errors with line and column. Reads;
never writes.

Flag > environment > file > default. The daemon reads the file at its start.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpq import decoding, paths
from gpq.config_rules import core_problems, problems
from gpq.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECK = "correct it; `gpq config check` tries again"
KINDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a text in quotes",
    "array": "a list in square brackets",
    "object": "a table",
}


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`[nodes.NAME]`. A local node without `slots` offers its GPUs, or, where it has none, one CPU
    slot per core."""

    connector: str = "local"
    slots: int | None = None  # CPU slots; 0 = none, even without GPUs
    cores: list[int] = field(default_factory=list)  # empty = all
    gpus: list[str] = field(default_factory=list)  # UUIDs or indices to use; empty = all
    python: str = ""  # that runs gpq's agent there
    script_python: str = ""  # that runs scripts there, unless they were submitted with --python
    address: str = ""  # where other servers reach it; found by trying when empty
    # of the network to train over; the one on which the servers reach each other when empty
    interface: str = ""
    # this and what follows: of connector = "ssh". user@host, or a name of ~/.ssh/config
    host: str = ""
    port: int = 0  # 0 = as ~/.ssh/config says
    identity: str = ""  # key file; as ~/.ssh/config says when empty
    spool: str = ""  # folder there; ~/.gpq/nodes/... when empty
    ssh: list[str] = field(default_factory=list)  # how ssh is started, e.g. ["ssh", "-F", "file"]
    checkpoints: str = ""  # folder there for checkpoints and code; beside the spools when empty
    visible: str = "uuid"  # how CUDA_VISIBLE_DEVICES names the GPUs of a job, or "index"
    owner: str = ""  # user there to whom it belongs, and gets it back when they use it


@dataclass(frozen=True, slots=True)
class FileConfig:
    """The whole file."""

    interval: float = 60.0
    policy: str = "goodput"
    fairness_power: float = 0.25
    restart_seconds: float = 30.0
    grace: float = 120.0  # default of `gpq submit --grace`
    requeue_on_lost: float = 0.0  # default of `gpq submit --requeue-on-lost`, seconds; 0 = off
    idle_after: float = (
        # seconds that a job may not use a GPU of its until it is named, twice that to lose it; 0 =
        # off
        1800.0
    )
    setup_limit: float = 600.0  # seconds that a `gpq submit --setup` may take on a server
    settle_seconds: float = 15.0
    log_limit: float = 1024.0  # MiB of each attempt's log that are kept: head and end; 0 = all
    # `gpq submit` names variables that stay behind though the job seems to use them
    note_env: bool = True
    seed: int = 0  # of policies that search at random
    metrics: str = ""  # [ADDR:]PORT to serve Prometheus metrics on; "" = none are served
    events: bool = True  # a round also when something happens; off: by the timer alone
    # this and what follows: what `goodput` uses beyond Pollux (gpq.core.model.snapshot.Config)
    by_user: bool = True
    use_length: bool = True
    fairness_floor: bool = True
    use_priors: bool = True
    measured_restart: bool = True
    nodes: dict[str, NodeConfig] = field(default_factory=lambda: {"local": NodeConfig()})
    notify: dict[str, object] = field(default_factory=dict, repr=False)  # URLs may hold secrets
    # suspicions by script, as `gpq submit --accept`
    accept: dict[str, list[str]] = field(default_factory=dict)


def load(
    path: str | None = None, *, policies: Collection[str] = (), cores: Collection[int] = ()
) -> FileConfig:
    """The checked configuration; the defaults when there is no file. Raises UsageError naming line
    and column.

    `policies` are those that there are, `cores` those of this machine; without them neither is
    checked (this floor knows no policy, and what is submitted from inside a job may use few cores).
    """
    path = path or paths.config()
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except FileNotFoundError:
        if os.environ.get("GPQ_CONFIG"):
            raise UsageError(
                f"no configuration file at {path}", "GPQ_CONFIG names it: correct or unset it"
            ) from None
        return FileConfig()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {path}: {reason}", "make it a readable UTF-8 file") from None
    return parse(text, path, policies=policies, cores=cores)


def fingerprint() -> str:
    """Of the file in use: another one once its content is another; "" where there is none that can
    be read."""
    try:
        with open(paths.config(), "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def parse(
    text: str,
    path: str = "config.toml",
    *,
    policies: Collection[str] = (),
    cores: Collection[int] = (),
) -> FileConfig:
    """As `load`, from the text. Raises UsageError."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {_plain(str(error))}", CHECK) from None
    try:
        config: FileConfig = decoding.convert(tree, FileConfig)
    except msgspec.ValidationError as error:
        raise _located(str(error), tree, text, path) from None
    _check_keys(tree, text, path)
    for problem in problems(config):
        raise _error(problem.message, problem.keys, text, path, problem.hint)
    if policies and config.policy not in policies:
        hint = f"known are {', '.join(policies)}; `gpq config policies` says what they do"
        raise _error(f"unknown policy `{config.policy}`", ["policy"], text, path, hint)
    if cores:
        for problem in core_problems(config, cores):
            raise _error(problem.message, problem.keys, text, path, problem.hint)
    return config


def _located(problem: str, tree: dict[str, Any], text: str, path: str) -> UsageError:
    """A validation message with the line of the key it is about."""
    if "`$.nodes[...]" in problem:  # which of them is left out there
        node_name = next(name for name, node in tree["nodes"].items() if _is_wrong(node))
        problem = problem.replace("[...]", f".{node_name}", 1)
    keys: list[str] = []
    if location := re.search(r"at `\$\.?([^`]*)`", problem):
        keys = re.findall(r"[A-Za-z0-9_-]+", location.group(1))
    name = ".".join(keys) or "file"
    message = problem.split(" - at `")[0]
    match = re.match(r"Expected `(\w+)", message)
    if match is not None and match.group(1) in KINDS:
        return _error(f"{name} must be {KINDS[match.group(1)]}", keys, text, path)
    return _error(f"{name}: {message}", keys, text, path)


def _is_wrong(node: object) -> bool:
    try:
        decoding.convert(node, NodeConfig)
    except msgspec.ValidationError:
        return True
    return False


def _error(problem: str, keys: list[str], text: str, path: str, hint: str = "") -> UsageError:
    """`keys` lead to the value: the place is that of the last one, looked for behind those before
    it."""
    lines = text.splitlines()
    number, column, place = 0, 0, ""
    for key in keys:
        # a key, not a value that says the same
        key_pattern = re.compile(rf"(?<![\w-]){re.escape(key)}(?=[\"']?\s*[=.\]])")
        for index in range(number, len(lines)):
            match = key_pattern.search(lines[index], column if index == number else 0)
            if match and not lines[index].lstrip().startswith("#"):
                number, column = index, match.start()
                place = f" (at line {number + 1}, column {column + 1})"
                break
    return UsageError(f"{path}: {problem}{place}", hint or CHECK)


def _plain(message: str) -> str:
    """What the reader of TOML says, without the Python in it."""
    duplicate = re.match(r"Cannot declare \((.*?),?\) twice", message)
    if duplicate is None:
        return message
    name = ".".join(re.findall("'([^']*)'", duplicate[1]))
    return f"[{name}] is there twice{message[duplicate.end() :]}"


def _check_keys(tree: dict[str, Any], text: str, path: str) -> None:
    names = set(FileConfig.__dataclass_fields__)
    for key in tree:
        if key not in names:
            raise _error(f"unknown key `{key}`", [key], text, path, _near(key, names))
    names = set(NodeConfig.__dataclass_fields__)
    for name, node in tree.get("nodes", {}).items():
        for key in node:
            if key not in names:
                raise _error(
                    f"unknown key `{key}` in nodes.{name}",
                    ["nodes", name, key],
                    text,
                    path,
                    _near(key, names),
                )


def _near(key: str, names: Collection[str]) -> str:
    """The keys that look like it, or else all."""
    import difflib  # only mistakes pay for it

    neighbours = difflib.get_close_matches(key, sorted(names), n=2, cutoff=0.6)
    if neighbours:
        return f"did you mean {' or '.join(neighbours)}?"
    return f"known are {', '.join(sorted(names))}"

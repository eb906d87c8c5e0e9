"""Rules for the values of config.toml. Each broken rule is a problem with a hint.

Knows no file. `config` finds the place of a problem in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gpq import outward
from gpq.errors import UsageError

if TYPE_CHECKING:
    from gpq.config import FileConfig, NodeConfig, TeamConfig

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
USER_NAME = re.compile(r"[^\s/:]{1,64}")
TEAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")  # a name, an IPv4 or an IPv6 address
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
# never starts with a dash
HOST = re.compile(rf"(?:[A-Za-z0-9_][A-Za-z0-9._-]{{0,63}}@)?(?:{ADDRESS.pattern})")
# Key of a server -> how its value must look, the problem, and a hint.
PATTERNS: dict[str, tuple[str | re.Pattern[str], str, str]] = {
    "script_python": (
        "/.*",
        "must start with /",
        "give the full path of a Python interpreter on that server",
    ),
    "address": (
        ADDRESS,
        "`{}` is not an address",
        "give a host name or an IP address that other servers can reach",
    ),
    "interface": (
        INTERFACE,
        "`{}` is not a network interface",
        "give a name that `ip link` shows, such as eth0",
    ),
    "checkpoints": (
        "~?/.*",
        "must start with / or ~/",
        "it is a folder on the server",
    ),
    "owner": (USER_NAME, "is not a user name", "`id -un` prints it on the server"),
}
CODE_OF_HABIT = re.compile(r"[a-z]+(-[a-z]+)*")
POSITIVE = ("interval", "restart_seconds", "grace", "setup_limit")
# Key -> its range, its unit and a hint. 0 turns it off.
OFF_OR_BETWEEN = {
    "requeue_on_lost": (60, 30 * 86400, "s", "a shorter silence is often only a slow network"),
    "log_limit": (1, 1 << 20, "MiB", ""),
    "idle_after": (10, 30 * 86400, "s", ""),
}
BETWEEN = {  # key -> its range and its unit
    "fairness_power": (-10, 1, ""),
    "floor_patience": (0, 86400, " s"),
    "borrow_limit": (0, 30 * 86400, " s"),
}
MOST_WEIGHT = 1000
KEEP = re.compile(r"[1-9][0-9]{0,4}d")


def is_address(address: str, port: int) -> bool:
    """Is it a host without a user, as in config.toml, and a port, or 0?"""
    return bool(ADDRESS.fullmatch(address)) and 0 <= port <= 65535


class Problem(NamedTuple):
    """`keys`: the way to its value, from the outermost table."""

    keys: list[str]
    message: str
    hint: str = ""


def problems(config: FileConfig) -> Iterator[Problem]:
    """In the order in which to fix them."""
    for key in POSITIVE:
        if not getattr(config, key) > 0:
            yield Problem([key], f"{key} must be above 0")
    for key, (least, most, unit, hint) in OFF_OR_BETWEEN.items():
        value = getattr(config, key)
        if value and not least <= value <= most:
            message = f"{key} must be 0 (off) or between {least} and {most} {unit}"
            yield Problem([key], message, hint)
    for key, (lowest, highest, suffix) in BETWEEN.items():
        if not lowest <= getattr(config, key) <= highest:
            yield Problem([key], f"{key} must be between {lowest} and {highest}{suffix}")
    yield from _weight_problems(config.user_weights)
    yield from _team_problems(config.team)
    yield from _lock_problems(config.nodes)
    if config.check not in ("", "first"):
        hint = 'write check = "first", or remove the key to check only with `gpq submit --check`'
        yield Problem(["check"], f"unknown check `{config.check}`", hint)
    if config.keep and not KEEP.fullmatch(config.keep):
        problem = f"keep: `{config.keep}` is not a number of days"
        yield Problem(["keep"], problem, 'write keep = "90d"')
    if config.seed < 0:
        yield Problem(["seed"], "seed must be 0 or above")
    yield from _outward_problems(config)
    if not config.nodes:
        yield Problem(["nodes"], "no server is configured", "add a table such as [nodes.local]")
    for name, node in config.nodes.items():
        yield from _node_problems(name, node)


def _weight_problems(weights: Mapping[str, float]) -> Iterator[Problem]:
    for user, weight in weights.items():
        if not USER_NAME.fullmatch(user):
            hint = "`gpq status --json` has the user of each job"
            yield Problem(["user_weights", user], f"user_weights: `{user}` is not a user", hint)
        if not 0 < weight <= MOST_WEIGHT:
            message = f"user_weights.{user} must be above 0 and at most {MOST_WEIGHT}"
            yield Problem(["user_weights", user], message)


def _team_problems(team: TeamConfig) -> Iterator[Problem]:
    if team.name and not TEAM_NAME.fullmatch(team.name):
        hint = "use letters, digits, dash and underscore"
        yield Problem(["team", "name"], f"team.name: `{team.name}` is not a name", hint)
    if not 0 <= team.uid < 1 << 32:
        yield Problem(["team", "uid"], "team.uid is not a user id", "`id -u` prints it")
    if team.arbiter and not HOST.fullmatch(team.arbiter):
        hint = "give USER@HOST, or a name of ~/.ssh/config"
        yield Problem(["team", "arbiter"], f"team.arbiter: `{team.arbiter}` is not a host", hint)
    if team.without_arbiter not in ("share", "wait"):
        yield Problem(["team", "without_arbiter"], "team.without_arbiter must be share or wait")


def _lock_problems(nodes: Mapping[str, NodeConfig]) -> Iterator[Problem]:
    """Locked slots on the same cores are the same slots."""
    slots: dict[tuple[object, ...], str] = {}
    for name, node in nodes.items():
        if node.connector == "local" and node.lock and node.slots:
            twin = slots.setdefault((node.slots, *sorted(node.cores)), name)
            if twin != name:
                message = f"nodes.{name} offers the same locked CPU slots as nodes.{twin}"
                yield Problem(["nodes", name], message, "give each of them `cores` of its own")


def _outward_problems(config: FileConfig) -> Iterator[Problem]:
    if config.metrics:
        try:
            outward.address(config.metrics)
        except UsageError as error:
            yield Problem(["metrics"], f"metrics: {error.message}", error.hint)
    for program, codes in config.accept.items():
        if not all(CODE_OF_HABIT.fullmatch(code) for code in codes):
            hint = "`gpq show` prints the codes, such as own-next"
            yield Problem(
                ["accept", program], f"invalid accept.{program}: expected codes of habits", hint
            )
    for key, message, hint in outward.notify_problems(config.notify):
        yield Problem(["notify", key], message, hint)


def core_problems(config: FileConfig, cores: Collection[int]) -> Iterator[Problem]:
    """`cores`: those of this machine that gpq may use."""
    for name, node in config.nodes.items():
        keys = ["nodes", name, "cores"]
        if len(set(node.cores)) < len(node.cores):
            yield Problem(keys, f"nodes.{name}.cores names a core twice")
        missing = [str(core) for core in node.cores if core not in cores]
        if missing and node.connector == "local":  # other machines have cores of their own
            message = f"nodes.{name}.cores: gpq may not use core {', '.join(missing)} here"
            usable = ", ".join(map(str, sorted(cores)))
            yield Problem(keys, message, f"it may use {usable}")


def _node_problems(name: str, node: NodeConfig) -> Iterator[Problem]:
    if not NODE_NAME.fullmatch(name):
        hint = "use letters, digits, dot, dash and underscore"
        yield Problem([name], f"invalid server name `{name}`", hint)
    if node.connector not in ("local", "ssh"):
        message = f"unknown connector `{node.connector}`"
        yield Problem(["nodes", name, "connector"], message, "choose local or ssh")
    for key, message, hint in _key_problems(node):
        yield Problem(["nodes", name, key], f"nodes.{name}.{key} {message}", hint)


def _key_problems(node: NodeConfig) -> Iterator[tuple[str, str, str]]:
    """(key, problem, hint)."""
    yield from _ssh_problems(node)
    for key, (pattern, problem, hint) in PATTERNS.items():
        value = getattr(node, key)
        if value and not (re.fullmatch(pattern, value) and value.isprintable()):
            yield key, problem.format(value), hint
    if not 0 <= node.transfer_limit < 1e6:
        yield "transfer_limit", "must be 0 (off) or above, in MB/s", ""
    if node.visible not in ("uuid", "index"):
        yield "visible", "must be `uuid` or `index`", ""
    if node.slots is not None and not 0 <= node.slots <= 1024:
        yield "slots", "must be between 0 and 1024", ""


def _ssh_problems(node: NodeConfig) -> Iterator[tuple[str, str, str]]:
    if node.connector != "ssh":
        hint = 'add connector = "ssh", or remove this key'
        for key in ("host", "port", "identity", "spool", "ssh"):
            if getattr(node, key):
                yield key, 'is only for connector = "ssh"', hint
        return
    if not node.host:
        hint = 'add host = "user@server", or a name of ~/.ssh/config'
        yield "connector", 'is "ssh", but there is no host', hint
    elif not HOST.fullmatch(node.host):
        yield "host", f"`{node.host}` is not a host", "give USER@HOST, or a name of ~/.ssh/config"
    if not 0 <= node.port <= 65535:
        yield "port", "must be between 1 and 65535", ""
    for key in ("identity", "spool", "python"):
        value = getattr(node, key)
        if value.startswith("-") or not value.isprintable():
            yield key, "is not a path", "a path has no dash in front and no control characters"
    if node.spool and not node.spool.startswith(("/", "~/")):
        yield "spool", "must start with / or ~/", "it is a folder on the server"
    if not all(word and word.isprintable() for word in node.ssh):
        hint = 'for example ssh = ["ssh", "-F", "/path/to/a/config"]'
        yield "ssh", "must be a command and its options", hint

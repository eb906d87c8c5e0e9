"""A start order from the daemon: checks every field, and what the order needs on this server."""

import errno
import os
import re
import shutil
import signal
import stat
import time
from typing import Any, Dict, Iterable, List, Optional, Tuple, Type

from gpq_agent import wire
from gpq_agent.node.host import attributes, network, with_timeout
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim.leases import STORE, age
from gpq_agent.node.spool.checkpoint_folder import HASH

NAME = re.compile(r"[0-9a-f]{0,64}")  # of an environment, and of its folder
LEVELS = ("black-box", "signal", "resizable", "adaptive")


def parse_order(message: Any) -> wire.StartOrder:
    """Parse a StartOrder from the wire. Raises SpoolError that names the first invalid field."""
    if not isinstance(message, dict):
        raise SpoolError("a start needs an order", 'send {"order": {...}}')
    order: wire.StartOrder = parse(wire.StartOrder, message)
    ranks, devices, margin = order.ranks, order.devices, order.lease_margin
    is_below = not os.path.isabs(order.cwd) and ".." not in order.cwd.split("/")
    checks: List[Tuple[str, Any]] = [
        ("job", order.job >= 0),
        ("attempt", order.attempt >= 1),
        ("argv", order.argv and order.argv[0] != ""),
        ("code", not order.code or HASH.fullmatch(order.code)),
        ("cwd", is_below if order.code else os.path.isabs(order.cwd)),
        ("env", is_env(order.env)),
        ("devices", devices and len(set(devices)) == len(devices)),
        ("level", order.level in LEVELS),
        ("environment", NAME.fullmatch(order.environment)),
        ("setup", order.environment or not order.setup),
        ("signal", signal_number(order.signal) is not None),
        ("port", 0 <= order.port < 65536),
        ("node_rank", order.node_rank >= 0),
        ("node_count", 0 <= order.node_count <= 1024),
        ("masters", order.port or not order.masters),
        ("secret", order.secret or not order.masters),
        ("standby_after", 0 <= (order.standby_after or 0) < 1e9),
        ("ranks", len(set(ranks)) == len(ranks) in (0, len(devices))),
        ("ranks", min(ranks, default=0) >= 0),
        ("lease", 0 <= order.lease < 1e9 and (not order.lease or order.stamp is not None)),
        ("lease_margin", 0 <= margin < 1e9 and (margin > 0 or not order.lease)),
        ("log_limit", order.log_limit >= 0),
        ("attributes", attributes.is_right(order.attributes)),
        ("store", not order.lease or STORE.fullmatch(order.store)),
        ("console", order.console in wire.CONSOLES and not (order.console and ranks)),
    ]
    require(order, checks)
    return order


def parse(kind: Type[Any], message: Dict[str, Any]) -> Any:
    """Make the NamedTuple `kind` of a message. Raises SpoolError if a field is missing, or is not
    of its type or one that a system call accepts."""
    try:
        order = kind(**{name: value for name, value in message.items() if name in kind._fields})
    except TypeError as error:
        raise SpoolError("the order is incomplete: {}".format(error)) from error
    content = order._asdict()
    misfits = wire.misfits(kind, content)
    require(
        order,
        [(name, name not in misfits and not _has_nul(value)) for name, value in content.items()],
    )
    return order


def require(order: Any, checks: Iterable[Tuple[str, Any]]) -> None:
    """`checks`: (field, is its value valid?). Raises SpoolError that names the first field that is
    not."""
    for name, is_right in checks:
        if not is_right:
            raise SpoolError("invalid {} in the order: {!r}".format(name, getattr(order, name)))


def _has_nul(value: Any) -> bool:
    """Has any text in it a character that no system call accepts?"""
    if isinstance(value, str):
        return "\0" in value
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return isinstance(items, list) and any(map(_has_nul, items))


def is_env(env: Dict[str, str]) -> bool:
    """Can these be the variables of a process?"""
    return not any(name == "" or "=" in name for name in env)


def signal_number(name: str) -> Optional[int]:
    """10 for "USR1" or "SIGUSR1", None if it is not a signal."""
    name = name if name.startswith("SIG") else "SIG" + name
    try:
        return int(signal.Signals[name])
    except KeyError:
        return None


def check_startable(order: wire.StartOrder, environment: Dict[str, str]) -> None:
    """Check everything about an order that can fail before anything runs. Raises SpoolError."""
    seconds_late = lateness(order)
    if seconds_late >= 0:
        problem = (
            "comes from an earlier boot"
            if seconds_late == float("inf")
            else "expired {:.1f} s ago".format(seconds_late)
        )
        hint = "it arrived too late: send a new one"
        raise SpoolError("the start order {}".format(problem), hint, "expired")
    with_timeout.check(order.cwd, lambda: _check_places(order, environment))
    if order.interface and order.masters:
        names = sorted({interface.name for interface in network.interfaces()})
        if order.interface not in names:
            problem = "no interface {} on this server".format(order.interface)
            hint = "it has {}: correct `interface` of this server in config.toml"
            raise SpoolError(problem, hint.format(", ".join(names)), "busy")


def _check_places(order: wire.StartOrder, environment: Dict[str, str]) -> None:
    """Check what lies on file systems that may not answer."""
    unfit = "unfit" if order.environment else "wrong"
    problem = folder_problem(order.cwd)
    if problem is not None:
        raise SpoolError(*problem, kind=unfit)
    try:
        check_command(order.argv[0], order.cwd, environment.get("PATH", os.defpath))
    except SpoolError as error:
        # argv[0] of a script is an interpreter, not the job's own.
        if order.environment and order.level in ("resizable", "adaptive"):
            raise SpoolError(error.message, error.hint, unfit) from None
        raise
    try:
        os.makedirs(environment[wire.ENV_CHECKPOINT_DIR], mode=0o700, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> SpoolError:
    """The refusal of a start that could not record anything."""
    hint = "free space on this server, or give it another --spool"
    return SpoolError("cannot write to the spool: {}".format(error), hint, "busy")


def lateness(order: wire.StartOrder) -> float:
    """Seconds since the order expired, below 0 before. Infinite for an order of an earlier boot."""
    if order.stamp is None:
        return time.time() - order.expires_at if order.expires_at is not None else float("-inf")
    return age(order) - wire.START_EXPIRY


def folder_problem(path: str) -> Optional[Tuple[str, str]]:
    """Why nothing can start in a folder, and what to do. None if it can."""
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            problem = "cannot use the folder {} on this server: {}".format(path, error.strerror)
            return problem, "check its file system"
        is_folder = False
    if not is_folder:
        hint = "create it there, or use a file system that the servers share"
        return "no folder {}".format(path), hint
    if not os.access(path, os.X_OK):
        return "cannot enter the folder {}".format(path), "check its permissions there"
    return None


def missing_paths(order: wire.StartOrder) -> List[str]:
    """Variables with a path that this server lacks, or cannot look at in time."""
    paths = {name: order.env[name] for name in ["TMPDIR", *order.paths] if name in order.env}

    def look() -> None:
        missing = [name for name, path in paths.items() if not os.path.exists(path)]
        if missing:
            raise SpoolError(" ".join(missing), kind="missing")

    try:
        if paths:
            with_timeout.check(" ".join(paths.values()), look)
    except SpoolError as error:
        return error.message.split() if error.kind == "missing" else list(paths)
    return []


def check_command(command: str, cwd: str, path: str) -> None:
    if "/" in command:
        full_path = os.path.join(cwd, command)
        if not os.path.exists(full_path):
            words = "no command {} on this server".format(full_path)
            raise SpoolError(words, "check the path, or give the full path", "not-found")
        if os.path.isdir(full_path) or not os.access(full_path, os.X_OK):
            hint = "run chmod +x on it, or put its interpreter first"
            raise SpoolError("{} is not executable".format(full_path), hint, "not-executable")
    elif shutil.which(command, path=path) is None:
        problem = "no command {} in PATH on this server".format(command)
        raise SpoolError(problem, "give its full path", "not-found")

"""A start order from the daemon: checks every field, and what the order needs on this server."""

import errno
import os
import re
import shutil
import signal
import stat
import time
from typing import Any, Dict, List, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.host import attributes, network, with_timeout
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim.leases import STORE, age
from gpq_agent.node.spool.checkpoint_folder import HASH

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # the exit codes of every shell
NAME = re.compile(r"[0-9a-f]{0,64}")  # of an environment, and of its folder
LEVELS = ("black-box", "signal", "resizable", "adaptive")


def parse_order(message: Any) -> wire.StartOrder:
    """Parse a StartOrder from the wire. Raises SpoolError that names the first invalid field."""
    if not isinstance(message, dict):
        raise SpoolError("a start needs an order", 'send {"order": {...}}')
    fields = {name: value for name, value in message.items() if name in wire.StartOrder._fields}
    try:
        order = wire.StartOrder(**fields)
    except TypeError as error:
        raise SpoolError("the order is incomplete: {}".format(error)) from error
    for name, is_right in _checks(order):
        if not is_right:
            raise SpoolError("invalid {} in the order: {!r}".format(name, getattr(order, name)))
    return order


def _checks(order: Any) -> List[Tuple[str, Any]]:
    """(field, is it valid?), in the order of reporting."""
    store = order.store
    return [
        ("job", is_number(order.job) and order.job >= 0),
        ("attempt", is_number(order.attempt) and order.attempt >= 1),
        *_command_checks(order),
        ("devices", are_texts(order.devices) and bool(order.devices)),
        ("devices", len(set(order.devices)) == len(order.devices)),
        ("level", order.level in LEVELS),
        *_setup_checks(order),
        ("signal", signal_number(order.signal) is not None),
        *_server_checks(order),
        ("control", order.control is None or isinstance(order.control, dict)),
        *_lease_checks(order),
        ("log_limit", is_number(order.log_limit) and order.log_limit >= 0),
        ("done_file", is_text(order.done_file)),
        ("attributes", attributes.is_right(order.attributes)),
        ("shortfall", is_text(order.shortfall)),
        ("fresh", isinstance(order.fresh, bool)),
        ("store", isinstance(store, str) and (not order.lease or STORE.fullmatch(store))),
    ]


def _command_checks(order: Any) -> List[Tuple[str, Any]]:
    argv = order.argv
    return [
        ("argv", are_texts(argv) and bool(argv) and argv[0] != ""),
        ("code", isinstance(order.code, str) and (not order.code or HASH.fullmatch(order.code))),
        ("cwd", is_text(order.cwd) and _is_place(order.cwd, bool(order.code))),
        ("env", is_env(order.env)),
        ("paths", are_texts(order.paths)),
        ("stdin", is_text(order.stdin)),
    ]


def _setup_checks(order: Any) -> List[Tuple[str, Any]]:
    environment = order.environment
    return [
        ("environment", isinstance(environment, str) and bool(NAME.fullmatch(environment))),
        ("setup", isinstance(order.setup, bool) and (bool(environment) or not order.setup)),
        ("any_python", isinstance(order.any_python, bool)),
    ]


def _server_checks(order: Any) -> List[Tuple[str, Any]]:
    return [
        ("port", is_number(order.port) and 0 <= order.port < 65536),
        ("node_rank", is_number(order.node_rank) and order.node_rank >= 0),
        ("node_count", is_number(order.node_count) and 0 <= order.node_count <= 1024),
        ("masters", are_texts(order.masters) and bool(order.port or not order.masters)),
        ("secret", is_text(order.secret) and bool(order.secret or not order.masters)),
        ("servers", are_texts(order.servers)),
        ("standby_after", order.standby_after is None or _is_seconds(order.standby_after)),
        ("ranks", _are_ranks(order.ranks, len(order.devices))),
        ("interface", is_text(order.interface)),
    ]


def _are_ranks(ranks: Any, devices: int) -> bool:
    """Is it one rank for each device, or none at all?"""
    return (
        isinstance(ranks, list)
        and all(is_number(rank) and rank >= 0 for rank in ranks)
        and len(set(ranks)) == len(ranks) in (0, devices)
    )


def _lease_checks(order: Any) -> List[Tuple[str, Any]]:
    lease, margin, stamp = order.lease, order.lease_margin, order.stamp
    return [
        ("expires_at", order.expires_at is None or isinstance(order.expires_at, (int, float))),
        ("stamp", stamp is None or isinstance(stamp, (int, float))),
        ("boot_id", is_text(order.boot_id)),
        ("lease", _is_seconds(lease) and (not lease or stamp is not None)),
        ("lease_margin", _is_seconds(margin) and (not lease or margin > 0)),
    ]


def is_text(value: Any) -> bool:
    """Is it a string that a system call accepts?"""
    return isinstance(value, str) and "\0" not in value


def are_texts(value: Any) -> bool:
    """Is it a list of such strings?"""
    return isinstance(value, list) and all(map(is_text, value))


def is_number(value: Any) -> bool:
    """Is it an integer, and not a bool?"""
    return isinstance(value, int) and not isinstance(value, bool)


def is_env(value: Any) -> bool:
    """Is it a dictionary of variables?"""
    return isinstance(value, dict) and all(
        is_text(name) and is_text(text) and name != "" and "=" not in name
        for name, text in value.items()
    )


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


def _is_place(cwd: str, is_in_code: bool) -> bool:
    """Is it inside its code, or else a full path?"""
    is_inside = not os.path.isabs(cwd) and ".." not in cwd.split("/")
    return is_inside if is_in_code else os.path.isabs(cwd)


def signal_number(name: Any) -> Optional[int]:
    """10 for "USR1" or "SIGUSR1", None if it is not a signal."""
    if not isinstance(name, str):
        return None
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
        _check_interface(order.interface)


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
        return "no folder {}".format(
            path
        ), "create it there, or use a file system that the servers share"
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


def _check_interface(name: str) -> None:
    names = sorted({interface.name for interface in network.interfaces()})
    if name not in names:
        hint = "it has {}: correct `interface` of this server in config.toml".format(
            ", ".join(names)
        )
        raise SpoolError("no interface {} on this server".format(name), hint, "busy")

"""What a job is started with: its order checked, its environment, and the last steps before exec in
the child."""

import contextlib
import errno
import os
import re
import shutil
import signal
import socket
import stat
import time
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from gpq_agent import wire
from gpq_agent.node.devices import gpu_names
from gpq_agent.node.host import attributes, login, network, with_timeout
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import completion_evidence, rendezvous
from gpq_agent.node.shim.leases import STORE, age
from gpq_agent.node.spool.checkpoint_folder import HASH
from gpq_agent.node.spool.spool import Spool

THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as every shell says it
NAME = re.compile(r"[0-9a-f]{0,64}")  # of an environment; also of its folder
MASTER = "--master-addr="  # an option of the launcher
LEVELS = ("black-box", "signal", "resizable", "adaptive")


def parse_order(message: Any) -> wire.StartOrder:
    """A StartOrder from what came over the wire. Raises SpoolError naming the first field that is
    wrong."""
    if not isinstance(message, dict):
        raise SpoolError("a start needs an order", 'send {"order": {...}}')
    known = {name: value for name, value in message.items() if name in wire.StartOrder._fields}
    try:
        order = wire.StartOrder(**known)
    except TypeError as error:
        raise SpoolError("the order is not complete: {}".format(error)) from error
    for name, good in _checks(order):
        if not good:
            raise SpoolError("the order's {} is wrong: {!r}".format(name, getattr(order, name)))
    return order


def _checks(order: Any) -> List[Tuple[str, bool]]:
    def text(value: Any) -> bool:
        return isinstance(value, str) and "\0" not in value

    def number(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def seconds(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9

    env = order.env
    return [
        ("job", number(order.job) and order.job >= 0),
        ("attempt", number(order.attempt) and order.attempt >= 1),
        (
            "argv",
            isinstance(order.argv, list)
            and bool(order.argv)
            and all(map(text, order.argv))
            and order.argv[0] != "",
        ),
        (
            "code",
            isinstance(order.code, str) and (not order.code or bool(HASH.fullmatch(order.code))),
        ),
        (
            "cwd",
            text(order.cwd)
            and (_stays_inside(order.cwd) if order.code else os.path.isabs(order.cwd)),
        ),
        (
            "env",
            isinstance(env, dict)
            and all(text(k) and text(v) and k and "=" not in k for k, v in env.items()),
        ),
        (
            "devices",
            isinstance(order.devices, list)
            and all(map(text, order.devices))
            and bool(order.devices),
        ),
        ("devices", len(set(order.devices)) == len(order.devices)),
        ("level", order.level in LEVELS),
        (
            "environment",
            isinstance(order.environment, str) and bool(NAME.fullmatch(order.environment)),
        ),
        ("setup", isinstance(order.setup, bool) and (bool(order.environment) or not order.setup)),
        ("any_python", isinstance(order.any_python, bool)),
        ("signal", signal_number(order.signal) is not None),
        ("port", number(order.port) and 0 <= order.port < 65536),
        ("node_rank", number(order.node_rank) and order.node_rank >= 0),
        ("node_count", number(order.node_count) and 0 <= order.node_count <= 1024),
        (
            "masters",
            isinstance(order.masters, list)
            and all(map(text, order.masters))
            and bool(order.port or not order.masters),
        ),
        ("servers", isinstance(order.servers, list) and all(map(text, order.servers))),
        ("interface", text(order.interface)),
        ("control", order.control is None or isinstance(order.control, dict)),
        ("expires_at", order.expires_at is None or isinstance(order.expires_at, (int, float))),
        ("stamp", order.stamp is None or isinstance(order.stamp, (int, float))),
        ("boot_id", text(order.boot_id)),
        ("lease", seconds(order.lease) and (not order.lease or order.stamp is not None)),
        (
            "lease_margin",
            seconds(order.lease_margin) and (not order.lease or order.lease_margin > 0),
        ),
        ("log_limit", number(order.log_limit) and order.log_limit >= 0),
        ("done_file", text(order.done_file)),
        ("attributes", attributes.is_right(order.attributes)),
        ("shortfall", text(order.shortfall)),
        (
            "store",
            isinstance(order.store, str)
            and (not order.lease or bool(STORE.fullmatch(order.store))),
        ),
    ]


def _stays_inside(path: str) -> bool:
    return not os.path.isabs(path) and ".." not in path.split("/")


def signal_number(name: Any) -> Optional[int]:
    """10 for "USR1" or "SIGUSR1", None for what is no signal."""
    if not isinstance(name, str):
        return None
    name = name if name.startswith("SIG") else "SIG" + name
    try:
        return int(signal.Signals[name])
    except KeyError:
        return None


def check_startable(order: wire.StartOrder, environment: Dict[str, str]) -> None:
    """Everything about an order that can be known to fail before anything runs. Raises
    SpoolError."""
    late = lateness(order)
    if late >= 0:
        told = (
            "is of an earlier boot" if late == float("inf") else "expired {:.1f} s ago".format(late)
        )
        hint = "it was delayed on its way; ask for a new one"
        raise SpoolError("the start order {}".format(told), hint, "expired")
    with_timeout.check(order.cwd, lambda: _check_places(order, environment))
    if order.port and order.node_rank == 0:
        _check_port(order.port)
    if order.interface and order.masters:
        _check_interface(order.interface)


def _check_places(order: wire.StartOrder, environment: Dict[str, str]) -> None:
    """What lies on file systems that may not answer."""
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
    """The refusal of a start that would leave nothing."""
    hint = "free space on this server, or give it another --spool"
    return SpoolError("the spool cannot be written: {}".format(error), hint, "busy")


def lateness(order: wire.StartOrder) -> float:
    """Seconds since the order expired, below 0 before; infinite for one of an earlier boot."""
    if order.stamp is None:
        return time.time() - order.expires_at if order.expires_at is not None else float("-inf")
    return age(order) - wire.START_EXPIRY


def folder_problem(path: str) -> Optional[Tuple[str, str]]:
    """Why nothing can be started in a folder, and what to do about it; None where it can."""
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            told = "the folder {} cannot be used on this server: {}".format(path, error.strerror)
            return told, "check the file system that it is on"
        is_folder = False
    if not is_folder:
        return "no folder {}".format(
            path
        ), "make it there, or use a file system that the servers share"
    if not os.access(path, os.X_OK):
        return "the folder {} cannot be entered".format(path), "check its permissions there"
    return None


def check_command(command: str, cwd: str, path: str) -> None:
    if "/" in command:
        full = os.path.join(cwd, command)
        if not os.path.exists(full):
            raise SpoolError(
                "no command {} on this server".format(full),
                "check the path, or give it in full",
                "not-found",
            )
        if os.path.isdir(full) or not os.access(full, os.X_OK):
            hint = "chmod +x it, or name its interpreter first"
            raise SpoolError("{} cannot be executed".format(full), hint, "not-executable")
    elif shutil.which(command, path=path) is None:
        raise SpoolError(
            "no command {} in PATH on this server".format(command),
            "give its full path",
            "not-found",
        )


def _check_port(port: int) -> None:
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # As the rendezvous will do it: a connection that has just ended must not count as busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        probe.listen(1)
    except OSError as error:
        raise SpoolError(
            "port {} is taken on this server".format(port), "choose another port", "port"
        ) from error
    finally:
        probe.close()


def _check_interface(name: str) -> None:
    known = sorted({one.name for one in network.interfaces()})
    if name not in known:
        hint = "it has {}; correct `interface` of this server in config.toml".format(
            ", ".join(known)
        )
        raise SpoolError("no interface {} on this server".format(name), hint, "busy")


def environment(
    spool: Spool,
    order: wire.StartOrder,
    base: Dict[str, str],
    devices: List[wire.DeviceInfo],
    visible: str = gpu_names.UUIDS,
) -> Dict[str, str]:
    """The job's whole environment: that of a login, the order's, and what says where and on what it
    runs. `visible`: how GPUs are named, as in gpu_names."""
    key = wire.attempt_key(order.job, order.attempt)
    env = dict(base)
    env.setdefault(wire.ENV_CHECKPOINT_DIR, os.path.join(spool.checkpoints, str(order.job)))
    env.update(order.env)
    env.pop(wire.ENV_DEFAULTS, None)
    env.update(
        {
            wire.ENV_JOB: str(order.job),
            wire.ENV_ATTEMPT: str(order.attempt),
            wire.ENV_MARK: spool.mark(key),
            wire.ENV_RUN_DIR: spool.folder(key),
            wire.ENV_DEVICES: ",".join(order.devices),
        }
    )
    if order.attempt > 1:
        env[wire.ENV_RESUME] = "1"
    if order.done_file:
        env[wire.ENV_DONE_FILE] = completion_evidence.done_path(order, env)
    if all(device.kind == "cuda" for device in devices):
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = gpu_names.listed(devices, visible)
    else:
        env["CUDA_VISIBLE_DEVICES"] = ""
        env[wire.ENV_CORES] = ";".join(",".join(map(str, device.cores)) for device in devices)
        threads = str(max(1, min(len(device.cores) for device in devices)))
        env = login.with_defaults(env, dict.fromkeys(THREAD_LIMITS, threads))
    if order.port and order.node_count == 1:
        # whatever else this server has: its replicas need nothing of it
        here = next((one for one in network.interfaces() if one.kind == "loopback"), None)
        return rendezvous.exports(
            rendezvous.Met("127.0.0.1", here.name if here else ""), order.port, env
        )
    return env


def addressed(argv: List[str], address: str) -> List[str]:
    """The command with the master's address that was found, in the place of the one that was
    assumed."""
    for index, word in enumerate(argv):
        if word.startswith(MASTER):  # the first: the script may have an option of that name as well
            return [*argv[:index], MASTER + address, *argv[index + 1 :]]
    return argv


def become_job(
    order: wire.StartOrder, env: Dict[str, str], cores: List[int], log: str, go: int
) -> NoReturn:
    """Runs in the forked child: wait for the go byte, then turn into the job. Without a go byte
    nothing ever runs."""
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if os.read(go, 1) != b"g":
            os._exit(NOT_EXECUTABLE)
        code = _prepare_and_exec(order, env, cores, output)
    except BaseException as error:  # nothing may return into the shim's code
        code = NOT_EXECUTABLE
        with contextlib.suppress(BaseException):
            os.write(
                output, "gpq: cannot start the job: {}\n".format(error).encode("utf-8", "replace")
            )
    os._exit(code)


def _prepare_and_exec(
    order: wire.StartOrder, env: Dict[str, str], cores: List[int], output: int
) -> int:
    """Returns only when it failed, with the exit code that says how."""

    def say(line: str) -> None:
        os.write(output, "gpq: {}\n".format(line).encode("utf-8", "replace"))

    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            say("cannot bind to cores {}: {}".format(cores, error.strerror))
    try:
        os.chdir(order.cwd)
    except OSError as error:
        say("cannot enter {}: {}".format(order.cwd, error.strerror))
        return NOT_EXECUTABLE
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)  # what is ignored would stay ignored through exec
    os.dup2(output, 1)
    os.dup2(output, 2)
    # what is blocked would stay blocked through exec
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    argv = order.argv
    if order.masters:
        try:
            met = rendezvous.meet(order)
        except rendezvous.Apart as apart:
            say("not started: {}".format(apart))
            note = {"kind": apart.kind, "note": str(apart)}
            wire.write_json(os.path.join(env[wire.ENV_RUN_DIR], wire.UNLAUNCHED), note)
            return NOT_EXECUTABLE
        say(
            "the servers of this job meet at {} port {}, here by {}".format(
                met.address, order.port, met.interface
            )
        )
        env, argv = rendezvous.exports(met, order.port, env), addressed(argv, met.address)
    for failure in attributes.apply(attributes.of(order.attributes)) if order.attributes else ():
        say(failure)
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError as error:
        say("cannot run {}: {}".format(order.argv[0], error.strerror))
        return NOT_FOUND
    except OSError as error:
        say("cannot run {}: {}".format(order.argv[0], error.strerror))
        return NOT_EXECUTABLE

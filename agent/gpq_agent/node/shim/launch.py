"""How an attempt's job becomes a process: its environment with the names of its GPUs, and the last
steps before exec in the child."""

import contextlib
import os
import signal
import time
from typing import Dict, List, NoReturn, Tuple

from gpq_agent import wire
from gpq_agent.node.console import console
from gpq_agent.node.host import attributes, login, network, procs
from gpq_agent.node.host.logs import LEAST_LIMIT
from gpq_agent.node.host.procs import NOT_EXECUTABLE
from gpq_agent.node.shim import completion_evidence, rendezvous, replicas
from gpq_agent.node.spool.spool import Spool

OF_TORCHRUN = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}  # its defaults
THREAD_LIMITS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip
# below the spool: code that torch.compile has made. Its own place in /tmp could belong to somebody
COMPILED = "torchinductor"
UNUSED = 30 * 86400.0  # seconds after which it is removed
MOST_UNREAD = 1 << 20  # bytes of output that the client of a console may be behind
MASTER = "--master-addr="  # an option of torchrun
# how CUDA_VISIBLE_DEVICES names the GPUs of a job. Some programs read only integers
UUIDS, INDEXES = "uuid", "index"


def environment(
    spool: Spool,
    order: wire.StartOrder,
    base: Dict[str, str],
    devices: List[wire.DeviceInfo],
    visible: str = UUIDS,
) -> Dict[str, str]:
    """The job's whole environment: that of a login, the order's, and variables that say where and
    on what it runs. `visible`: how to name GPUs, see `list_names`."""
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
    if order.attempt > 1 and not order.fresh:
        env[wire.ENV_RESUME] = "1"
    if order.done_file:
        env[wire.ENV_DONE_FILE] = completion_evidence.done_path(order, env)
    if all(device.kind == "cuda" for device in devices):
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = list_names(devices, visible)
    else:
        env["CUDA_VISIBLE_DEVICES"] = ""
        env[wire.ENV_CORES] = ";".join(",".join(map(str, device.cores)) for device in devices)
        threads = str(max(1, min(len(device.cores) for device in devices)))
        env = login.with_defaults(env, dict.fromkeys(THREAD_LIMITS, threads))
    env = login.with_defaults(env, {"TORCHINDUCTOR_CACHE_DIR": os.path.join(spool.path, COMPILED)})
    if len(order.ranks) > 1:
        env = login.with_defaults(env, OF_TORCHRUN)
    if order.port and order.node_count == 1:
        env[wire.ENV_MEETING] = os.path.join(spool.folder(key), "meeting")
        # its replicas need no other interface of this server
        loopback = next(
            (interface for interface in network.interfaces() if interface.kind == "loopback"), None
        )
        return rendezvous.exports(
            rendezvous.Rendezvous("127.0.0.1", loopback.name if loopback else ""), order.port, env
        )
    return env


def tidy_compiled(folder: str) -> None:
    """Remove what nothing has used for long."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if time.time() - max(status.st_atime, status.st_mtime) > UNUSED:
                    os.unlink(path)


def with_address(argv: List[str], address: str) -> List[str]:
    """Replace the assumed address of the master in torchrun's options by the one that was found."""
    for index, word in enumerate(argv):
        # only the first: the script may have an option with this name too
        if word.startswith(MASTER):
            return [*argv[:index], MASTER + address, *argv[index + 1 :]]
    return argv


class NotLaunched(Exception):
    """The job did not start. `code`: the exit code that says how."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def become_job(
    order: wire.StartOrder, env: Dict[str, str], cores: List[int], log: str, go: int
) -> NoReturn:
    """Runs in the forked child: wait for the go byte, then become the job. Without a go byte
    nothing runs."""
    try:
        os.setsid()
        output = open_log(log)
        if os.read(go, 1) != b"g":
            os._exit(NOT_EXECUTABLE)
        argv, env = prepare(order, env, cores, output)
        if order.console:
            argv = console.command(
                order.console, env[wire.ENV_RUN_DIR], unread_limit(order.log_limit), argv
            )
            env = console.environment(env)
        code = execute(argv, env, order.ranks)
    except NotLaunched as end:
        code = end.code
    except BaseException as error:  # nothing may return into the shim's code
        code = NOT_EXECUTABLE
        with contextlib.suppress(BaseException):
            _say(output, "cannot start the job: {}".format(error))
    os._exit(code)


def open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _say(output: int, line: str) -> None:
    os.write(output, "gpq: {}\n".format(line).encode("utf-8", "replace"))


def prepare(
    order: wire.StartOrder, env: Dict[str, str], cores: List[int], output: int
) -> Tuple[List[str], Dict[str, str]]:
    """Give this process all that a job has before its command runs. Returns its command, of each
    replica if there are several, and its environment. Raises NotLaunched, with a line in the
    log."""
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            _say(output, "cannot bind to cores {}: {}".format(cores, error.strerror))
    try:
        os.chdir(order.cwd)
    except OSError as error:
        _say(output, "cannot enter {}: {}".format(order.cwd, error.strerror))
        raise NotLaunched(NOT_EXECUTABLE) from error
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            # a signal that is ignored would stay ignored through exec
            signal.signal(number, signal.SIG_DFL)
    if order.stdin:
        os.dup2(os.open(order.stdin, os.O_RDONLY | os.O_CLOEXEC), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # a signal that is blocked would stay blocked through exec
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    argv = order.argv
    if order.masters:
        try:
            meeting = rendezvous.meet(order)
        except rendezvous.RendezvousFailed as apart:
            _say(output, "not started: {}".format(apart))
            note = {"kind": apart.kind, "note": str(apart)}
            wire.write_json(os.path.join(env[wire.ENV_RUN_DIR], wire.UNLAUNCHED), note)
            raise NotLaunched(NOT_EXECUTABLE) from apart
        line = "the servers of this job meet at {} port {}, this one through {}"
        _say(output, line.format(meeting.address, order.port, meeting.interface))
        env = rendezvous.exports(meeting, order.port, env)
        argv = with_address(argv, meeting.address)
    for failure in attributes.apply(attributes.of(order.attributes)) if order.attributes else ():
        _say(output, failure)
    return argv, env


def execute(argv: List[str], env: Dict[str, str], ranks: List[int]) -> int:
    """Become the command, or with `ranks` the process that starts one for each. Returns only if it
    failed, with the exit code that says how."""
    if ranks:
        # It reads no module of the script's environment.
        failures = os.path.join(env[wire.ENV_RUN_DIR], wire.FAILURES)
        words = ["-I", "-S", replicas.__file__, failures, ",".join(map(str, ranks))]
        argv = [argv[0], *words, *argv]
    return procs.become(argv, env)


def unread_limit(log_limit: int) -> int:
    """Bytes that a client may be behind: far less than the end that a log keeps."""
    return min(MOST_UNREAD, max(log_limit, LEAST_LIMIT) // 8) if log_limit else MOST_UNREAD


def list_names(devices: List[wire.DeviceInfo], names: str) -> str:
    """`names`: UUIDS or INDEXES. A MIG device has no index, so it keeps its UUID."""
    return ",".join(
        str(device.index) if names == INDEXES and not device.id.startswith("MIG") else device.id
        for device in devices
    )

"""One process per attempt: the parent of the job, in its own session, which outlives agent, daemon
and connection.

It records first and then lets the job run, so that no job ever runs without a record.
"""

import os
import signal
import time
import traceback
from typing import Callable, Dict, List, Sequence, Set

from gpq_agent import wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.host import procs
from gpq_agent.node.shim import launch
from gpq_agent.node.shim.completion_evidence import CompletionEvidence
from gpq_agent.node.shim.exit_record import write_exit
from gpq_agent.node.shim.leases import boottime
from gpq_agent.node.shim.process_tree import Tree
from gpq_agent.node.shim.supervise import WAKE, Supervisor
from gpq_agent.node.spool.spool import Spool

WAKE_SIGNAL = signal.SIGUSR1
CRASH = "shim.err"  # traceback of a shim that failed, which is a bug


def spawn(
    place: Spool,
    order: wire.StartOrder,
    env: Dict[str, str],
    cores: List[int],
    lock: int,
    gpus: Sequence[int] = (),
) -> None:
    """Fork a shim that starts the job. `lock` is the attempt's lock, which the shim holds from now
    on. `gpus` are the locks of its GPUs. The shim holds them, and so does the job's first process,
    which may outlive the shim."""
    detach(
        place.folder(wire.attempt_key(order.job, order.attempt)),
        {lock, *gpus},
        lambda: start(place, order, env, cores, gpus),
    )


def adopt(place: Spool, order: wire.StartOrder, first: Dict[str, object], lock: int) -> None:
    """Fork a shim for an attempt whose own shim was killed. It obeys stop.json and records that the
    exit code is unknown."""

    def watch() -> None:
        folder = place.folder(wire.attempt_key(order.job, order.attempt))
        wire.write_json(
            os.path.join(folder, wire.SHIM), dict(procs.identity(os.getpid()), adopted=True)
        )
        Supervisor(
            place, order, Tree(place.mark(os.path.basename(folder)), None), first, parent=False
        ).run()

    detach(place.folder(wire.attempt_key(order.job, order.attempt)), {lock}, watch)


def detach(folder: str, keep: Set[int], body: Callable[[], None]) -> None:
    """Run `body` in a process that is nobody's child here: forked twice, with its own session and
    no inherited descriptor except `keep`."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    code = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        procs.keep_only(keep)
        body()
        code = 0
    except BaseException:
        _leave_trace(folder)
    finally:
        os._exit(code)


def _leave_trace(folder: str) -> None:
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
        with open(os.open(os.path.join(folder, CRASH), flags, 0o600), "a") as stream:
            traceback.print_exc(file=stream)
    except OSError:
        pass


def start(
    place: Spool, order: wire.StartOrder, env: Dict[str, str], cores: List[int], gpus: Sequence[int]
) -> None:
    log = os.path.join(place.folder(wire.attempt_key(order.job, order.attempt)), wire.LOG)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        # otherwise the child would keep its own go pipe open, and wait for ever if the shim died
        os.close(write_end)
        for descriptor in gpus:
            os.set_inheritable(descriptor, True)
        launch.become_job(order, env, cores, log, read_end)
    os.close(read_end)

    def go() -> None:
        os.write(write_end, b"g")
        os.close(write_end)

    supervise(place, order, env, gpus, child, go, lambda: os.close(write_end))


def supervise(
    place: Spool,
    order: wire.StartOrder,
    env: Dict[str, str],
    gpus: Sequence[int],
    child: int,
    go: Callable[[], None],
    call_off: Callable[[], None],
    *,
    warm: bool = False,
) -> None:
    """Be the shim of an attempt whose first process is `child`, a child of this process that waits.
    `go` lets it become the job, once that is recorded. `call_off` ends it instead. `warm`: it comes
    from a standby."""
    key = wire.attempt_key(order.job, order.attempt)
    folder = place.folder(key)
    wire.write_json(os.path.join(folder, wire.SHIM), procs.identity(os.getpid()))
    gpu_locks.sign(gpus, os.getpid())
    # Its look at a dead file server may hang. It must not be of the job's tree.
    witness = CompletionEvidence(order, env, folder)
    procs.become_subreaper()
    started_at = time.time()
    first = dict(procs.identity(child), started_at=started_at, warm=warm)
    try:
        wire.write_json(os.path.join(folder, wire.STARTED), first)
    except OSError as error:
        call_off()
        os.waitpid(child, 0)
        note = "not started: cannot write {}: {}".format(wire.STARTED, error.strerror)
        record = wire.ExitRecord(
            order.job,
            order.attempt,
            None,
            None,
            False,
            None,
            started_at,
            ended_at=time.time(),
            note=note,
            stamp=boottime(),
            boot_id=procs.boot_id(),
        )
        write_exit(folder, record)
        return
    go()
    Supervisor(
        place,
        order,
        Tree(place.mark(key), os.getpid()),
        first,
        parent=True,
        gpus=gpus,
        witness=witness,
    ).run()

"""One process per attempt: the parent of the job, in its own session, which outlives agent, daemon
and connection.

It records first and then lets the job run, so that no job ever runs without a record.

A lease has a second guard: a process next to the shim. It ends the attempt if the shim does not,
because the shim was killed or hangs while nobody reaches this server. It only watches until the
shim's own time for that is over. Any of shim, guard and agent can end the attempt. The agent does
it by adopting the attempt (attempts.py).
"""

import contextlib
import os
import signal
import time
import traceback
from typing import Callable, Dict, List, Optional, Sequence, Set

from gpq_agent import records, wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.host import procs
from gpq_agent.node.shim import launch
from gpq_agent.node.shim.completion_evidence import CompletionEvidence
from gpq_agent.node.shim.exit_record import write_exit
from gpq_agent.node.shim.leases import Lease, boottime
from gpq_agent.node.shim.process_tree import Tree
from gpq_agent.node.shim.supervise import GROUPS_AFTER, WAKE, Supervisor
from gpq_agent.node.spool import spool
from gpq_agent.node.spool.shapes import Identity
from gpq_agent.node.spool.spool import Spool

WAKE_SIGNAL = signal.SIGUSR1
CRASH = "shim.err"  # traceback of a shim that failed, which is a bug

PERIOD = 0.05  # seconds between two looks while it ends processes
RECORDED_WITHIN = 2.0  # seconds in which a shim that still works records the end itself


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
    key = wire.attempt_key(order.job, order.attempt)
    folder = place.folder(key)

    def watch() -> None:
        record = dict(procs.identity(os.getpid()), adopted=True)
        wire.write_json(os.path.join(folder, wire.SHIM), record)
        Supervisor(place, order, Tree(place.mark(key), None), first, parent=False).run()

    detach(folder, {lock}, watch)


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
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
        path = os.path.join(folder, CRASH)
        with contextlib.suppress(OSError), open(os.open(path, flags, 0o600), "a") as stream:
            traceback.print_exc(file=stream)
    finally:
        os._exit(code)


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
            order.job, order.attempt, None, None, False, None, started_at, ended_at=time.time(),
            note=note, stamp=boottime(), boot_id=procs.boot_id(),
        )  # fmt: skip
        write_exit(folder, record)
        return
    go()
    tree = Tree(place.mark(key), os.getpid())
    Supervisor(place, order, tree, first, parent=True, gpus=gpus, witness=witness).run()


def spawn_guard(place: spool.Spool, order: wire.StartOrder) -> None:
    """Start the guard of an attempt with a lease, before its shim. Raises OSError."""
    folder = place.folder(wire.attempt_key(order.job, order.attempt))
    detach(folder, set(), lambda: Guard(place, order).run())


class Guard:
    """The guard of one attempt."""

    def __init__(self, place: spool.Spool, order: wire.StartOrder) -> None:
        self.key = wire.attempt_key(order.job, order.attempt)
        self.folder = place.folder(self.key)
        self.order = order
        self.boot = procs.boot_id()
        self.lease = Lease(place, order, self.boot)
        self.tree = Tree(place.mark(self.key), None)

    def run(self) -> None:
        while not self._is_over():
            if self.lease.is_guards():
                self._end()
                return
            time.sleep(self.lease.patience())

    def _is_over(self) -> bool:
        """Is its end recorded, or did nothing ever start?"""
        return os.path.lexists(os.path.join(self.folder, wire.EXIT)) or not os.path.isdir(
            self.folder
        )

    def _shim(self) -> Optional[procs.Process]:
        """None if it is gone."""
        path = os.path.join(self.folder, wire.SHIM)
        with contextlib.suppress(OSError, ValueError):
            return procs.living(records.read_shape(Identity, path), self.boot)
        return None

    def _end(self) -> None:
        begin = time.monotonic()
        self._empty(begin)
        deadline = time.monotonic() + RECORDED_WITHIN
        while time.monotonic() < deadline and not self._is_over():
            shim = self._shim()
            if shim is None or shim.state in ("T", "t"):
                break
            time.sleep(PERIOD)
        shim = self._shim()
        if shim is not None:  # it hangs, and still holds its locks
            procs.send(shim, signal.SIGKILL)
        self._empty(begin)
        if self._is_over():
            return
        reason = "its shim did not respond" if shim is not None else "its shim was gone"
        record = wire.ExitRecord(
            self.order.job, self.order.attempt, None, None, False, None, started_at=0.0,
            ended_at=time.time(), note="{} ({})".format(self.lease.note(), reason), fenced=True,
            stamp=boottime(), boot_id=self.boot,
        )  # fmt: skip
        write_exit(self.folder, record)

    def _empty(self, begin: float) -> None:
        """Kill until no process of the tree is left."""
        while True:
            shim = self._shim()
            self.tree.root = shim.pid if shim is not None else None
            if not self.tree.signal_once(signal.SIGKILL):
                return
            if time.monotonic() > begin + GROUPS_AFTER:
                self.tree.signal_groups(signal.SIGKILL)
            time.sleep(PERIOD)

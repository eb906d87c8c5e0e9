"""The shim's watch over one attempt: wait, obey stops (each only harder than the last), empty the
tree, record the end."""

import contextlib
import errno
import os
import signal
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from gpq_agent import records, wire
from gpq_agent.node.devices import gpu_locks
from gpq_agent.node.host import cgroups, procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.shim import addressees
from gpq_agent.node.shim.completion_evidence import Witness
from gpq_agent.node.shim.failure_cause import Verdict, verdict
from gpq_agent.node.shim.leases import Lease, boottime
from gpq_agent.node.shim.log_cap import Cap
from gpq_agent.node.shim.process_tree import Tree
from gpq_agent.node.shim.start_order import signal_number
from gpq_agent.node.spool import shapes, spool
from gpq_agent.node.spool.shapes import NOTE, STOP_RANK, Stop

TERM_GRACE = 5.0  # seconds between TERM and KILL where nobody asked for another time
STUCK_AFTER = 10.0  # seconds of KILL without effect after which a person is told
# seconds of KILL, process by process, after which whole groups are killed at once
GROUPS_AFTER = 0.5
FRESHEN = 3600.0  # seconds between two signs of life of the locks of its GPUs
# seconds between two looks at stop.json, should its signal have been lost with its sender
IDLE = 5.0
BUSY = 0.05
CALM = 0.25
WAKE = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM)


class Supervisor:
    """One attempt, from the go byte to exit.json.

    `first` is the job's first process. `parent`: it is our child, so that its exit status is ours
    to collect; an adopting shim (the first one was killed) is not its parent and records an unknown
    exit code. `gpus`: the locks of its GPUs, which are given up once no process of the tree is
    left, before its end can be told. `witness`: what says that it had come to its end; an adopting
    shim has none, and the code by which that counts is not known to it either.
    """

    def __init__(
        self,
        place: spool.Spool,
        order: wire.StartOrder,
        tree: Tree,
        first: Dict[str, Any],
        parent: bool,
        gpus: Sequence[int] = (),
        witness: Optional[Witness] = None,
    ) -> None:
        self.spool = place
        self.order = order
        self.folder = place.folder(wire.attempt_key(order.job, order.attempt))
        self.tree = tree
        self.first = first
        self.parent = parent
        self.status: Optional[int] = None
        self.ended_at: Optional[float] = None
        self.childless = not parent
        self.stage = "run"  # -> asked -> term -> kill
        self.deadline = float("inf")
        self.asked: Optional[str] = None
        self.asked_at = 0.0
        self.recipients: List[procs.Process] = []  # that were sent the signal of the job
        self.launchers: List[procs.Process] = []  # that stand still while those save
        self.caught = False  # its first process had a handler for it
        self.asked_late = False  # its first process had ended by itself before
        self.seq = 0
        self.terminated = False  # the tree had TERM from us before the first process ended
        self.stage_since = 0.0  # of "term" and "kill"
        self.stuck_was_noted = False
        self.notes: List[str] = []
        self.boot = procs.boot_id()
        self.cap = Cap(os.path.join(self.folder, wire.LOG), order.log_limit)
        self.lease = Lease(place, order, self.boot)
        self.fenced = False
        self.memory = cgroups.Memory(int(first["pid"]))
        self.gpus = list(gpus)
        self.witness = witness
        self._freshened = time.monotonic()

    def run(self) -> None:
        """Returns when no process of the tree is left and the exit record is written."""
        while not self._looked():
            self._wait()
        gpu_locks.close(self.gpus)
        self._record()

    def _looked(self) -> bool:
        """As `_step`. Who has no descriptor or memory left to look with calls nothing gone, and
        looks again."""
        try:
            return self._step()
        except OSError as error:
            self._note("its shim could not look at it for a while: {}".format(error.strerror))
            time.sleep(BUSY)
            return False

    def _wait(self) -> None:
        if self.stage in ("run", "asked"):
            patience = IDLE if self.parent else BUSY
        else:
            # a look is one at every process of the machine; our own children wake us when they end
            patience = BUSY if time.monotonic() - self.stage_since < 1.0 else CALM
        patience = min(
            patience,
            self.lease.patience(),
            self.cap.patience(),
            max(0.0, self.deadline - time.monotonic()),
        )
        signal_info = signal.sigtimedwait(WAKE, patience)
        if signal_info is not None and signal_info.si_signo == signal.SIGTERM:
            self._note("its shim was sent TERM; was the node shutting down?")
        if self.gpus and time.monotonic() - self._freshened > FRESHEN:
            self._freshened = time.monotonic()
            gpu_locks.keep_fresh(self.gpus)

    def _step(self) -> bool:
        """One look at everything; True once all is over."""
        self._collect()
        if self.ended_at is None:
            self.memory.look()
        self._read_stop()
        self._cap_log()
        if not self.fenced and self.ended_at is None and self.lease.is_over():
            self._fence()
        if self.ended_at is not None and self.stage in ("run", "asked"):
            if self._gone():
                return True
            if not self._saves():
                self._note("it left processes behind, which were ended")
                self._terminate(TERM_GRACE)
        if self.launchers and not self._saves():
            self._let_go()
        if self.stage in ("term", "kill"):
            members = self.tree.signal_once(
                signal.SIGTERM if self.stage == "term" else signal.SIGKILL
            )
            if not members and self.ended_at is not None and self._gone():
                return True
            if self.stage == "kill" and time.monotonic() > self.stage_since + GROUPS_AFTER:
                self.tree.signal_groups(signal.SIGKILL)
        if time.monotonic() >= self.deadline:
            self._escalate()
        if self.stage == "kill" and time.monotonic() > self.stage_since + STUCK_AFTER:
            self._tell_stuck()
        return False

    # -- the end of processes

    def _collect(self) -> None:
        """Wait for every child that has ended, escapees handed to us included."""
        if not self.parent:
            if self.ended_at is None and not procs.lives(self.first, self.boot):
                self.ended_at = time.time()
            return
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.first["pid"] and self.status is None:
                    self.status = status
                    self.ended_at = time.time()
        except ChildProcessError:
            self.childless = True

    def _gone(self) -> bool:
        """No process of the tree is left. As subreaper, having no child proves that there is no
        descendant."""
        self._collect()
        return self.childless and not self.tree.members()

    def _saves(self) -> bool:
        """Does a process live that was told to stop? The grace is for it, though a shell or a
        launcher that stood before it has ended."""
        if self.stage != "asked" or not self.recipients:
            return False
        living = {(process.pid, process.start_time) for process in self.tree.members()}
        return any((process.pid, process.start_time) in living for process in self.recipients)

    def _let_go(self) -> None:
        """Launchers go on, and see that what they launched has ended."""
        for process in self.launchers:
            procs.send(process, signal.SIGCONT)
        self.launchers = []

    def _terminate(self, grace: float) -> None:
        if self.ended_at is None:
            self.terminated = True
        self.stage = "term"
        self.stage_since = time.monotonic()
        self.deadline = time.monotonic() + grace
        self.tree.signal_once(signal.SIGTERM)

    def _fence(self) -> None:
        """The daemon may have given this attempt up: its end must come within the margin, whatever
        else is going on."""
        self.fenced = True
        self._note(self.lease.note())
        grace = self.lease.until_kill()
        if self.stage in ("run", "asked"):
            self._terminate(grace)
        self.deadline = min(self.deadline, time.monotonic() + grace)

    def _escalate(self) -> None:
        if self.stage == "asked":
            self._note(
                "ended {:.0f} s after it was asked to stop".format(time.monotonic() - self.asked_at)
            )
            self._terminate(TERM_GRACE)
        elif self.stage == "term":
            self.stage = "kill"
            self.deadline = float("inf")
            self.stage_since = time.monotonic()
            self.tree.signal_once(signal.SIGKILL)

    def _tell_stuck(self) -> None:
        members = [] if self.stuck_was_noted else self.tree.members()
        if not members:
            return
        self.stuck_was_noted = True
        descriptions = [
            "{} ({}, state {})".format(process.pid, process.name, process.state)
            for process in members[:3]
        ]
        suffix = " and {} more".format(len(members) - 3) if len(members) > 3 else ""
        self._note(
            "pid {}{} cannot be killed: the kernel holds it".format(", ".join(descriptions), suffix)
        )
        with contextlib.suppress(OSError):
            # the note is for people; the attempt stays as it is without it
            wire.write_json(os.path.join(self.folder, NOTE), {"note": self.notes[-1]})

    def _cap_log(self, at_once: bool = False) -> None:
        problem = self.cap.look(at_once)
        if problem:
            self._note(problem)
            with contextlib.suppress(OSError):
                wire.write_json(os.path.join(self.folder, NOTE), {"note": problem})

    # -- stops

    def _read_stop(self) -> None:
        path = os.path.join(self.folder, wire.STOP)
        try:
            stop = wire.read_json(path)
            if stop is None or records.check(Stop, stop, path)["seq"] <= self.seq:
                return
        except (OSError, ValueError):
            # out of descriptors, say: the next look comes within `IDLE`. What is damaged the agent
            # writes anew.
            return
        mode, grace = str(stop["mode"]), float(stop["grace"])
        if mode not in STOP_RANK:
            return
        self.seq = int(stop["seq"])
        rank, previous_rank = STOP_RANK[mode], STOP_RANK.get(self.asked or "", 0)
        if rank < previous_rank or (self.ended_at is not None and mode != "kill"):
            return
        self.asked_late = self.asked_late or (self.asked is None and self.ended_at is not None)
        limit = time.monotonic() + grace
        if rank == previous_rank or self.stage in ("term", "kill"):
            self.deadline = min(self.deadline, limit) if self.stage != "kill" else self.deadline
            self.asked = mode
            return
        self.asked = mode
        self.asked_at = time.monotonic()
        if mode == "kill":
            self._terminate(grace)
            return
        self.stage = "asked"
        self.deadline = limit
        if mode == "checkpoint":
            self._order_checkpoint()
        else:
            self._send_signal()

    def _order_checkpoint(self) -> None:
        try:
            with self.spool.lock():
                order_stop(self.folder, self.order.attempt)
        except (OSError, ValueError, SpoolError) as error:
            self._note("the order to checkpoint could not be written: {}".format(error))

    def _send_signal(self) -> None:
        number = signal_number(self.order.signal)
        assert number is not None  # the order was checked
        pid = int(self.first["pid"])
        self.caught = addressees.look(pid).catches(number)
        self.recipients, self.launchers = addressees.addressees(self.tree.members(), pid, number)
        for process in self.launchers:
            procs.send(process, signal.SIGSTOP)
        for process in self.recipients:
            procs.send(process, number)
            if process.state == "T":  # held for the shim before this one
                procs.send(process, signal.SIGCONT)

    # -- the record

    def _record(self) -> None:
        self._cap_log(at_once=True)
        code: Optional[int] = None
        killer: Optional[int] = None
        if self.status is not None and os.WIFEXITED(self.status):
            code = os.WEXITSTATUS(self.status)
        elif self.status is not None:
            killer = os.WTERMSIG(self.status)
        if not self.parent:
            self._note("its shim was killed, so its exit code is not known")
        evidence = self.memory.killed() if self.ended_at is not None else ""
        oom = bool(evidence) and (killer == signal.SIGKILL or code == 128 + signal.SIGKILL)
        if oom:
            self._note("the kernel killed it for want of memory ({})".format(evidence))
        elif evidence and code != 0:
            self._note(
                "the kernel killed a process beside it for want of memory ({})".format(evidence)
            )
        elif killer == signal.SIGKILL and self.stage == "run" and not self.fenced:
            self._note("killed by SIGKILL, not by gpq")
        cause = verdict(self.folder, self.order, code) if code else Verdict()
        if cause.note:
            self._note(cause.note)
        finished, evidence = self._finished(code)
        record = wire.ExitRecord(
            job=self.order.job,
            attempt=self.order.attempt,
            code=code,
            signal=killer,
            stopped=self._stopped(code, killer),
            asked=self.asked,
            started_at=float(self.first.get("started_at", 0.0)),
            ended_at=self.ended_at or time.time(),
            oom=oom,
            note="; ".join(self.notes),
            fenced=self.fenced,
            unlaunched=cause.unlaunched,
            excused=cause.excused,
            cause=cause.cause,
            victim=cause.victim,
            stamp=boottime(),
            boot_id=self.boot,
            finished=finished,
            evidence=evidence,
        )
        write_exit(self.folder, record)

    def _stopped(self, code: Optional[int], killer: Optional[int]) -> bool:
        """Did it prove a checkpoint? Once we sent TERM ourselves, an end by TERM proves nothing.
        Neither does one of a process that had no handler for it."""
        if os.path.exists(os.path.join(self.folder, wire.STOPPED)):
            return True
        if self.asked != "signal":
            return False
        if code == wire.EXIT_PREEMPTED[0]:
            return True
        sigterm_was_asked = (
            self.caught
            and killer == signal.SIGTERM
            and signal_number(self.order.signal) == signal.SIGTERM
        )
        return not self.terminated and (code in wire.EXIT_PREEMPTED or sigterm_was_asked)

    def _finished(self, code: Optional[int]) -> Tuple[bool, str]:
        """As in wire.ExitRecord."""
        if code != 0 or self.asked is None:
            return code == 0, ""
        if self.asked_late:
            return True, "it had ended before that"
        evidence = self.witness.evidence() if self.witness is not None else ""
        return bool(evidence), evidence

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)


def order_stop(folder: str, attempt: int) -> None:
    """Tell the training process to checkpoint and exit, keeping the batch that it was last ordered.
    Under the lock."""
    path = os.path.join(folder, wire.CONTROL)
    try:
        previous = records.check(
            wire.Control, wire.read_json(path) or {"attempt": attempt, "seq": 0}, path
        )
    except records.Damaged:  # a number beyond all that were given
        previous = wire.Control(attempt=attempt, seq=shapes.beyond())._asdict()
        records.set_aside(path)
    previous.update(attempt=attempt, seq=int(previous["seq"]) + 1, stop=True)
    spool.write_reserved(path, previous)


def write_exit(folder: str, record: wire.ExitRecord) -> None:
    """Durable also on a full disk. Tries for as long as it takes: a lost exit code cannot be found
    again."""
    while True:
        try:
            spool.write_reserved(os.path.join(folder, wire.EXIT), record._asdict())
            return
        except OSError as error:
            if error.errno == errno.EROFS or _is_gone(folder):  # purged: nobody will ask
                return
            time.sleep(1.0)


def _is_gone(folder: str) -> bool:
    """Not where the disk only fails to say."""
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False

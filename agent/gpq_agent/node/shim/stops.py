"""Stops of an attempt: what stop.json orders, and how the shim asks a job to save.

The program of a job is rarely its first process: shells, launchers and environments come above it,
and workers below. The signal goes to the topmost process on each branch that has a handler.
Processes below that one are its own business. Programs that only wait for another are skipped:
shells pass nothing on, `make` takes USR1 for itself, and `timeout` sends TERM to workers too.
Launchers are skipped and halted in the meantime, because torchrun ends the other replicas as soon
as one has saved.
"""

import os
import signal
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gpq_agent import records, wire
from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.host.procs import Process
from gpq_agent.node.shim.completion_evidence import CompletionEvidence
from gpq_agent.node.shim.process_tree import Tree
from gpq_agent.node.shim.start_order import signal_number
from gpq_agent.node.spool import shapes, spool
from gpq_agent.node.spool.shapes import STOP_RANK, Stop

# Names of executables.
WAITING = (
    "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "make", "mksh", "sh", "tcsh", "time",
    "timeout", "uv", "zsh",
)  # fmt: skip
# Words of a command line, without their folder
LAUNCHERS = (
    b"accelerate", b"conda", b"deepspeed", b"mamba", b"torchrun", b"torch.distributed.launch",
    b"torch.distributed.run",
)  # fmt: skip
WORKER = b"from multiprocessing."  # in the command line of a worker that Python spawned
MOST_COMMAND = 1 << 16


class ProcessDetail(NamedTuple):
    """What /proc shows about one process besides its stat line."""

    program: str  # name of its executable, "" if it is not readable
    command: bytes
    caught: int  # one bit per signal that has a handler, the lowest for signal 1

    def catches(self, number: int) -> bool:
        return bool(self.caught >> (number - 1) & 1)

    @property
    def launches(self) -> bool:
        words = self.command.split(b"\0")[:4]  # the interpreter's words, and the program's own name
        return any(os.path.basename(word) in LAUNCHERS for word in words)


class Addressees(NamedTuple):
    recipients: List[Process]
    launchers: List[Process]  # above the recipients


def look(pid: int) -> ProcessDetail:
    """Empty for a process that is gone."""
    try:
        program = os.path.basename(os.readlink("/proc/{}/exe".format(pid)))
    except OSError:
        program = ""
    try:
        with open("/proc/{}/cmdline".format(pid), "rb") as stream:
            command = stream.read(MOST_COMMAND)
        with open("/proc/{}/status".format(pid), "rb") as stream:
            [caught_signals] = [line.split()[1] for line in stream if line.startswith(b"SigCgt:")]
    except (OSError, ValueError):
        return ProcessDetail(program, b"", 0)
    return ProcessDetail(program, command, int(caught_signals, 16))


def addressees(members: Sequence[Process], first: int, number: int) -> Addressees:
    """The addressees among `members`, for signal `number`. `first`: the pid of the job's first
    process.

    Only if no program has a handler, workers get the signal: replicas that a script spawned itself.
    If no process has a handler, the whole group of the first process gets it, which ends them, as
    the signal does. So does the first process itself, which may not have its own group yet.
    """
    looks_by_pid = {process.pid: look(process.pid) for process in members}
    programs = [process for process in members if not _is_worker(process, looks_by_pid)]
    for candidates in (programs, members):
        answer = _topmost(candidates, looks_by_pid, first, number)
        if answer.recipients:
            return answer
    return Addressees([process for process in members if first in (process.group, process.pid)], [])


def _topmost(
    candidates: Sequence[Process], looks_by_pid: Dict[int, ProcessDetail], first: int, number: int
) -> Addressees:
    children: Dict[int, List[Process]] = {}
    for process in candidates:
        children.setdefault(process.parent, []).append(process)
    answer = Addressees([], [])
    queue = [process for process in candidates if process.pid == first]
    while queue:
        process = queue.pop()
        program_look = looks_by_pid[process.pid]
        if program_look.launches:
            answer.launchers.append(process)
        elif program_look.catches(number) and program_look.program not in WAITING:
            answer.recipients.append(process)
            continue
        queue += children.get(process.pid, [])
    return answer


def _is_worker(process: Process, looks_by_pid: Dict[int, ProcessDetail]) -> bool:
    """A fork that runs the same command as its parent, or a worker that Python's multiprocessing
    spawned."""
    own_look, parent = looks_by_pid[process.pid], looks_by_pid.get(process.parent)
    if parent is None or parent.program in WAITING:
        return False
    return own_look.command == parent.command or WORKER in own_look.command


class Stops:
    """The stops of an attempt, each only harder than the last."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.mode: Optional[str] = None  # of the latest stop
        self.asked_at = 0.0
        self.asked_late = False  # its first process had ended on its own before
        self._seq = 0

    def read(self, has_ended: bool) -> Optional[Tuple[Stop, bool]]:
        """(the stop to obey, is it harder than the last?), None if there is none. `has_ended`: the
        first process has ended."""
        # None also while this process is out of descriptors, for example: the next look comes soon.
        # The agent rewrites a damaged file.
        content = shapes.statement(self.folder, wire.STOP)
        if content is None or content["seq"] == self._seq or content["mode"] not in STOP_RANK:
            return None
        stop = Stop(str(content["mode"]), float(content["grace"]), int(content["seq"]))
        self._seq = stop.seq
        rank, previous_rank = STOP_RANK[stop.mode], STOP_RANK.get(self.mode or "", 0)
        if rank < previous_rank or (has_ended and stop.mode != "kill"):
            return None
        if self.mode is None:
            self.asked_late = has_ended
        self.mode = stop.mode
        return stop, rank > previous_rank

    def finished(
        self, code: Optional[int], witness: Optional[CompletionEvidence]
    ) -> Tuple[bool, str]:
        """`finished` and `evidence`, see wire.ExitRecord."""
        if code != 0 or self.mode is None:
            return code == 0, ""
        if self.asked_late:
            return True, "it had ended before that"
        evidence = witness.evidence() if witness is not None else ""
        return bool(evidence), evidence


def order_checkpoint(place: spool.Spool, order: wire.StartOrder) -> Optional[str]:
    """Ask the training process to checkpoint and exit, with the batch of its last order. Return why
    that failed, None if it worked."""
    path = os.path.join(place.folder(wire.attempt_key(order.job, order.attempt)), wire.CONTROL)
    try:
        with place.lock():
            control = _last_control(path, order.attempt)
            control.update(attempt=order.attempt, seq=int(control["seq"]) + 1, stop=True)
            spool.write_reserved(path, control)
    except (OSError, ValueError, SpoolError) as error:
        return str(error)
    return None


def _last_control(path: str, attempt: int) -> Dict[str, Any]:
    try:
        return records.check(
            wire.Control, wire.read_json(path) or {"attempt": attempt, "seq": 0}, path
        )
    except records.Damaged:  # a number above all earlier ones
        records.set_aside(path)
        return wire.Control(attempt=attempt, seq=shapes.beyond())._asdict()


class JobSignal:
    """The signal on which a job saves, and its recipients. `first`: the pid of the job's first
    process."""

    def __init__(self, order: wire.StartOrder, tree: Tree, first: int) -> None:
        self.number = signal_number(order.signal)
        self.tree = tree
        self.first = first
        self.caught = False  # the first process had a handler for it
        self.recipients: List[procs.Process] = []
        self.launchers: List[procs.Process] = []  # halted while the recipients save

    def send(self) -> None:
        """Send it to the recipients, and halt launchers."""
        assert self.number is not None  # the order was validated
        self.caught = look(self.first).catches(self.number)
        self.recipients, self.launchers = addressees(self.tree.members(), self.first, self.number)
        for process in self.launchers:
            procs.send(process, signal.SIGSTOP)
        for process in self.recipients:
            procs.send(process, self.number)
            if process.state == "T":  # halted by an earlier shim
                procs.send(process, signal.SIGCONT)

    def has_recipient(self) -> bool:
        """Does one of the recipients still live?"""
        if not self.recipients:
            return False
        living = {(process.pid, process.start_time) for process in self.tree.members()}
        return any((process.pid, process.start_time) in living for process in self.recipients)

    def has_ended(self, killer: Optional[int]) -> bool:
        """Did it end a process that had a handler for it, as TERM does?"""
        return self.caught and killer == signal.SIGTERM == self.number

    def release(self) -> None:
        """Let launchers continue, so that they notice the end of their processes."""
        for process in self.launchers:
            procs.send(process, signal.SIGCONT)
        self.launchers = []

"""Which processes of an attempt get a stop signal. Pure except for its looks at /proc.

The program of a job is rarely its first process: shells, launchers and environments come above it,
and workers below. The signal goes to the topmost process on each branch that has a handler.
Processes below that one are its own business. Programs that only wait for another are skipped:
shells pass nothing on, `make` takes USR1 for itself, and `timeout` sends TERM to workers too.
Launchers are skipped and halted in the meantime, because torchrun ends the other replicas as soon
as one has saved.
"""

import os
from typing import Dict, List, NamedTuple, Sequence

from gpq_agent.node.host.procs import Process

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

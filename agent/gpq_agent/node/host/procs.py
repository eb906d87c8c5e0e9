"""Processes as the kernel shows them in /proc: identity, trees, marks, signals.

(boot id, pid, start time) identifies a process, never a pid alone. The kernel reuses pids, above
all after a reboot.
"""

import contextlib
import ctypes
import errno
import os
import signal
import time
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple, Union

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # the exit codes of every shell
MOST_COMMAND = 200
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
# without means to look, a process only seems to be gone
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Process(NamedTuple):
    """The needed fields of /proc/<pid>/stat."""

    pid: int
    start_time: int  # clock ticks after boot, field 22
    parent: int
    group: int
    state: str  # one letter, "Z" = ended but not collected
    name: str

    @property
    def alive(self) -> bool:
        """False for a process that has ended and waits for its parent to collect it."""
        return self.state not in ("Z", "X", "x")


def boot_id() -> str:
    """The kernel's id of this boot. A process of another boot cannot be alive."""
    with open("/proc/sys/kernel/random/boot_id") as stream:
        return stream.read().strip()


def read(pid: int) -> Optional[Process]:
    """The process with this pid, None if there is none. Raises OSError if this process lacks the
    means to look (`SCARCE`)."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as stream:
            text = stream.read()
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in SCARCE:
            raise
        return None
    # The name is in parentheses and may itself contain spaces and parentheses.
    opening, closing = text.find(b"("), text.rfind(b")")
    fields = text[closing + 2 :].split()
    if opening < 0 or len(fields) < 20:
        return None
    return Process(
        pid=pid,
        start_time=int(fields[19]),
        parent=int(fields[1]),
        group=int(fields[2]),
        state=fields[0].decode("ascii"),
        name=text[opening + 1 : closing].decode("utf-8", "replace"),
    )


def identity(pid: int) -> Dict[str, Any]:
    """What shim.json and started.json record about a process. Raises ProcessLookupError if it is
    gone."""
    process = read(pid)
    if process is None:
        raise ProcessLookupError("no process {}".format(pid))
    return {"pid": pid, "start_time": process.start_time, "boot_id": boot_id()}


def living(record: Optional[Dict[str, Any]], boot: str) -> Optional[Process]:
    """The process of this record (see `identity`), None if it is not alive now or not the same
    one."""
    if record is None or record.get("boot_id") != boot:
        return None
    process = read(int(record["pid"]))
    if process is None or not process.alive or process.start_time != record["start_time"]:
        return None
    return process


def lives(record: Optional[Dict[str, Any]], boot: str) -> bool:
    """Is the process of this record alive now, and still the same one?"""
    return living(record, boot) is not None


def snapshot() -> Dict[int, Process]:
    """Every visible process, by pid."""
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = read(int(name))
            if process is not None:
                processes[process.pid] = process
    return processes


def descendants(roots: Iterable[int], processes: Dict[int, Process]) -> Set[int]:
    """Pids below `roots`, without the roots."""
    children: Dict[int, List[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    pids: Set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in pids:
                pids.add(child)
                queue.append(child)
    return pids


def mark_of(pid: int, variable: str) -> str:
    """The value of an environment variable with which the process started. "" if it is missing or
    not readable. Raises OSError if this process lacks the means to look (`SCARCE`)."""
    try:
        with open("/proc/{}/environ".format(pid), "rb") as stream:
            content = stream.read()
    except OSError as error:
        if error.errno in SCARCE:
            raise
        return ""
    start = variable.encode("ascii") + b"="
    for entry in content.split(b"\0"):
        if entry.startswith(start):
            return entry[len(start) :].decode("utf-8", "replace")
    return ""


def command_of(pid: int) -> str:
    """Its command line as everybody may see it, at most `MOST_COMMAND` characters. "" if it is gone
    or hidden."""
    try:
        with open("/proc/{}/cmdline".format(pid), "rb") as stream:
            content = stream.read(MOST_COMMAND)
    except OSError:
        return ""
    return " ".join(word.decode("utf-8", "replace") for word in content.rstrip(b"\0").split(b"\0"))


def started_at(process: Process) -> float:
    """When it started, wall clock."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_time / os.sysconf("SC_CLK_TCK")
    return round(time.time() - age, 1)


def marked_pids(variable: str, value: str, processes: Dict[int, Process]) -> Set[int]:
    """Pids whose environment holds variable=value."""
    return {
        pid
        for pid, process in processes.items()
        if process.alive and mark_of(pid, variable) == value
    }


def send(process: Process, number: int) -> bool:
    """Signal exactly this process. False if it is gone, or another process has its pid."""
    descriptor = -1  # for an old Python or kernel without pidfd, or without a free descriptor
    try:
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    try:
        # The descriptor holds whichever process has the pid now. The start time shows whether it is
        # the right one.
        current = read(process.pid)
        if current is None or current.start_time != process.start_time:
            return False
        if descriptor >= 0:
            signal.pidfd_send_signal(descriptor, number)
        else:
            os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def fork_with_pipe() -> Tuple[int, int]:
    """(pid, the end of a pipe from the child) here, (0, the end to write to) in the child. Raises
    OSError."""
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        return 0, writing
    os.close(writing)
    return pid, reading


def keep_only(keep: Set[int]) -> None:
    """Put /dev/null on the three standard streams and close everything except `keep`. After a fork
    no pipe of the parent may stay open in the child, otherwise nobody would notice the parent's
    end."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor of this listing
                os.close(int(name))


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]


def become(argv: List[str], env: Union[Mapping[str, str], Mapping[bytes, bytes]]) -> int:
    """Become this command. Returns only if that fails, with the exit code of every shell that says
    how, after a line on stderr."""
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        line = "gpq: cannot run {}: {}\n".format(argv[0], error.strerror)
        os.write(2, line.encode("utf-8", "replace"))
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def reset_signals() -> None:
    """Handle signals as a new process does. Those that are ignored or blocked would stay so through
    exec."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends. Raises OSError if the kernel
    cannot do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, b"gpq-shim", 0, 0, 0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel has no subreaper")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before this took effect
        os._exit(1)

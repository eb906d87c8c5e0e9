"""The first process of a job that somebody talks to. It starts the program, appends what that
prints to the attempt's log, and passes input and signals on.

    python -B -I -S -c START KIND FOLDER AHEAD COMMAND...

in the folder of the command. wire.STREAMS in FOLDER says which stream each part of the log is. The
program waits while its client is more than AHEAD bytes of output behind, because a log that is over
its limit loses its middle. A client that was silent for PATIENCE seconds counts as gone, and
nothing waits for it.

It ends as the program ended: with the same exit code, or by the same signal.
"""

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import termios
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from gpq_agent import wire
from gpq_agent.node.host import logs, procs

RECORD = struct.Struct(">QB")  # from this byte of the log on it is this stream
MOST_RECORDS = 1 << 20  # twice as many are kept at most
OUT, ERR = 1, 2  # streams, numbered as their descriptors
CHUNK = 1 << 16
PATIENCE = 60.0  # seconds
# seconds for what prints on after the program has ended. Then the shim ends it, too
LINGER = 2.0
FULL_PAUSE = 0.5  # seconds between two tries to write to a full disk
USUAL_SIZE = (24, 80)  # rows and columns
FULL = (errno.ENOSPC, errno.EDQUOT)
# gpq and terminals send these to every process of a job. The console ends after its program
LEFT_TO_PROGRAM = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM,
    signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
START = "import sys; sys.path.insert(0, {!r}); from gpq_agent.node.console import console; {}"
# Variables of the program that could break the console's own Python, and their names meanwhile.
# That Python may need others to start, which the agent has
LOADER, KEPT = "LD_", "GPQ_KEPT_LD_"


def command(kind: str, folder: str, ahead: int, argv: Sequence[str]) -> List[str]:
    """The command line of the console for `argv`. `kind`: as in wire.StartOrder."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    start = START.format(os.path.dirname(package), "sys.exit(console.main())")
    return [sys.executable, "-B", "-I", "-S", "-c", start, kind, folder, str(ahead), *argv]


def environment(env: Mapping[str, str]) -> Dict[str, str]:
    """The console's own, for a program with this one."""
    own = {name: value for name, value in os.environ.items() if name.startswith(LOADER)}
    variables = {
        KEPT + name[len(LOADER) :] if name.startswith(LOADER) else name: value
        for name, value in env.items()
    }
    return {**variables, **own}


def program_environment() -> Dict[bytes, bytes]:
    """The inverse of `environment`, as it came: Python changes its own copy in some locales."""
    with open("/proc/self/environ", "rb") as stream:
        pairs = [pair.partition(b"=") for pair in stream.read().split(b"\0")]
    prefix, loader = KEPT.encode(), LOADER.encode()
    return {
        loader + name[len(prefix) :] if name.startswith(prefix) else name: value
        for name, _, value in pairs
        if name and not name.startswith(loader)
    }


def main() -> int:
    """Returns the exit code of the program, or ends by the signal that ended it."""
    kind, folder, ahead, *argv = sys.argv[1:]
    for ignored in LEFT_TO_PROGRAM:
        signal.signal(ignored, signal.SIG_IGN)
    begin = Terminal if kind == "terminal" else Program
    status = Console(folder, int(ahead), lambda: begin(argv)).run()
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
    with contextlib.suppress(OSError):  # KILL cannot be handled
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


class Program:
    """The command as a child process in its own process group. `outputs`: streams by the ends of
    their pipes here."""

    def __init__(self, argv: List[str]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (source, self.stdin), (out, out_end), (error, error_end) = pipes
        self.outputs = {out: OUT, error: ERR}
        self._begin(argv, (source, out_end, error_end))
        with contextlib.suppress(OSError):  # it has done so itself and may have ended
            os.setpgid(self.pid, self.pid)

    def _begin(self, argv: List[str], ends: Sequence[int]) -> None:
        """Start the command with these ends as its streams."""
        # a signal to the program waits until it handles signals as a new process does
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.pid = os.fork()
        if not self.pid:
            _become(argv, ends, self.lead)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in set(ends):
            os.close(descriptor)
        os.set_blocking(self.stdin, False)
        self.status: Optional[int] = None  # as from `wait`

    def lead(self) -> None:
        """In the child: have a process group of its own."""
        os.setpgid(0, 0)

    def resize(self, rows: int, columns: int) -> None:
        """Pipes have no size."""

    def collect(self) -> bool:
        """Has it ended?"""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def send(self, number: int) -> None:
        """Send a signal to its process group."""
        if self.status is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)

    def close_input(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def close_output(self, *streams: int) -> None:
        """Its next write to these fails, as if a reader had gone."""
        for descriptor in [one for one, number in self.outputs.items() if number in streams]:
            os.close(descriptor)
            del self.outputs[descriptor]


class Terminal(Program):
    """The command in a terminal of its own, with all streams in one. Shells ignore TERM there, so
    a stop of the job hangs up, too."""

    def __init__(self, argv: List[str]) -> None:
        self._terminal, end = os.openpty()
        self.stdin = os.dup(self._terminal)
        self.outputs = {self._terminal: OUT}
        self.resize(*USUAL_SIZE)  # until its client says its own
        self._begin(argv, (end, end, end))
        signal.signal(signal.SIGTERM, lambda *_: self.send(signal.SIGHUP))

    def lead(self) -> None:
        """In the child: have a session of its own, with this terminal."""
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, rows: int, columns: int) -> None:
        """The program hears of it even if nothing has changed, so that it draws for a new
        client."""
        if not self.outputs:
            return
        with contextlib.suppress(OSError):
            size = struct.pack("4H", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
            group = os.tcgetpgrp(self._terminal)
            if group > 0:
                os.killpg(group, signal.SIGWINCH)

    def close_output(self, *_: int) -> None:
        """Hang up."""
        super().close_output(OUT)
        self.close_input()


def _become(argv: List[str], ends: Sequence[int], lead: Callable[[], None]) -> None:
    """Become the program, with these descriptors as its streams."""
    code = procs.NOT_EXECUTABLE
    try:
        for number, descriptor in enumerate(ends):
            os.dup2(descriptor, number)
        lead()
        procs.reset_signals()
        code = procs.become(argv, program_environment())
    finally:
        os._exit(code)


class Transcript:
    """The attempt's log, and which part of it is which stream. `unwritten`: what waits for space on
    a full disk, as (descriptor, bytes)."""

    def __init__(self, folder: str) -> None:
        self._log = os.dup(OUT)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._streams = os.open(os.path.join(folder, wire.STREAMS), flags, 0o600)
        self.size = os.lseek(self._log, 0, os.SEEK_END)
        self.unwritten: List[Tuple[int, bytes]] = []
        self._stream = ERR  # what is there already is gpq's own
        self._records = 0

    def append(self, stream: int, data: bytes) -> None:
        """The record comes first, so that no byte of the log is ever without it. Raises OSError,
        but not for a full disk."""
        if stream != self._stream:
            self._stream = stream
            self.unwritten.append((self._streams, RECORD.pack(self.size, stream)))
            self._records += 1
            if self._records % MOST_RECORDS == 0:
                begin_of_kept = (self._records - MOST_RECORDS) * RECORD.size
                with contextlib.suppress(OSError):  # this file system knows no holes
                    logs.punch(self._streams, 0, begin_of_kept // logs.ALIGN * logs.ALIGN)
        self.unwritten.append((self._log, data))
        self.size += len(data)
        self.flush()

    def flush(self) -> None:
        """Write what the disk has space for. Raises OSError as `append` does."""
        while self.unwritten:
            descriptor, data = self.unwritten[0]
            try:
                data = data[os.write(descriptor, data) :]
            except OSError as error:
                if error.errno in FULL:
                    return
                self.unwritten.clear()
                raise
            self.unwritten[:1] = [(descriptor, data)] if data else []


class Client:
    """The connection of a relay."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.unsent = b""
        self._rest = b""  # the beginning of a frame that has not come whole

    def frames(self) -> List[Tuple[bytes, bytes]]:
        """The frames that have come. Raises OSError, EOFError and ValueError when it is over."""
        data = self.socket.recv(CHUNK)
        if not data:
            raise EOFError
        self._rest += data
        frames, head = [], wire.FRAME_HEAD
        while len(self._rest) >= head.size:
            kind, size = head.unpack_from(self._rest)
            if size > wire.MOST_FRAME:
                raise ValueError
            if len(self._rest) < head.size + size:
                break
            frames.append((kind, self._rest[head.size : head.size + size]))
            self._rest = self._rest[head.size + size :]
        return frames

    def send(self, news: bytes = b"") -> bool:
        """Send what was left, then `news`. False if `news` has to wait. Raises OSError."""
        if not self.unsent:
            self.unsent, news = news, b""
        with contextlib.suppress(BlockingIOError):
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        return not news


class Console:
    """One program, and the session that has its streams. `_owner` is the connection of that
    session, if it has one now."""

    def __init__(self, folder: str, ahead: int, begin: Callable[[], Program]) -> None:
        self._ahead = ahead
        self._transcript = Transcript(folder)
        self._listener = _listen(folder)
        self._wake, wake_end = os.pipe()
        for descriptor in (self._wake, wake_end):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._clients: List[Client] = []
        self._owner: Optional[Client] = None
        self._session, self._connection = b"", 0
        self._acked = self._taken = self._obeyed = 0
        self._input = b""
        self._is_closing = False  # stdin ends after `_input`
        self._has_news = False  # for the owner
        self._has_lost = False  # output
        self._heard = time.monotonic()  # of the session
        self._ended = float("inf")
        self._program = begin()

    def run(self) -> int:
        """Returns the status of the program when its output is in the log. A program without a
        fault has one if some of its output found no place there."""
        program = self._program
        while True:
            self._look(self._poll())
            if program.status is None:
                if not program.collect():
                    continue
                self._ended = time.monotonic()
                program.close_input()
            is_drained = not program.outputs and not self._transcript.unwritten
            if is_drained or time.monotonic() > self._ended + LINGER:
                is_lost = self._has_lost or bool(self._transcript.unwritten)
                return program.status or int(is_lost) << 8  # exit code 1

    def _waits(self) -> bool:
        """Must the program wait for its client?"""
        behind = self._transcript.size - self._acked
        is_there = time.monotonic() < self._heard + PATIENCE
        return self._program.status is None and behind > self._ahead and is_there

    def _poll(self) -> Dict[int, int]:
        """Events by descriptor."""
        poller = select.poll()
        for descriptor in (self._wake, self._listener.fileno()):
            poller.register(descriptor, select.POLLIN)
        for client in self._clients:
            is_told = client is self._owner and self._has_news
            events = select.POLLOUT if client.unsent or is_told else 0
            poller.register(client.socket, select.POLLIN | events)
        if self._program.stdin >= 0:  # without `POLLOUT` it says when nobody reads any more
            poller.register(self._program.stdin, select.POLLOUT if self._input else 0)
        deadline = self._ended + LINGER
        if self._transcript.unwritten:
            deadline = time.monotonic() + FULL_PAUSE
        elif self._waits():
            deadline = self._heard + PATIENCE
        else:
            for descriptor in self._program.outputs:
                poller.register(descriptor, select.POLLIN)
        patience = min(max(deadline - time.monotonic(), 0.0), 3600.0)
        return dict(poller.poll(patience * 1000 + 1))

    def _look(self, ready: Dict[int, int]) -> None:
        if self._wake in ready:
            os.read(self._wake, CHUNK)
        for client in list(self._clients):
            if client.socket.fileno() in ready:
                self._serve(client)
        if self._listener.fileno() in ready:
            self._accept()
        try:
            if self._transcript.unwritten:
                self._transcript.flush()
                self._has_news = True
            for descriptor, stream in list(self._program.outputs.items()):
                if descriptor in ready:
                    self._read(descriptor, stream)
        except OSError:  # the log takes no more, for example because of a limit of the job
            self._has_lost = True
            self._program.close_output(OUT, ERR)
        events = ready.get(self._program.stdin, 0)
        if events & (select.POLLERR | select.POLLHUP):
            self._shut_input()
        elif events:
            self._feed()
        if self._owner is not None and (self._has_news or self._owner.unsent):
            self._tell(self._owner)

    # -- clients

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # no descriptor is free, and it tries again
            connection, _ = self._listener.accept()
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", peer)[1] == os.geteuid():
                self._clients.append(Client(connection))
            else:
                connection.close()

    def _drop(self, client: Client) -> None:
        client.socket.close()
        self._clients = [other for other in self._clients if other is not client]
        if client is self._owner:
            self._owner = None

    def _serve(self, client: Client) -> None:
        try:
            for kind, body in client.frames():
                if kind == wire.HELLO:
                    self._greet(client, wire.greeting(body))
                elif client is self._owner:
                    self._heard = time.monotonic()
                    self._obey(kind, body)
        except BlockingIOError:
            pass  # only news had to be sent
        except (OSError, EOFError, ValueError, IndexError, struct.error):
            self._drop(client)

    def _greet(self, client: Client, greeting: wire.Greeting) -> None:
        """A new session takes over. A connection of one that another has replaced is told, and an
        old one that comes late is not needed. Raises OSError."""
        is_same = greeting.session == self._session
        if greeting.known and not is_same:
            client.send(wire.frame(wire.REPLACED))
            raise EOFError
        if is_same and greeting.connection < self._connection:
            raise EOFError
        if self._owner is not None and self._owner is not client:
            if not is_same:
                with contextlib.suppress(OSError):
                    self._owner.send(wire.frame(wire.REPLACED))
            self._drop(self._owner)
        if not is_same:
            self._obeyed = 0
        self._owner, self._session = client, greeting.session
        self._connection, self._acked = greeting.connection, greeting.offset
        self._input, self._is_closing = b"", False  # the client sends again what was not taken
        self._heard, self._has_news = time.monotonic(), True

    def _obey(self, kind: bytes, body: bytes) -> None:
        if kind == wire.ACK:
            [self._acked] = wire.COUNT.unpack(body)
        elif kind == wire.INPUT and self._program.stdin >= 0:
            self._input += body
            self._feed()
        elif kind == wire.CLOSE:
            self._is_closing = True
            self._feed()
        elif kind == wire.SIGNAL:
            place, number = wire.NUMBERED.unpack(body)
            if place >= self._obeyed:
                self._obeyed = place + 1
                self._program.send(number)
                self._has_news = True
        elif kind == wire.SIZE:
            self._program.resize(*wire.ROWS_COLUMNS.unpack(body))
        elif kind == wire.DEAF:
            self._program.close_output(body[0])

    def _tell(self, client: Client) -> None:
        """The relay reads the log at each news."""
        body = wire.PROGRESS.pack(self._taken, self._obeyed, self._program.stdin >= 0)
        try:
            if client.send(wire.frame(wire.STATE, body)):
                self._has_news = False
        except OSError:
            self._drop(client)

    # -- the program

    def _read(self, descriptor: int, stream: int) -> None:
        """Raises OSError if the log takes no more."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:  # the program took it back, as `tcflush` does
            return
        except OSError:  # no program has this terminal any more
            data = b""
        if data:
            self._transcript.append(stream, data)
        else:
            self._program.close_output(stream)
        self._has_news = True

    def _feed(self) -> None:
        """Pass input on, as much as the program's stdin takes."""
        if self._program.stdin < 0:
            return
        if self._input:
            try:
                count = os.write(self._program.stdin, self._input)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._shut_input()
                return
            self._taken += count
            self._input = self._input[count:]
            self._has_news = True
        if self._is_closing and not self._input:
            self._shut_input()

    def _shut_input(self) -> None:
        """The program has read all, or reads no more."""
        self._program.close_input()
        self._input, self._has_news = b"", True


def _listen(folder: str) -> socket.socket:
    """Bound by a relative path, because an absolute one may be too long for a socket."""
    listener = socket.socket(socket.AF_UNIX)
    home = os.open(".", os.O_PATH | os.O_CLOEXEC)
    os.chdir(folder)
    mask = os.umask(0o177)
    listener.bind(wire.CONSOLE)
    os.umask(mask)
    os.fchdir(home)
    os.close(home)
    listener.listen(8)
    listener.setblocking(False)
    return listener

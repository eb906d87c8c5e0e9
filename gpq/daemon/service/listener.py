"""The daemon's socket in the file system: takes the path, shows it with a link, and gives it
back."""

from __future__ import annotations

import contextlib
import os
import socket

from gpq.errors import Refused
from gpq.folders import make_private

MAX_SOCKET_PATH = 107  # bytes, sockaddr_un


class Listener:
    """Listens on `path` from now on, until `leave` and `close`. `signpost` is a link to the socket,
    if the socket has another path."""

    def __init__(self, path: str, signpost: str = "") -> None:
        self._path = path
        self._signpost = signpost if signpost != path else ""
        self._socket = self._bind()
        self._inode = os.stat(path).st_ino
        self._point()

    def accept(self) -> socket.socket:
        """The next connection. Raises OSError."""
        connection, _ = self._socket.accept()
        return connection

    def leave(self) -> None:
        """Remove the socket, and accept nothing more."""
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:  # not a successor's
                os.unlink(self._path)
                if self._signpost and os.readlink(self._signpost) == self._path:
                    os.unlink(self._signpost)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _bind(self) -> socket.socket:
        if len(os.fsencode(self._path)) > MAX_SOCKET_PATH:
            raise Refused(
                f"the socket path {self._path} is longer than {MAX_SOCKET_PATH} bytes",
                "set GPQ_HOME to a folder with a shorter path",
            )
        make_private(os.path.dirname(self._path))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._refuse_neighbour()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            listener.bind(self._path)
            os.chmod(self._path, 0o600)
            listener.listen(512)
        except OSError as error:
            listener.close()
            raise Refused(
                f"cannot listen on {self._path}: {error.strerror}",
                "set GPQ_HOME to a folder that you can write to",
            ) from None
        except BaseException:
            listener.close()
            raise
        return listener

    def _point(self) -> None:
        if not self._signpost:
            return
        temporary_link = f"{self._signpost}.{os.getpid()}"
        with contextlib.suppress(OSError):
            # a file system without links: then jobs do not find the socket
            os.symlink(self._path, temporary_link)
            os.replace(temporary_link, self._signpost)

    def _refuse_neighbour(self) -> None:
        """Another state's daemon may listen here. A daemon that answers keeps its socket, and one
        that hangs loses it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(2.0)
            try:
                probe.connect(self._path)
                probe.sendall(b"\n")
                answers = bool(probe.recv(1))
            except OSError:
                return
        if answers:
            raise Refused(f"another daemon answers on {self._path}", "`gpq daemon stop` stops it")

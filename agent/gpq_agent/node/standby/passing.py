"""Messages with open files, between processes of one user over a Unix socket. One JSON object each,
at most `LONGEST` bytes."""

import array
import json
import socket
import struct
from typing import Any, Dict, List, Optional, Sequence, Tuple

LONGEST = 1 << 24  # bytes
MOST_FILES = 250  # the kernel passes at most 253 at once
LENGTH = struct.Struct("=I")


def send(channel: socket.socket, message: Dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message with copies of these descriptors. Raises OSError."""
    data = json.dumps(message).encode()
    control = []
    if files:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files).tobytes())]
    channel.sendmsg([LENGTH.pack(len(data))], control)
    channel.sendall(data)


def receive(channel: socket.socket) -> Tuple[Optional[Dict[str, Any]], List[int]]:
    """(message, its descriptors). (None, []) at the end. Raises OSError, or ValueError for
    something else than a message."""
    room = socket.CMSG_SPACE(MOST_FILES * array.array("i").itemsize)
    head, control, _, _ = channel.recvmsg(LENGTH.size, room)
    if not head:
        return None, []
    files = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    head += _exactly(channel, LENGTH.size - len(head))
    (length,) = LENGTH.unpack(head)
    if length > LONGEST:
        raise ValueError("a message of {} bytes".format(length))
    message = json.loads(_exactly(channel, length))
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")
    return message, list(files)


def _exactly(channel: socket.socket, count: int) -> bytes:
    """So many bytes. Raises ConnectionError if the other side ends before."""
    parts = b""
    while len(parts) < count:
        part = channel.recv(count - len(parts))
        if not part:
            raise ConnectionError("the other side ended in the middle of a message")
        parts += part
    return parts

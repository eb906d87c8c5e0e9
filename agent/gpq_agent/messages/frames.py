"""The frames between `gpq run`, the relay on the server, and the console, the first process of the
job (node/console).

A frame is its kind (one byte), the length of its body (four), and the body. Bytes of the output are
counted in the attempt's log. Input and signals are counted from the first of a session, so that the
client sends again what a broken connection may have lost, and nothing comes twice.
"""

import struct
from typing import Callable, NamedTuple, Tuple

# from the client, the first frame of a connection: a Greeting
HELLO = b"h"
INPUT = b"i"  # bytes for the program's stdin
CLOSE = b"c"  # its stdin ends after them
SIZE = b"z"  # rows and columns of the client's terminal
SIGNAL = b"s"  # a signal for the program's process group, with its number in the session
# bytes of the log that the client has written. Also a sign of life
ACK = b"a"
DEAF = b"d"  # nobody reads this stream (1 or 2) any more, so the program's own end is closed
# from the console: bytes of input that the program has taken, signals sent to it, may it take more?
STATE = b"t"
REPLACED = b"x"  # another session has taken over
# from the relay: output of the program
STDOUT = b"o"
STDERR = b"e"
# so many bytes of the log are left out: HELLO wants no more, or the log was over its limit
SKIPPED = b"k"
OVER = b"v"  # the program has ended, and this was all of its output
REFUSED = b"r"  # why there will never be anything to connect to
FRAME_HEAD = struct.Struct(">cI")
COUNT = struct.Struct(">Q")
PROGRESS = struct.Struct(">QQ?")
NUMBERED = struct.Struct(">QB")
ROWS_COLUMNS = struct.Struct(">HH")
MOST_FRAME = 1 << 20  # bytes of a body
EVERYTHING = (1 << 63) - 1  # the most to send
WINDOW = 1 << 18  # bytes of input that a client may send before the program has taken them
HEARTBEAT = 5.0  # seconds between two ACKs of a client that has nothing else to say


class Greeting(NamedTuple):
    """The body of HELLO."""

    session: bytes  # 16 bytes, drawn by each `gpq run` and `gpq attach`
    connection: int  # its number in the session
    known: bool  # the console has answered an earlier one, so this one must not take over
    offset: int  # bytes of the log that the client has
    most: int  # bytes to send of what the log has after them. All that comes later is sent

    def packed(self) -> bytes:
        """As it travels."""
        return _GREETING.pack(*self)


_GREETING = struct.Struct(">16sQ?QQ")


def greeting(body: bytes) -> Greeting:
    """Raises struct.error for another body."""
    return Greeting(*_GREETING.unpack(body))


def frame(kind: bytes, body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return FRAME_HEAD.pack(kind, len(body)) + body


def read_frame(read: Callable[[int], bytes]) -> Tuple[bytes, bytes]:
    """(kind, body) of the next frame. `read` returns at most so many bytes. Raises EOFError at the
    end, and ValueError for a frame that is too long."""
    kind, size = FRAME_HEAD.unpack(_exactly(read, FRAME_HEAD.size))
    if size > MOST_FRAME:
        raise ValueError("a frame of {} bytes".format(size))
    return kind, _exactly(read, size)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = read(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data

"""The light client for fast commands: one request and its answer as plain dictionaries, without
msgspec.

Starts no daemon, which `gpq.client.autostart` does. The modules `json` and `socket` together cost
as much as Python's own start, because they import `re` and `selectors`. The C modules beneath them
do the same work.
"""

import os
import sys
from _json import encode_basestring_ascii, make_scanner
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket

from gpq import paths
from gpq.errors import BY_CODE, DaemonUnreachable, GpqError, Refused, expect_utf8

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VERSION = 1  # as in gpq.rpc.protocol, which a test compares
RESTART = "run `gpq daemon stop`, then `gpq daemon start`. Jobs keep running"


class _Plain:
    """Makes the scanner read JSON as `json.loads` does."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def decode(line: bytes) -> "Any":
    """The value in a line of JSON. Raises ValueError."""
    try:
        text = line.decode().strip()
        value, end = make_scanner(_Plain)(text, 0)  # type: ignore[arg-type]
    except StopIteration:
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than one value")
    return value


def encode(value: object) -> str:
    """JSON of strings, integers, bools, lists and dictionaries, which is all that requests need.
    Raises UsageError for a text that is not Unicode."""
    if isinstance(value, str):
        expect_utf8(value)
        return encode_basestring_ascii(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode(key)}:{encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(encode, value)) + "]"
    raise TypeError(f"{type(value).__name__} in a request")


def ask(op: str, fields: dict[str, object], timeout: float = 30.0) -> "dict[str, Any]":
    """The `result` of one request. Waits at most `timeout` seconds. Raises DaemonUnreachable or the
    daemon's error."""
    return result(ask_raw(op, fields, timeout))


def ask_raw(op: str, fields: dict[str, object], timeout: float = 30.0) -> bytes:
    """As `ask`, but returns the whole answer undecoded."""
    return exchange(line(op, fields), timeout)


def line(op: str, fields: dict[str, object]) -> bytes:
    """A request."""
    return encode({"v": VERSION, "op": op, **fields}).encode() + b"\n"


def exchange(line: bytes, timeout: float) -> bytes:
    """Send one line and read one line. Raises as `receive` does."""
    return b"".join(receive(line, timeout))


def receive(line: bytes, timeout: float) -> "Iterator[bytes]":
    """Send one line, and yield the pieces of the answer as they come. Raises DaemonUnreachable,
    NobodyListens if there is no daemon at all, and Refused if it is another user's."""
    path = paths.socket()
    chunk = b""
    stream = Socket(AF_UNIX, SOCK_STREAM)
    try:
        stream.settimeout(timeout)
        try:
            stream.connect(path)
        except OSError as error:
            raise NobodyListens(
                f"no daemon answers at {path}: {error.strerror or error}", "run `gpq daemon start`"
            ) from None
        refuse_stranger(stream)
        try:
            stream.sendall(line)
            while not chunk.endswith(b"\n"):
                chunk = stream.recv(1 << 20)
                if not chunk:
                    raise DaemonUnreachable(
                        "the daemon hung up in the middle of its answer", "see `gpq daemon logs`"
                    )
                yield chunk
        except TimeoutError:
            raise DaemonUnreachable(
                f"the daemon did not answer within {timeout:g} s", "see `gpq daemon logs`"
            ) from None
        except OSError as error:
            raise DaemonUnreachable(
                f"the daemon hung up: {error.strerror or error}", "see `gpq daemon logs`"
            ) from None
    finally:
        stream.close()


def refuse_stranger(stream: Socket) -> None:
    """Raises Refused unless the program at the other end belongs to this user: whoever makes the
    socket's folder first could listen there. Root may also ask the owner of the state directory."""
    peer = stream.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)  # pid, uid and gid, 4 bytes each
    uid, home = int.from_bytes(peer[4:8], sys.byteorder), paths.home()
    is_for_root = os.geteuid() == 0 and os.path.isdir(home) and os.stat(home).st_uid == uid
    if uid != os.geteuid() and not is_for_root:
        raise Refused(
            f"the program that answers at {paths.socket()} belongs to user {uid}, not to you",
            "set GPQ_HOME to a folder of your own, and unset XDG_RUNTIME_DIR if others share it",
        )


def result(line: bytes) -> "dict[str, Any]":
    """The result in an answer. Raises the daemon's error, and DaemonUnreachable for the answer of
    another version."""
    try:
        answer = decode(line)
    except ValueError:
        raise DaemonUnreachable(
            f"the program at {paths.socket()} is not a gpq daemon", RESTART
        ) from None
    if not isinstance(answer, dict):
        raise _other_version({})
    if answer.get("v") != VERSION:
        raise _other_version(answer)
    if not answer.get("ok"):
        kind = BY_CODE.get(answer.get("code", 1), GpqError)
        raise kind(
            str(answer.get("error", "the daemon gave no reason")), str(answer.get("hint", ""))
        )
    content = answer.get("result")
    return content if isinstance(content, dict) else {}


def _other_version(answer: "dict[str, Any]") -> DaemonUnreachable:
    program, version = answer.get("program", "unknown"), answer.get("v", "?")
    return DaemonUnreachable(
        f"the daemon has another version ({program}, protocol {version}), and this gpq uses"
        f" protocol {VERSION}",
        RESTART,
    )


class NobodyListens(DaemonUnreachable):
    """There is no daemon, so the caller may start one."""

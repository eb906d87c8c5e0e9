"""The light end of the socket: one request and its answer as plain dictionaries, without msgspec, for the door.

Starts no daemon: `gpq.client.autostart` does.
"""

import json
from _socket import AF_UNIX, SOCK_STREAM  # the module `socket` alone costs half of what the door may spend
from _socket import socket as Socket

from gpq import paths
from gpq.errors import BY_CODE, DaemonUnreachable, GpqError

VERSION = 1  # of gpq.rpc.messages; a test holds the two together
RESTART = "`gpq daemon stop`, then `gpq daemon start`: jobs run on meanwhile"


def ask(op: str, fields: dict[str, object], timeout: float = 30.0) -> dict[str, object]:
    """The `result` of one request, seconds to wait at most. Raises DaemonUnreachable, or what the daemon refused."""
    request = json.dumps({"v": VERSION, "op": op, **fields})
    return result(exchange(request.encode() + b"\n", timeout))


def exchange(line: bytes, timeout: float) -> bytes:
    """One line there, one line back. Raises DaemonUnreachable; NobodyListens when there is no daemon at all."""
    path = paths.socket()
    chunks = []
    stream = Socket(AF_UNIX, SOCK_STREAM)
    try:
        stream.settimeout(timeout)
        try:
            stream.connect(path)
        except OSError as error:
            raise NobodyListens(f"no daemon answers at {path}: {error.strerror or error}", "`gpq daemon start`") from None
        try:
            stream.sendall(line)
            while True:
                chunk = stream.recv(1 << 20)
                chunks.append(chunk)
                if not chunk or chunk.endswith(b"\n"):
                    break
        except TimeoutError:
            raise DaemonUnreachable(f"the daemon did not answer within {timeout:g} s", "`gpq daemon logs`") from None
        except OSError as error:
            raise DaemonUnreachable(f"the daemon hung up: {error.strerror or error}", "`gpq daemon logs`") from None
    finally:
        stream.close()
    answer = b"".join(chunks)
    if not answer.endswith(b"\n"):
        raise DaemonUnreachable("the daemon hung up in the middle of its answer", "`gpq daemon logs`")
    return answer


def result(line: bytes) -> dict[str, object]:
    """The result in an answer. Raises what the daemon refused, and DaemonUnreachable for another version's answer."""
    try:
        answer = json.loads(line)
    except ValueError:
        raise DaemonUnreachable(f"what listens at {paths.socket()} is no gpq daemon", RESTART) from None
    if not isinstance(answer, dict) or answer.get("v") != VERSION:
        program = answer.get("program", "unknown") if isinstance(answer, dict) else "unknown"
        spoken = answer.get("v", "?") if isinstance(answer, dict) else "?"
        raise DaemonUnreachable(
            f"the daemon is of another version ({program}, protocol {spoken}); this gpq speaks protocol {VERSION}", RESTART
        )
    if not answer.get("ok"):
        kind = BY_CODE.get(answer.get("code", 1), GpqError)
        raise kind(str(answer.get("error", "the daemon gave no reason")), str(answer.get("hint", "")))
    found = answer.get("result")
    return found if isinstance(found, dict) else {}


class NobodyListens(DaemonUnreachable):
    """There is no daemon, so that one may be started."""

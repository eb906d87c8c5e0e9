"""Writes and reads requests and answers as lines.

Malformed or hostile bytes raise a GpqError and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, TypeVar

import msgspec

import gpq
from gpq import decoding
from gpq.errors import BY_CODE, DaemonUnreachable, GpqError, UsageError, expect_utf8
from gpq.rpc.protocol import MAX_LINE, VERSION
from gpq.rpc.requests import Request

R = TypeVar("R")
T = TypeVar("T")
ROWS = 1000  # of an answer that is not a stream, and of a piece of one


class Server(NamedTuple):
    """Who answers, and what to do if it is of another version."""

    name: str
    hint: str


DAEMON = Server(
    "the daemon",
    "run `gpq daemon stop` and try again. The next command starts the right version, and jobs keep"
    " running",
)

# every kind of request, told apart by its tag
AnyRequest: Any = reduce(or_, Request.__subclasses__())


class _Answer(msgspec.Struct):
    """The envelope. `result` stays bytes until its type is known."""

    v: int
    program: str = ""
    ok: bool = False
    result: msgspec.Raw = msgspec.Raw(b"")
    code: int = 1
    error: str = ""
    hint: str = ""


class Stream(NamedTuple):
    """An answer with more rows than anybody should hold at once."""

    frame: msgspec.Struct  # the answer with an empty list `jobs`
    pages: Iterator[Sequence[msgspec.Struct]]  # its rows


_ENCODER = msgspec.json.Encoder()
_ANSWER = msgspec.json.Decoder(_Answer)


def encode_request(request: msgspec.Struct) -> bytes:
    """One line, for a request of any family. Raises UsageError if text is not Unicode or the
    request is too large."""
    try:
        body = _ENCODER.encode(request)
    except UnicodeEncodeError:
        _expect_utf8(msgspec.to_builtins(request))
        raise
    line = b'{"v":%d,' % VERSION + body[1:] + b"\n"
    if len(line) > MAX_LINE:
        raise UsageError(
            f"the request has {len(line)} bytes, and the limit is {MAX_LINE}",
            "shorten the command or its environment, for example with a file of arguments",
        )
    return line


def _expect_utf8(tree: Any, variable: str = "", *, in_env: bool = False) -> None:
    """Raises UsageError for the first text that is not Unicode. `variable` names the one whose
    value the tree is."""
    if isinstance(tree, str):
        expect_utf8(tree, variable)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            expect_utf8(key)
            _expect_utf8(value, key if in_env else variable, in_env=key == "env")
    elif isinstance(tree, list):
        for item in tree:
            _expect_utf8(item, variable)


def decode_request(line: bytes) -> Request:
    """The request on a line. Raises DaemonUnreachable for another version, and UsageError if the
    line is malformed."""
    request: Request = request_of(request_tree(line), AnyRequest)
    return request


def request_tree(line: bytes, server: Server = DAEMON) -> dict[str, Any]:
    """The fields of a request of any family. Raises as `decode_request` does."""
    try:
        tree = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        raise UsageError("the request is not JSON", "use the gpq command") from None
    if not isinstance(tree, dict):
        raise UsageError("the request is not a JSON object", "use the gpq command")
    version = tree.pop("v", None)
    if version != VERSION:
        raise DaemonUnreachable(
            f"{server.name} (gpq {gpq.__version__}) uses version {VERSION} of the protocol, but the"
            f" command uses {version!r:.20}",
            server.hint,
        )
    return tree


def request_of(tree: dict[str, Any], kinds: Any, server: Server = DAEMON) -> Any:
    """The request of one of these kinds with these fields. Raises UsageError."""
    try:
        return decoding.convert(tree, kinds)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{server.name} does not understand the request: {error}", server.hint
        ) from None


def encode_result(result: object) -> bytes:
    return b'{"v":%d,"program":%s,"ok":true,"result":%s}\n' % (
        VERSION,
        _ENCODER.encode(gpq.__version__),
        _ENCODER.encode(result),
    )


def encode_pieces(result: Stream) -> Iterator[bytes]:
    """The line of the answer in pieces, each made when it is asked for."""
    head, mark, tail = encode_result(result.frame).partition(b'"jobs":[')
    yield head + mark
    comma = b""
    for page in result.pages:
        if page:
            yield comma + _ENCODER.encode(page)[1:-1]
            comma = b","
    yield tail


def pages(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """At most `ROWS` at a time."""
    return (values[first : first + ROWS] for first in range(0, len(values), ROWS))


def encode_error(error: GpqError) -> bytes:
    tree: dict[str, Any] = {
        "v": VERSION,
        "program": gpq.__version__,
        "ok": False,
        "code": error.code,
    }
    tree |= {"error": _unicode(error.message), "hint": _unicode(error.hint)}
    return _ENCODER.encode(tree) + b"\n"


def decode_answer(line: bytes, kind: type[R], server: Server = DAEMON) -> R:
    """The result on a line. Raises the server's own error, or DaemonUnreachable if it has another
    version."""
    try:
        answer = _ANSWER.decode(line)
    except ValueError:
        raise DaemonUnreachable(
            f"the program at the socket of {server.name} is not gpq", server.hint
        ) from None
    if answer.v != VERSION:
        raise DaemonUnreachable(
            f"{server.name} has another version (gpq {answer.program or '?'}, protocol {answer.v})"
            f" than this gpq ({gpq.__version__}, protocol {VERSION})",
            server.hint,
        )
    if not answer.ok:
        raise BY_CODE.get(answer.code, GpqError)(answer.error, answer.hint)
    try:
        return decoding.decode(answer.result, kind)
    except ValueError as error:
        raise DaemonUnreachable(
            f"cannot understand the answer of {server.name}: {error}", server.hint
        ) from None


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")

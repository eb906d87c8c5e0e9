"""A program that answers as an arbiter should never do, on the socket of a real one. Needs root."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpq import paths
from tests.arbiter.test_hostile_arbiter import LINES
from tests.support.users import acting_as

BIG = 1 << 53
Tree = dict[str, Any]
Lie = Callable[["Liar"], list[bytes]]  # pieces. Without an end of line it hangs up after them


def line(result: object) -> bytes:
    return json.dumps({"v": 1, "program": "x", "ok": True, "result": result}).encode() + b"\n"


def saying(words: bytes) -> Lie:
    return lambda liar: [words]


def granting(*grants: object, **more: object) -> Lie:
    """`grants` of the last statement. Texts in them name what it has."""

    def lie(liar: Liar) -> list[bytes]:
        text = json.dumps(grants)
        for name, value in liar.names().items():
            text = text.replace(json.dumps(name), json.dumps(value))
        return [line({**liar.answer(), "grants": json.loads(text), **more})]

    return lie


def grant(job: object = "JOB", *parts: object) -> Tree:
    return {"job": job, "parts": list(parts)}


def refusal(code: object, error: object) -> list[bytes]:
    return [json.dumps({"v": 1, "ok": False, "code": code, "error": error, "hint": error}).encode() + b"\n"]


ONE = ["SERVER", ["GPU"]]
CANARY: Tree = {  # what a daemon would run if it took a command from an answer
    name: ["touch", "CANARY"]
    for name in ("argv", "command", "order", "setup", "shell", "cwd", "launch", "errand", "python")
} | {"env": {"LD_PRELOAD": "CANARY", "PATH": "CANARY"}}
LIES: dict[str, Lie] = {
    **{what: saying(words) for what, words in LINES.items()},
    "a job that was not told": granting(grant(99, ONE)),
    "a job below 0": granting(grant(-1, ONE)),
    "a job by its name": granting(grant("42", ONE)),
    "a job of a huge number": granting(grant(BIG, ONE)),
    "a job twice": granting(grant("JOB", ONE), grant("JOB", ONE)),
    "a server twice": granting(grant("JOB", ["SERVER", ["GPU"]], ["SERVER", ["GPU 2"]])),
    "a device twice": granting(grant("JOB", ["SERVER", ["GPU", "GPU"]])),
    "more than it asked for": granting(grant("JOB", ["SERVER", ["GPU", "GPU 2"]])),
    "one device for two": granting(grant("JOB", ONE), grant("JOB 2", ONE)),
    "a foreign device": granting(grant("JOB", ["SERVER", ["GPU-of-another"]])),
    "a foreign server": granting(grant("JOB", ["../../etc", ["GPU"]])),
    "no parts": granting(grant("JOB")),
    "no devices": granting(grant("JOB", ["SERVER", []])),
    "parts of the wrong type": granting({"job": "JOB", "parts": {"SERVER": "GPU"}}),
    "parts of parts": granting(grant("JOB", [["SERVER", ["GPU"]], ["GPU"]])),
    "a thousand grants": granting(*[{"job": 1, "parts": []}] * 1000),
    "a floor below 0": granting(floor=-1),
    "a huge floor": granting(floor=BIG),
    "a floor of no whole number": granting(floor=0.5),
    "an epoch of the past": granting(epoch=1),
    "an epoch below 0": granting(epoch=-BIG),
    "an epoch of the future": granting(epoch=BIG),
    "a round of the future": granting(round=BIG),
    "a statement of the future": granting(grant("JOB", ONE), seq=BIG),
    "a statement of the past": granting(grant("JOB", ONE), seq=-5),
    "commands": granting({**grant("JOB", ["SERVER", ["GPU", "GPU 2"]]), **CANARY}, **CANARY),
    "commands around nothing": granting(**CANARY, orders=[CANARY]),
    "reasons for jobs of nobody": granting(why=[[n, ["waits", "x" * 900]] for n in range(90)]),
    "reasons of the wrong type": granting(why={"1": "x"}),
    "reasons with escapes": granting(why=[[1, ["\x1b[2J"]]]),
    "an error of the wrong type": lambda liar: refusal([], {}),
    "an error of no code": lambda liar: refusal(0, "yes"),
    "a huge code": lambda liar: refusal(BIG, "no"),
    "a long error": lambda liar: refusal(5, "x" * 1001),
    "many answers at once": lambda liar: [line(liar.answer()) * 50],
    "a drip": lambda liar: [bytes([byte]) for byte in line(liar.answer())[:40]],
    "early": lambda liar: [b"", b"\n" * 30],
}


class Liar:
    """It listens where the arbiter of team `name` of `user` does. What it says is the next of LIES, or in order."""

    def __init__(self, name: str, user: pwd.struct_passwd, canary: Path) -> None:
        self.folder = Path(paths.team_folders(name, user.pw_uid)[-1])
        self._name, self._canary = name, canary
        self.answers = 0
        self.lies = dict.fromkeys(LIES, 0)
        self.floods = False  # sound answers to `take`, one after the other, each with another floor
        self._statement: Tree = {"servers": [], "claims": []}
        self._seq = 0
        self._next: Iterator[str] = itertools.cycle(LIES)
        self._is_fair = True  # mostly to what is not `take`
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listening = threading.Thread(target=self._listen)
        with acting_as(user):
            self.folder.mkdir(mode=0o755)
            self._listener.bind(str(self.folder / "sock"))
            self._listener.listen(64)
        (self.folder / "sock").chmod(0o666)
        self._listening.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listening.join()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        (self.folder / "sock").unlink()
        self.folder.rmdir()

    def lies_only(self, what: str) -> None:
        """Says this to everything."""
        self._next, self._is_fair = itertools.repeat(what), False

    def answer(self) -> Tree:
        """A sound one, which grants nothing."""
        return {"epoch": int(time.time()), "round": self.answers, "seq": self._seq}

    def names(self) -> Tree:
        """What the words in LIES stand for."""
        server = next(iter(self._statement["servers"]), {"name": "?", "devices": []})
        devices = [device["id"] for device in server["devices"]]
        jobs = [claim["job"] for claim in self._statement["claims"]]
        gpu, second, *_ = [*devices, "?", "?"]
        job, second_job, *_ = [*jobs, 1, 2]
        values = {"SERVER": server["name"], "GPU": gpu, "GPU 2": second, "JOB": job, "JOB 2": second_job}
        return {**values, "CANARY": str(self._canary)}

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads = [thread, *filter(threading.Thread.is_alive, self._threads)]
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            for words in stream:
                request: Tree = json.loads(words)
                if not self._say(connection, request):
                    break
        self._connections.discard(connection)

    def _say(self, connection: socket.socket, request: Tree) -> bool:
        """Does the talk go on?"""
        with self._lock:
            self.answers += 1
            if request["op"] == "tell":
                self._seq, self._statement = request["seq"], request["statement"]
            if self.floods and request["op"] == "take":
                pieces = [line({**self.answer(), "floor": self.answers % 7})]
            elif request["op"] != "take" and self._is_fair and (self.floods or self.answers % 4):
                pieces = [line(self._sound(request))]
            else:
                what = next(self._next)
                self.lies[what] += 1
                pieces = LIES[what](self)
        for piece in pieces:
            connection.sendall(piece)
        return bool(pieces) and pieces[-1].endswith(b"\n")

    def _sound(self, request: Tree) -> Tree:
        if request["op"] == "tell":
            return {"seq": request["seq"], "digest": ""}
        welcome = {"team": self._name, "epoch": int(time.time()), "member": "x", "admin": False, "shares": {}}
        return {**welcome, "digest": ""}


@contextlib.contextmanager
def liar(name: str, user: pwd.struct_passwd, canary: Path) -> Iterator[Liar]:
    made = Liar(name, user, canary)
    try:
        yield made
    finally:
        made.close()


def me() -> pwd.struct_passwd:
    return pwd.getpwuid(os.getuid())

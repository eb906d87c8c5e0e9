"""Runs between a daemon and an agent, as the agent's interpreter: `start` orders come late, twice, or after later
messages. It appends to LEDGER what it did, and what was refused as expired. Everything else passes at once, in order.

python relay.py SEED LATE LEDGER -m gpq_agent.node --spool ...

LATE: seconds for which some orders are held back, 0 for none. SIGUSR1 breaks the way back.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time

KINDS = ("late", "twice", "twice later", "behind", "behind", "plain")


class Relay:
    def __init__(self, seed: str, late: float, ledger: str, argv: list[str]) -> None:
        self.dice = random.Random(f"{seed} {os.getpid()}")
        self.late = late
        self.ledger = ledger
        self.agent = subprocess.Popen([sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.waiting: list[tuple[float, int, bytes]] = []
        self.numbers = itertools.count()

    def run(self) -> int:
        """Run until the daemon hung up and everything that was held back was delivered, late and in any order."""
        assert self.agent.stdout is not None
        rest, open_, said = b"", True, self.agent.stdout.fileno()
        while open_ or self.waiting:
            patience = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            ready, _, _ = select.select([said, 0] if open_ else [said], [], [], patience)
            if said in ready and not self.answer(os.read(said, 1 << 20)):
                return self.agent.wait()
            if 0 in ready:
                chunk = os.read(0, 1 << 16)
                open_ = bool(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self.take(line + b"\n")
            self.deliver()
        assert self.agent.stdin is not None
        self.agent.stdin.close()
        return self.agent.wait()

    def answer(self, chunk: bytes) -> bool:
        """Pass on what the agent says. False at its end."""
        for _ in range(chunk.count(b'"kind":"expired"')):
            self.note("expired", "")
        with contextlib.suppress(OSError):  # the daemon hung up
            os.write(1, chunk)
        return bool(chunk)

    def note(self, what: str, whom: str) -> None:
        with open(self.ledger, "a") as told:
            told.write(f"{what}: {whom}\n")

    def take(self, line: bytes) -> None:
        message = json.loads(line)
        if message.get("op") != "start":
            self.send(line)
            return
        kind = self.dice.choice(KINDS if self.late else KINDS[1:])
        self.note(kind, f"{message['order']['job']}.{message['order']['attempt']}")
        soon, now = self.dice.uniform(0.2, 3.0), time.monotonic()
        moments = {
            "late": [self.late], "twice": [0.0, 0.0], "twice later": [0.0, soon], "behind": [soon], "plain": [0.0],
        }[kind]  # fmt: skip
        for wait in moments:
            self.note("held", "")
            heapq.heappush(self.waiting, (now + wait, next(self.numbers), line))

    def deliver(self) -> None:
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            self.send(heapq.heappop(self.waiting)[2])
            self.note("delivered", "")

    def send(self, line: bytes) -> None:
        assert self.agent.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which the daemon sees at once
            self.agent.stdin.write(line)
            self.agent.stdin.flush()


def hang_up(*_: object) -> None:
    """Nothing that the agent says passes any more, so the daemon takes the connection for broken."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, hang_up)
    sys.exit(Relay(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:]).run())

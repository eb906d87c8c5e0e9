"""A server that somebody took over, next to an honest one: what a daemon loses to everything that
the first can send.

    python benchmarks/hostile.py [--seconds 60] [--only ATTACK]

Bars: 200 MiB of memory and 100 MiB of disk beyond what the daemon had before, and 1 s for each look
at the honest server. A look is `gpq logs` of a job there, ten times a second. Exits with 1 above a
bar, or if the honest server's job did not run through.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from gpq.errors import GpqError  # noqa: E402
from gpq.rpc.job_answers import LogChunk  # noqa: E402
from gpq.rpc.requests import Logs  # noqa: E402
from tests.e2e.harness import Daemon  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

MEMORY_MIB, DISK_MIB, LOOK_SECONDS = 200.0, 100.0, 1.0
PERIOD = 0.1  # seconds between two looks
HOSTILE = "hostile"

# Answers the greeting, and then does what the file `attack` next to it says.
AGENT = """#!{python} -IS
import itertools, json, os, sys, time
place = os.path.dirname(os.path.abspath(__file__))
def attack():
    with open(os.path.join(place, "attack")) as stream:
        return stream.read()
name = attack()
with open(os.path.join(place, "connections"), "a") as stream:
    stream.write(name + "\\n")
out, numbers = sys.stdout.buffer, itertools.count(1)
def say(data):
    if attack() != name:
        sys.exit(0)
    out.write(data)
    out.flush()
def device(number, kind):
    return {{"id": "e-%d" % number, "index": number, "kind": "cuda", "type": kind,
             "memory_mib": 1, "state": "ok"}}
def watch(number, **more):
    report = {{"digest": "d", "attempts": [], "devices": [], "time": time.time(),
               "stamp": time.monotonic(), "v": 1, "id": number, "ok": True, **more}}
    say(json.dumps(report).encode() + b"\\n")
def reply(number):
    if name == "nothing":
        time.sleep(0.2)
        watch(number)
    elif name == "noise":
        while True:
            say(b"\\x00\\xff noise \\x1b[2J\\n" * 4096)
    elif name == "blank lines":
        while True:
            say(b"\\n" * 65536)
    elif name == "a line without end":
        while True:
            say(b"x" * (1 << 20))
    elif name == "drips":
        while True:
            say(b"x")
            time.sleep(0.2)
    elif name == "dripping lines":
        while True:
            say(b"x\\n")
            time.sleep(0.2)
    elif name == "100,000 devices":
        watch(number, devices=[device(n, "many") for n in range(100000)])
    elif name == "deep JSON":
        deep = b'{{"a":' * 1000000 + b"1" + b"}}" * 1000000
        say(b'{{"v":1,"id":%d,"ok":true,"devices":' % number + deep + b"}}\\n")
    elif name == "many values":
        head = b'{{"v":1,"id":%d,"ok":true,"x":[' % number
        say(head + b"{{}}," * ((12 << 20) // 3 - 100) + b"0]}}\\n")
    elif name == "many keys":
        keys = b",".join(b'"%x":"\\\\ud800"' % n for n in range(400000))
        say(b'{{"v":1,"id":%d,"ok":true,"x":{{' % number + keys + b"}}}}\\n")
    elif name == "as much as fits":
        head = b'{{"v":1,"id":%d,"ok":true,"time":0,"x":' % number
        keys = b",".join(b'"%x":"\\\\ud800"' % n for n in range(190000))
        text = '["\U0001f600' + "x" * ((11 << 20) - 4096) + '"]'
        some = b"[" + b"{{}}," * 99000 + b"0]", b"{{" + keys + b"}}", text.encode()
        say(head + some[next(numbers) % 3] + b',"digest":0,"attempts":[],"devices":[]}}\\n')
    elif name == "other devices each time":
        kind = "type %d" % next(numbers)
        watch(number, digest=kind, devices=[device(n, kind) for n in range(1000)])
    elif name == "other attempts each time":
        first = 1000000 + 1000 * next(numbers)
        end = {{"job": 1, "attempt": 1, "code": 0, "signal": None, "stopped": False, "asked": None,
                "started_at": 1.0, "ended_at": 2.0, "note": "x" * 1000}}
        some = [{{"job": first + n, "attempt": 1, "state": "running", "exit": end,
                  "damage": ["y" * 400] * 4}} for n in range(1000)]
        watch(number, digest=str(first), attempts=some, devices=[device(0, "few")])
    elif name == "complaints":
        while attack() == name:
            os.write(2, b"z" * 65536)
    elif name == "short connections":
        sys.exit(1)
for line in sys.stdin:
    request = json.loads(line)
    number = request["id"]
    if request["op"] == "hello":
        watch(number, version=1, boot_id="b", python="3", host="h", cores=1, memory_mib=1,
              spool="/s", library="/l", address="")
    elif request["op"] == "watch":
        reply(number)
    else:
        say(b'{{"v":1,"id":%d,"ok":true}}\\n' % number)
"""
ATTACKS = (
    "noise", "blank lines", "a line without end", "drips", "dripping lines", "100,000 devices",
    "deep JSON", "many values", "many keys", "as much as fits", "other devices each time",
    "other attempts each time", "complaints", "short connections",
)  # fmt: skip


class Looks:
    """Looks at the honest server in a thread, and keeps the longest since `longest` was read."""

    def __init__(self, daemon: Daemon, job: int) -> None:
        self._daemon = daemon
        self._job = job
        self._over = threading.Event()
        self._longest = 0.0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def longest(self) -> float:
        """Seconds."""
        longest, self._longest = self._longest, 0.0
        return longest

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(PERIOD):
            began = time.monotonic()
            try:
                self._daemon.call(Logs(str(self._job)), LogChunk)
            except (GpqError, OSError) as error:
                self.failures.append(str(error))
            self._longest = max(self._longest, time.monotonic() - began)


def memory(pid: int, field: str) -> float:
    """MiB. `field` is VmRSS, or VmHWM, the most since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise LookupError(field)


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def disk(folder: Path) -> float:
    """MiB of all files below it."""
    sizes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it is gone
            sizes += path.lstat().st_blocks * 512
    return sizes / (1 << 20)


@contextlib.contextmanager
def attacked(place: Path) -> Iterator[Daemon]:
    """A daemon with both servers. The hostile one is quiet until `attack` says something."""
    agent = place / "agent"
    agent.write_text(AGENT.format(python=sys.executable))
    agent.chmod(0o755)
    (place / "attack").write_text("nothing")
    (place / "connections").touch()
    daemon = Daemon(nodes={"honest": {"slots": 2}, HOSTILE: {"python": str(agent)}}, pace=0.3)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.kill()
        daemon.discard()


def tries(place: Path, attack: str) -> int:
    """Connections on which the hostile server made it."""
    return (place / "connections").read_text().splitlines().count(attack)


def measure(seconds: float, attacks: tuple[str, ...]) -> bool:
    """Prints the figures. False if one is beyond its bar."""
    holds = True
    with tempfile.TemporaryDirectory() as temporary, attacked(Path(temporary)) as daemon:
        place = Path(temporary)
        job = daemon.shell("echo begun; while ! test -e go; do sleep 0.1; done", gpu_type="cpu")
        daemon.until(job, "running")
        assert daemon.process is not None
        pid = daemon.process.pid
        looks = Looks(daemon, job)
        time.sleep(2.0)
        base, before = memory(pid, "VmRSS"), disk(daemon.home)
        print(f"before: {base:.0f} MiB, looks at most {looks.longest():.2f} s", flush=True)
        for attack in attacks:
            forget_peak(pid)
            looks.longest()
            (place / "attack").write_text(attack)
            wait_until(lambda attack=attack: tries(place, attack), f"{attack} begins")
            time.sleep(seconds / len(attacks))
            peak, longest = memory(pid, "VmHWM") - base, looks.longest()
            [state] = [row for row in daemon.nodes().nodes if row.name == HOSTILE]
            words = f"{peak:5.0f} MiB, looks at most {longest:.2f} s"
            words += f", {tries(place, attack)} connections, {state.state} {state.reason}"
            print(f"{attack:25} {words}", flush=True)
            holds &= peak <= MEMORY_MIB and longest <= LOOK_SECONDS
        growth = disk(daemon.home) - before
        looks.close()
        (daemon.work / "go").touch()
        end = daemon.ended(job)
        print(f"disk: {growth:.1f} MiB more. The honest server's job: {end[job]}")
        print(f"looks that failed: {len(looks.failures)} {looks.failures[:1]}")
        return holds and growth <= DISK_MIB and not looks.failures and end[job] == ("completed", 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for all attacks together")
    parser.add_argument("--only", choices=ATTACKS, help="one of them")
    options = parser.parse_args()
    attacks = (options.only,) if options.only else ATTACKS
    return 0 if measure(options.seconds, attacks) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Hostile input: texts for every field, an agent that lies, and a terminal that records what reaches it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CANARY = f"gpq-canary-{uuid.uuid4().hex}"

SHELL = (  # each would leave a file behind if a shell, or ssh, read it
    f"a;touch {CANARY}",
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"a\ntouch {CANARY}\n",
    f"a|touch {CANARY}&",
    f"'; touch {CANARY}; '",
    f'"; touch {CANARY}; "',
    f"-oProxyCommand=touch {CANARY}",
    f"-oLocalCommand=touch {CANARY}",
    f"${{IFS}}touch${{IFS}}{CANARY}",
    f"%(touch {CANARY})s%n%s%x{{0.__class__}}",
    "--help",
    "--",
    "../../../../etc/passwd",
    "~root",
    "\\",
)
TERMINAL = (  # each would change a terminal that obeys it
    "\x1b[2J\x1b[H",
    "\x1b]0;mine\x07",
    "\x1b]52;c;cm0gLXJmIH4K\x07",
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x1b[6n\x05",
    "\x9b31m\x9d0;x\x9c",
    "a\x08\x08\x7fb\x0e",
    "user\u202etxt.exe\u2066\u2069",
    "zero\u200bwidth\u200f\ufeff",
)
LARGE = "x" * 65536
TEXTS = (*SHELL, *TERMINAL, LARGE)
NUL = "a\0b"
SURROGATE = "a\ud800b"

SGR = re.compile(r"\x1b\[[0-9;:]*m")


def canaries(*folders: Path) -> list[Path]:
    """Where the canary is: below the folders, or directly in the working directories of our processes."""
    plain = [Path(folder, CANARY) for folder in ("/", "/tmp", os.getcwd(), os.path.expanduser("~"))]
    return [*filter(Path.exists, plain), *(path for folder in folders for path in folder.rglob(CANARY))]


def dangerous(text: str) -> list[str]:
    """What a terminal would obey or hide in `text`, except colours, line ends and tabs."""
    rest = SGR.sub("", text).replace("\r\n", "")
    kinds = {char: unicodedata.category(char) for char in set(rest) - {"\n", "\t"}}
    return sorted(f"U+{ord(char):04X}" for char, kind in kinds.items() if kind in ("Cc", "Cf", "Cs"))


def on_terminal(environment: Mapping[str, str], *argv: str) -> tuple[int, str]:
    """Run gpq with a terminal as its stdout and stderr. Returns the exit code and everything that reached the terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "gpq", *argv],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "COLUMNS": "300"},
        cwd="/",
    ) as process:
        os.close(theirs)
        pieces = []
        with contextlib.suppress(OSError):  # EIO: the last writer is gone
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        os.close(ours)
    return process.returncode, b"".join(pieces).decode("utf-8", "surrogateescape")


# -- a node agent that lies --------------------------------------------------------------------------------------------

AGENT = """#!{python} -IS
import json, sys, time
LIE = json.loads({lie!r})
def say(message, number, op):
    line = json.dumps({{"v": 1, "id": number, "ok": True, **message, **LIE.get("all", {{}}), **LIE.get(op, {{}})}})
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()
if "stderr" in LIE:
    sys.stderr.buffer.write(LIE["stderr"].encode("utf-8", "surrogatepass"))
    sys.exit(1)
for line in sys.stdin:
    request = json.loads(line)
    op, number = request["op"], request["id"]
    if "raw" in LIE:
        try:  # the first time alone: it shall not cost the test's time again and again
            open(__file__ + ".said", "x")
        except FileExistsError:
            LIE["raw"] = []
        for piece, times in LIE["raw"]:
            for _ in range(times):
                sys.stdout.buffer.write(piece.encode("latin-1"))
        sys.stdout.flush()
        sys.stdin.read()
    if op == "hello":
        say({{"version": 1, "boot_id": "b", "time": time.time(), "stamp": time.monotonic(), "python": "3", "host": "h",
             "cores": 1, "memory_mib": 1, "spool": "/s", "library": "/l", "address": "", "devices": [],
             "attempts": []}}, number, op)
    elif op == "watch":
        time.sleep(min(request["wait"], 2.0))
        say({{"digest": "d", "attempts": [], "devices": LIE.get("devices", []), "time": time.time(),
             "stamp": time.monotonic()}}, number, op)
    elif op == "start":
        order = request["order"]
        info = dict(LIE.get("attempt", {{}}), job=order["job"], attempt=order["attempt"])
        LIE.setdefault("watch", {{}})["attempts"] = [info]
        say({{"state": "started", "attempt": info}}, number, op)
    else:
        say({{}}, number, op)
"""


def device(**more: Any) -> dict[str, Any]:
    """A GPU that no job gets because somebody else uses it."""
    fields = {"id": "e-0", "index": 0, "kind": "cuda", "type": "evil", "memory_mib": 1, "state": "foreign"}
    return {**fields, **more}


def process(**more: Any) -> dict[str, Any]:
    return {"pid": 1, "user": "u", "name": "n", "memory_mib": 1, "attempt": "", **more}


def described(text: str) -> dict[str, Any]:
    """Says `text` in every place where an agent says a text."""
    there = device(id=text, type=text, reason=text, processes=[process(user=text, name=text, attempt=text)])
    hello = dict.fromkeys(("boot_id", "library", "address", "host", "python", "spool", "machine"), text)
    return {"hello": hello, "watch": {"digest": text}, "devices": [there]}


INFINITE, HUGE = float("inf"), 10**30
LIES: dict[str, dict[str, Any]] = {
    "escapes": described("".join(TERMINAL)),
    "shell": described("".join(SHELL)),
    "surrogates": described(SURROGATE),
    "large": described(LARGE),
    "nul": described(NUL),
    "no-devices": {"watch": {"devices": None}},
    "text-devices": {"watch": {"devices": "devices"}},
    "odd-devices": {"devices": [[], {}, 5]},
    "odd-state": {"devices": [device(state="\x1b[2J")]},
    "same-device": {"devices": [device(), device(), device(index=-1)]},
    "huge-memory": {"devices": [device(memory_mib=HUGE, used_mib=HUGE, utilisation=HUGE)]},
    "huge-index": {"devices": [device(index=HUGE)]},
    "huge-pid": {"devices": [device(processes=[process(pid=HUGE, memory_mib=HUGE)])]},
    "huge-cores": {"hello": {"cores": HUGE, "memory_mib": HUGE}},
    "infinite": {"hello": {"cores": INFINITE}, "devices": [device(memory_mib=INFINITE)]},
    "no-number-stamp": {"all": {"stamp": float("nan")}},
    "infinite-stamp": {"all": {"stamp": INFINITE}},
    "odd-attempts": {"watch": {"attempts": [{"job": "x", "attempt": None}]}},
    "no-attempts": {"watch": {"attempts": 7}},
    "many-attempts": {"watch": {"attempts": [{"job": n, "attempt": 1, "state": "running"} for n in range(9000, 9100)]}},
    "refusal": {"all": {"ok": False, "error": "".join(TERMINAL) + SURROGATE, "hint": "\x1b[2J", "kind": []}},
    "version": {"hello": {"version": "\x1b[2J" + SURROGATE}},
    "last-words": {"stderr": "".join(TERMINAL[:7]) + SURROGATE},
    "noise": {"raw": [("\x00\xff\x1b[2J\n", 1000)]},
    "nested": {"raw": [("[", 200_000), ("\n", 1), ('{"id":', 50_000), ("\n", 1)]},
    "endless": {"raw": [("x" * (1 << 20), 66)]},
    "forged-ids": {"raw": [('{"id":true,"ok":true}\n{"id":1e400,"ok":1}\n{"id":[],"ok":true}\n{"id":"1"}\n', 100)]},
    "digits": {"raw": [('{"id":' + "9" * 5000 + "}\n", 1)]},
}


def thief(job: int) -> dict[str, Any]:
    """Claims that an attempt of another server ended on this one."""
    return {"watch": {"attempts": [attempt(job=job, attempt=1, report='{"kind":"notice","message":"stolen"}\n')]}}


def attempt(**more: Any) -> dict[str, Any]:
    end = {"code": 7, "signal": None, "stopped": False, "asked": None, "started_at": 1.0, "ended_at": 2.0}
    return {"state": "exited", "pid": 1, "exit": end, "report_offset": 0, "processes": 0, "devices": [], **more}


def hostile_agent(path: Path, lie: Mapping[str, Any]) -> str:
    """A file that `python` of a local server may name."""
    path.write_text(AGENT.format(python=sys.executable, lie=json.dumps(lie)))
    path.chmod(0o755)
    return str(path)


# -- what a training script reports ------------------------------------------------------------------------------------


def report_lines(texts: Sequence[str] = (*TEXTS, NUL, SURROGATE)) -> list[str]:
    """Lines for report.jsonl. The last one is honest."""
    lines = [json.dumps({"kind": "notice", "message": text}) for text in texts]
    lines += [json.dumps({"kind": "metrics", "step": 1, "values": {text: 1.0}}) for text in texts]
    values = (HUGE, 10**400, -1, float("nan"), INFINITE, "1e999", [], {}, None, True, "\x1b[2J")
    for value in values:
        lines += [
            json.dumps({"kind": "loss", "base_steps": value, "loss": value}),
            json.dumps({"kind": "progress", **dict.fromkeys(("epoch", "epochs", "samples", "step"), value),
                        "base_steps": value, "fraction": value}),
            json.dumps({"kind": "noise", "sqr": value, "var": value, "samples": value}),
            json.dumps({"kind": "checkpoint", "seconds": value}),
            json.dumps({"kind": "retuned", "atomic_batch": value, "accum_steps": value, "seq": value}),
            json.dumps({"kind": "metrics", "values": {"odd": value}}),
            json.dumps({"kind": value}),
        ]  # fmt: skip
    lines += ["[" * 100_000, '{"kind":' * 20_000, "9" * 6000, "\x1b[2J", "null", "[]", '"x"']
    return [*lines, json.dumps({"kind": "notice", "message": "honest"})]

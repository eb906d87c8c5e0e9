"""The page of the bounds of all messages, made of the constants that the decoders use.

`python -m tests.docs.bounds --write` writes docs/internals/bounds.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpq_agent import records, wire
from gpq_agent.messages import attempt_files, checks, orders, reports
from gpq_agent.node import attempt_files as node_files
from gpq_agent.node import main, operations, watches
from gpq_agent.node.host import logs
from gpq_agent.node.spool import shapes, spool

from gpq import pace
from gpq.connectors import local, ssh
from gpq.daemon import process
from gpq.daemon.files import transfer
from gpq.daemon.nodes import link
from gpq.daemon.nodes import reports as report_lines
from gpq.rpc import protocol, team_codec, team_messages

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "bounds.md"
HEAD = """\
# Bounds

<!-- Made by python -m tests.docs.bounds --write: edit the constants in the program instead. -->

What gpq accepts at most of each message, and of what others can make grow. The decoders use the constants that this page
is made from.

An answer that breaks a bound of a line, a list or a text ends the connection. The server is then unreachable, and `gpq nodes`
names the field and the bound. Its jobs run on. In one device or one attempt only that record is damaged. An honest server
breaks no bound, because its agent keeps what jobs and other users write within them.
"""


def mib(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def lines() -> list[tuple[str, str, str]]:
    """(conversation, what, bound)."""
    agent, client, arbiter = "server to daemon", "client to daemon", "daemon and arbiter, both ways"
    return [
        (agent, "a line", mib(link.MAX_LINE)),
        (agent, "values and keys on a line", f"{link.MOST_VALUES:,}"),
        (agent, "levels of a line", str(records.MOST_DEPTH)),
        (agent, "bytes between two answers that are no answer", mib(link.NOISE)),
        (agent, f"seconds without an answer or {mib(link.CHUNK)} of one", f"{pace.SILENCE / pace.FACTOR:g}"),
        (agent, "requests without an answer", f"{link.MOST_PENDING:,}"),
        (agent, "processor time for one server", "half a core"),
        (agent, "output of login scripts", mib(ssh.NOISE)),
        (agent, "seconds from ssh to the agent", f"{ssh.LONGEST / pace.FACTOR:g}"),
        (agent, "a line about a copy of files", mib(transfer.MOST_LINE)),
        (agent, "reports in an answer", f"{mib(watches.MOST_REPORT)} before the last"),
        (agent, "the last report in an answer", mib(watches.LONGEST_REPORT)),
        ("daemon to server", "a line", mib(main.LINE_LIMIT)),
        ("daemon to server", "levels of a line", str(records.MOST_DEPTH)),
        ("daemon to server", "a piece of a log that it asks for", mib(operations.TAIL_LIMIT)),
        (client, "a line", mib(protocol.MAX_LINE)),
        (arbiter, "a line", mib(team_messages.MAX_LINE)),
        (arbiter, "levels of a line", str(team_messages.MAX_DEPTH)),
        (arbiter, "items of a list", f"{team_codec.MOST_ITEMS:,}"),
        (arbiter, "characters of a text", f"{team_codec.LONGEST_TEXT:,}"),
        ("job to agent", "a line of a report", mib(logs.LONGEST_LINE)),
        ("job to agent", "bytes of a report that wait", mib(logs.MOST_UNREAD)),
        ("job to agent", "a file of an attempt", mib(shapes.MOST_BYTES)),
        ("job to agent", "files in the folder of an attempt that count", f"{node_files.MOST_ENTRIES:,}"),
        ("job to agent", "replicas for each GPU", f"{watches.MOST_RANKS}"),
        ("job to daemon", "replicas in a report", f"{report_lines.MAX_RANKS:,}"),
        ("job to daemon", "invalid lines of a piece of a report", f"{report_lines.MAX_INVALID:,}"),
        ("other users to agent", "entries next to the spool that it reads", f"{spool.MOST_BESIDE:,}"),
        ("other users to agent", "a file there", mib(spool.MOST_RECORD)),
        ("on the daemon's disk", "agent.log of a server", mib(2 * local.RING)),
        ("on the daemon's disk", "daemon.log and its old parts", mib(process.LOG_BYTES * (process.LOGS_KEPT + 1))),
    ]


def places(field: str) -> str:
    """The messages and files that have it."""
    kinds = [
        kind
        for module in (orders, reports, checks, attempt_files, shapes)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and field in getattr(kind, "_fields", ())
    ]
    return ", ".join(sorted({kind.__name__ for kind in kinds})) or "answers"


def spelt(number: float) -> str:
    powers = {records.MOST: "2^53", 1 << 22: "2^22", 1 << 20: "2^20"}
    return powers.get(int(number), f"{number:,}" if isinstance(number, int) else f"{number:g}")


def page() -> str:
    rows = [f"| {who} | {what} | {most} |" for who, what, most in lines()]
    text = [HEAD, "## Lines, logs and folders", "", "| from | what | at most |", "|---|---|---|", *rows, ""]
    text += ["## Texts and lists", "", f"Of any other field: {records.MOST_LENGTH:,} characters or items.", ""]
    text += ["| field | in | characters or items at most |", "|---|---|---|"]
    text += [f"| `{name}` | {places(name)} | {most:,} |" for name, most in sorted(wire.LENGTHS.items())]
    text += ["", "## Numbers", "", "Any other number lies between -2^53 and 2^53.", ""]
    text += ["| field | in | least | most |", "|---|---|---|---|"]
    text += [
        f"| `{name}` | {places(name)} | {spelt(least)} | {spelt(most)} |"
        for name, (least, most) in sorted(records.BOUNDS.items())
    ]
    return "\n".join(text) + "\n"


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page(), encoding="utf-8")

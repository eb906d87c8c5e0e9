"""The 59 messages that users meet most, as the program prints them.

`python -m tests.docs.commonest --write` writes docs/internals/messages.md. The page shows each message next to its text
before 0.2.0.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from unittest import mock

from gpq_agent.train.habits.table import HABITS

from gpq.cli import fast_path
from gpq.control.sentences import SENTENCES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "messages.md"
FILES = Path(__file__).parent / "files"
HEAD = """\
# Messages

<!-- Made by python -m tests.docs.commonest --write: edit the messages in the program instead. -->

The 59 messages that users meet most, now and before 0.2.0. A test compares this page with the program.
Words in braces are filled in.

| message | before | now |
|---|---|---|
"""
ERRORS = (
    "submit --gpus x old.py",
    "submit --gpus 4-2 old.py",
    "submit --gpus 0 old.py",
    "submit --time soon old.py",
    "submit --array 5-1 old.py",
    "submit --array 0-3 --sweep lr=1,2 old.py",
    "submit --sweep lr old.py",
    "submit --sweep lr=0.1..0.5 old.py",
    "submit --begin yesterday old.py",
    "submit --retries x old.py",
    "submit --min-gpu-memory big old.py",
    "submit --env =1 old.py",
    "submit --signal FOO --preemptible -- sleep 1",
    "submit --requeue-on-lost 5s old.py",
    "submit missing.py",
    "submit --batch-size x old.py",
    "submit --frobnicate old.py",
    "submit",
    "statsu",
    "submit --sweep lr=1 --sweep-file runs.csv old.py",
    "submit --array x old.py",
    "edit 1 --time soon",
    "nodes reserve gpu1 --from never",
    "logs",
    "config check missing.toml",
)
REASONS = (
    "held-by-user", "held-by", "release", "server-unreachable", "may-run-on", "cancel-waits",
    "requeue-on-lost", "no-requeue-on-lost", "no-server-answers", "see-nodes", "waits-for-success", "begins-later",
    "array-full", "attempt-failed", "attempt-lost", "fits-only-drained", "fits-only-reserved", "gpus-there-are",
    "too-large-for-all", "too-few-free", "gpus-on-the-way", "jobs-ahead", "end-unknown", "smaller-first", "undeclared",
    "more-gpus-not-worth-restart", "has-exactly",
)  # fmt: skip
HABIT_CODES = tuple(HABITS)[:7]


def messages() -> dict[str, str]:
    """The command or code of a message -> the message."""
    reasons = {f"`gpq why`: {code}": SENTENCES[code] for code in REASONS}
    habits = {f"habit: {code}": f"{HABITS[code].message}. Cure: {HABITS[code].cure}" for code in HABIT_CODES}
    return {**{f"`gpq {words}`": _error(words.split()) for words in ERRORS}, **reasons, **habits}


def _error(argv: list[str]) -> str:
    """What `gpq` prints for `argv`, a command that it refuses before it asks a daemon."""
    with (
        mock.patch.dict(os.environ, {"GPQ_HOME": "/dev/null"}),  # so that no daemon can start
        contextlib.chdir(FILES),
        contextlib.redirect_stderr(io.StringIO()) as stderr,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = fast_path.run(argv)
    assert code == 2, argv
    text = stderr.getvalue().replace(str(FILES), "DIRECTORY")
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())


def rows(text: str) -> dict[str, tuple[str, str]]:
    """From the page: command or code of a message -> the old text and today's."""
    cells = re.findall(r"^\| (.+?) (?<!\\)\| (.+?) (?<!\\)\| (.+?) (?<!\\)\|$", text, re.MULTILINE)
    return {name: (before, now) for name, before, now in cells if name != "message"}


def cell(text: str) -> str:
    return re.sub(r"([|*<_])", r"\\\1", text.replace("`", "'"))


def page(before: dict[str, str]) -> str:
    lines = [
        f"| {name.replace('|', chr(92) + '|')} | {before[name]} | {cell(text)} |" for name, text in messages().items()
    ]
    return HEAD + "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    if argv == ["--print"]:  # the messages of this version, for the column `before`
        sys.stdout.write(page({name: cell(text) for name, text in messages().items()}))
        return 0
    before = {name: old for name, (old, _) in rows(PAGE.read_text(encoding="utf-8")).items()}
    PAGE.write_text(page(before), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

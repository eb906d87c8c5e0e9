"""Makes the end of a job's log safe to send: few lines, no control characters, no secrets. Pure.

It drops a whole line if the line names a secret with its value, looks like a token, or shows the
value of a variable of the job. It is better to drop a harmless line than to send a key to a chat
room.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from gpq.outward import SECRET

LEFT_OUT = "[gpq removed a line that may contain a secret]"
LONGEST_LINE = 300  # characters
LEAST_VALUE, LEAST_SECRET = 8, 4  # characters of a value to search for
ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
NAME = re.compile(r"[\w.-]+")
# after a name
GIVEN = re.compile(r"[\"']?\s*(?:[=:]|=>|\bis\b)\s*[\"']?(\S{4,})", re.IGNORECASE)
# tokens: 1024, key=3
NUMBER = re.compile(r"[-+]?[\d.,_]+(?:e[-+]?\d+)?[a-z%/,;)\]}]{0,6}", re.IGNORECASE)
TOKENS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:bearer|basic)\s+[\w.~+/=-]{8,}|\bauthorization\b\s*[:=]"
    r"|://[^/\s:@]+:[^/\s@]+@"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk-|rk_live_|hf_|npm_|pypi-|AKIA|ASIA"
    r"|AIza|ya29\.)[\w-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}|hooks\.slack\.com/|discord(?:app)?\.com/api/webhooks/",
    re.IGNORECASE,
)
# a long random word. Hashes of commits and files are shorter, or hex
BLOB = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
HEX = re.compile(r"[0-9a-fA-F-]+")
# chat rooms read these as a call to everybody
CALLS = re.compile(r"<!|@(?=everyone|here|channel|all\b)", re.IGNORECASE)


def last_lines(text: str, count: int, env: Iterable[tuple[str, str]] = ()) -> list[str]:
    """The last `count` lines of a log that are not empty, safe to send. `env`: the job's."""
    secrets = _values(env)
    raw_lines = text.replace("\r\n", "\n").split("\n")
    plain_lines = (plain(line.rpartition("\r")[2] or line) for line in raw_lines)
    lines = [line for line in plain_lines if line]
    return [redact(line, secrets) for line in lines[max(len(lines) - count, 0) :]]


def one_line(text: str, env: Iterable[tuple[str, str]]) -> str:
    """A headline or a fact about a job as one line, safe to send. `env`: the job's."""
    return redact(plain(" ".join(text.splitlines())), _values(env))


# Is the character a small letter, a capital letter, a digit?
LETTERS_AND_DIGITS = {(True, False, False), (False, True, False), (False, False, True)}


def plain(line: str) -> str:
    """The line without control characters and invisible ones."""
    return CONTROL.sub("", ESCAPES.sub("", line).replace("\t", " ")).rstrip()


def redact(line: str, secrets: Sequence[str] = ()) -> str:
    """The line, or a note instead of it."""
    if any(value in line for value in secrets) or looks_secret(line[: 2 * LONGEST_LINE]):
        return LEFT_OUT
    excerpt = line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."
    return CALLS.sub(lambda call: f"{call[0]} ", excerpt)


def looks_secret(line: str) -> bool:
    """Does the line reveal a secret?"""
    if TOKENS.search(line):
        return True
    names = (name.end() for name in NAME.finditer(line) if SECRET.search(name[0]))
    values = (value[1] for end in names if (value := GIVEN.match(line, end)))
    if any(not NUMBER.fullmatch(value.strip("\"'")) for value in values):
        return True
    return any(_random(match[0]) for match in BLOB.finditer(line))


def _random(word: str) -> bool:
    """Are letters of both cases and digits mixed? Paths, hashes and rows of dashes are not."""
    if HEX.fullmatch(word) or "/" in word.strip("/"):
        return False
    kinds = [(sign.islower(), sign.isupper(), sign.isdigit()) for sign in word]
    if not set(kinds) >= LETTERS_AND_DIGITS:
        return False
    return sum(a != b for a, b in pairwise(kinds)) >= len(word) // 3


def _values(env: Iterable[tuple[str, str]]) -> list[str]:
    """Texts that must not be sent: values of secret variables, and NAME=VALUE of all others."""
    secrets = []
    for name, value in env:
        if SECRET.search(name) and len(value) >= LEAST_SECRET:
            secrets.append(value)
        elif len(value) >= LEAST_VALUE:
            secrets += [f"{name}={value}", f"{name}: {value}", f"'{name}': '{value}'"]
    return secrets

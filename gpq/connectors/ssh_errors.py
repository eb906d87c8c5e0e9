"""What ssh complains of, as one sentence with a hint. Only reads text."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from gpq.connectors.local import last_line
from gpq.errors import GpqError, Refused


@dataclass(frozen=True, slots=True)
class Problem:
    sentence: str
    hint: str = ""
    # until somebody acts. Some servers lock us out if we ask again and again
    lasting: bool = False

    def __str__(self) -> str:
        if not self.hint:
            return self.sentence
        return f"{self.sentence} ({self.hint})"

    def error(self) -> GpqError:
        """Refused if it lasts."""
        kind = Refused if self.lasting else GpqError
        return kind(self.sentence, self.hint)


NO_KEYS = r"Permission denied \("
# In this order: the first match says more than what ssh adds to it. {host} is as configured and
# {ssh} starts ssh as gpq does. {options} are its options, and {forget} is the command that forgets
# a host key.
KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the host key of {host} has changed, so gpq did not connect",
        "ask its administrator whether that is right. If so, `{forget}` forgets the old key",
    ),
    (
        r"host key is known|Host key verification failed",
        "the host key of {host} is not known, so gpq did not connect",
        "`gpq nodes add` or `{ssh} {host}` shows the key and asks whether to trust it",
    ),
    (
        r"Too many authentication failures",
        "{host} refused after too many keys were tried",
        "name the right one: `identity` of that server",
    ),
    (
        r"UNPROTECTED PRIVATE KEY FILE",
        "others can read the key file for {host}, so ssh does not use it",
        "run chmod 600 on it",
    ),
    (
        NO_KEYS,
        "{host} accepts none of your keys",
        (
            "`{ssh} {host} true` must work without a question. Run `ssh-copy-id{options} {host}`,"
            " or load the key into an ssh-agent and run `gpq nodes` in that shell"
        ),
    ),
    (
        r"Could not resolve hostname",
        "the name of {host} cannot be resolved",
        "correct `host`, or check your DNS or VPN",
    ),
    (r"Connection refused", "{host} refuses connections", "does sshd run there on that port?"),
    (
        r"No route to host|Network is unreachable",
        "there is no network route to {host}",
        "is it switched on, and is the VPN up?",
    ),
    (
        r"timed out during banner exchange|Timeout before|banner exchange",
        "{host} accepts connections but does not answer",
        "its sshd hangs or is overloaded",
    ),
    (
        r"(Connection|Operation) timed out",
        "{host} does not answer",
        "is it switched on, and is the VPN up?",
    ),
    (r"Timeout, server .* not responding", "{host} no longer answers", ""),
    (
        r"Session open refused|open failed|no more sessions|MaxSessions",
        "{host} allows no more sessions",
        "check MaxSessions in its sshd_config",
    ),
    (
        (
            r"Bad configuration option|[Bb]ad owner or permissions|terminating, \d+ bad|Can't open"
            r" user config"
        ),
        "ssh's own configuration is wrong",
        "`{ssh} -G {host}` shows where",
    ),
    (
        r"This account is currently not available|account .*(expired|locked)",
        "the account on {host} may not log in",
        "ask for a login shell there",
    ),
    (
        r"Connection reset|Connection closed|closed by remote host|Broken pipe",
        "{host} closed the connection",
        "",
    ),
)

AGENTLESS = (
    "the ssh-agent of the shell where you used gpq is gone. Run `gpq nodes` in a shell where"
    " `{ssh} {host} true` works"
)

LASTING = frozenset(
    pattern
    for pattern, sentence, _ in KNOWN
    if re.search("host key|keys|key file|may not log in", sentence)
)


def problem(
    complaints: str, host: str, ssh: str = "ssh", *, agentless: bool = False
) -> Problem | None:
    """The problem in what ssh wrote to stderr, or its last line if nothing is known, or None if
    there is nothing. `ssh` is how it was started, for the hints. `agentless` means that its former
    ssh-agent is gone."""
    return known(complaints, host, ssh, agentless=agentless) or last_problem(complaints)


def known(
    complaints: str, host: str, ssh: str = "ssh", *, agentless: bool = False
) -> Problem | None:
    """The problem in what ssh or the other end wrote, if it is a usual one."""
    for pattern, sentence, usual in KNOWN:
        if re.search(pattern, complaints):
            hint = AGENTLESS if agentless and pattern == NO_KEYS else usual
            options = ssh.partition(" ")[1] + ssh.partition(" ")[2]
            # for a changed key, with the file and the name that ssh reports
            name = re.search(r"Host key for (\S+) has changed", complaints)
            file = re.search(r"Offending \S+ key in (.+):\d+", complaints)
            forget = ["ssh-keygen", *(["-f", file[1]] if file else [])]
            forget += ["-R", name[1] if name else host.rpartition("@")[2]]
            words = {"host": host, "ssh": ssh, "options": options, "forget": shlex.join(forget)}
            return Problem(sentence.format(host=host), hint.format(**words), pattern in LASTING)
    return None


def last_problem(complaints: str) -> Problem | None:
    line = last_line(complaints)
    return Problem(line) if line else None


def end_problem(host: str, code: int | None, ssh: str = "ssh") -> Problem:
    """The problem of a connection that ended without a message."""
    if code == 255:
        return Problem(f"ssh could not connect to {host}", f"`{ssh} {host} true` may show more")
    return Problem(
        f"{host}: the login shell ended before it ran anything (exit code {code})",
        "use a shell that runs commands, without ForceCommand and without `exit` in .bashrc"
        " (.cshrc, config.fish) of non-interactive shells",
    )

"""Settings about the outside world: where gpq serves metrics, who gets which notifications, and
which words look like a secret and must stay inside. Checks the words. Opens and sends nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from gpq.errors import UsageError

ADDRESS_HINT = "a port such as 9464, or with an address of this machine: 127.0.0.1:9464, [::1]:9464"
LOOPBACK = "127.0.0.1"
OPEN = "everybody who reaches it can read the names of users, servers and jobs"


class Address(NamedTuple):
    """Where the daemon listens. The address has digits, so that gpq resolves no name."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = self.host
        if ":" in host:
            host = f"[{host}]"
        return f"http://{host}:{self.port}/metrics"

    @property
    def private(self) -> bool:
        """Whether only programs of this machine reach it."""
        import ipaddress  # a daemon without metrics does not pay for this import

        return ipaddress.ip_address(self.host).is_loopback


def address(text: str) -> Address:
    """``[ADDR:]PORT``, on loopback if it names no address. Raises UsageError."""
    import ipaddress

    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if host == "localhost" or not colon:
        host = LOOPBACK
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise UsageError(f"`{text}` is no port or address with a port", ADDRESS_HINT)
    try:
        return Address(str(ipaddress.ip_address(host)), int(port))
    except ValueError:
        raise UsageError(f"`{host}` is no IP address", ADDRESS_HINT) from None


# -- notifications ---------------------------------------------------------------------------------

PROXIES = frozenset(
    variable
    for name in ("http", "https", "ftp", "all", "no")
    for variable in (f"{name}_proxy", f"{name}_proxy".upper())
)
CERTIFICATES = frozenset({"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"})
# in the name of a variable
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE", re.IGNORECASE)
WORDS = {
    "start": "it runs for the first time",
    "restart": "it runs again",
    "retry": "an attempt failed, and it is queued again",
    "fail": "it failed, ran out of time, or is held after failures",
    "end": "it has ended, however",
}
SETTINGS = ("default", "on", "lines")  # keys of [notify] that name no target
NOBODY, DESKTOP = "none", "desktop"
# compiled at their first use, because every submission imports them
TARGET = r"[A-Za-z][A-Za-z0-9_-]{0,31}"
URL = r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\x00-\x1f\x7f]+"
MAIL = r"mailto:([A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9][A-Za-z0-9.-]{0,252})"
MOST_LINES = 100
NAME_HINT = "letters, digits, dash and underscore, a letter first"
WITHOUT = f"{DESKTOP} and mailto:ADDRESS need no entry"

Table = Mapping[str, object]


class Notify(NamedTuple):
    """`[notify]`: URLs of services by name, and the defaults of jobs. Never shows the URLs."""

    targets: Mapping[str, str]
    default: tuple[str, ...] = ()
    on: tuple[str, ...] = ("end",)
    lines: int = 20  # from the end of the log

    def __repr__(self) -> str:
        return f"Notify({', '.join(sorted(self.targets))})"


NO_TARGETS = Notify({})


def notify(table: Table) -> Notify:
    """A `[notify]` without mistakes."""
    targets = {name: str(url) for name, url in table.items() if name not in SETTINGS}
    default, on = _words(table.get("default", [])), _words(table.get("on", ["end"]))
    return Notify(targets, default, on, cast(int, table.get("lines", 20)))


def notify_problems(table: Table) -> Iterator[tuple[str, str, str]]:
    """(key, problem, hint). None contains a URL."""
    for name, url in table.items():
        if name in SETTINGS:
            continue
        if not re.fullmatch(TARGET, name) or name in (NOBODY, DESKTOP):
            problem = f"`{name}` cannot be the name of a target"
            yield name, problem, f"{NAME_HINT}, except {NOBODY} and {DESKTOP}"
        elif not isinstance(url, str) or not re.fullmatch(URL, url):
            problem = f"notify.{name} is not an apprise URL"
            yield name, problem, 'write for example "slack://...". `gpq notify --help` says more'
    for name in ("default", "on"):
        if not isinstance(table.get(name, []), (list, str)):
            yield name, f"notify.{name} must be a list in square brackets", ""
            return
    lines = table.get("lines", 20)
    if type(lines) is not int or not 0 <= lines <= MOST_LINES:  # a bool is no number here
        yield "lines", f"notify.lines must lie between 0 and {MOST_LINES}", ""
    settings = notify({**table, "lines": 20})
    try:
        key = "default"
        check_targets(settings.default, settings)
        key = "on"
        events(settings.on)
    except UsageError as error:
        yield key, f"notify.{key}: {error.message}", error.hint


def check_targets(names: Sequence[str], settings: Notify) -> None:
    """Raises UsageError for a name that is neither a target of config.toml nor works without one.
    Does not repeat a URL."""
    for name in names:
        if name == DESKTOP or name in settings.targets or re.fullmatch(MAIL, name):
            continue
        if not re.fullmatch(TARGET, name):
            raise UsageError(
                "a URL is not the name of a target: others could read it on the command line"
                " and in the queue",
                f'write [notify] NAME = "URL" in config.toml, then --notify NAME. {WITHOUT}',
            )
        hint = WITHOUT
        if settings.targets:
            hint = f"known targets: {', '.join(sorted(settings.targets))}. {WITHOUT}"
        raise UsageError(f"config.toml has no target `{name}` in [notify]", hint)


def events(words: Collection[str]) -> tuple[str, ...]:
    """The words of `--notify-on`, each once. Raises UsageError."""
    for word in words:
        if word not in WORDS:
            label = word
            if not re.fullmatch(TARGET, word):
                label = "that"
            raise UsageError(
                f"`{label}` is nothing to be notified of", f"known: {', '.join(WORDS)}"
            )
    return tuple(dict.fromkeys(words))


def without_urls(table: Table) -> dict[str, object]:
    """`[notify]` to show: only the kind of each URL."""
    return {
        name: value if name in SETTINGS else f"{str(value).partition('://')[0]}://..."
        for name, value in table.items()
    }


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(map(str, value))
    return (str(value),) if value else ()

"""The process that sends one message. It reads the name of a target and a text from stdin, and
writes the outcome to stdout as one line of JSON.

Only this process reads the URL (from config.toml) and imports apprise. It does not pass on the
words of apprise, because they may contain URLs.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import re
import resource
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

from gpq import config, outward
from gpq.errors import UsageError

NICE = 10
DESKTOPS = ("dbus://", "gnome://", "macosx://")  # apprise's own, the first that works here
NO_DESKTOP = (
    "cannot reach a desktop from here: this needs a session bus, and python3-dbus or PyGObject"
    " for this Python"
)
UNKNOWN = "apprise does not know this kind of URL, or the URL is incomplete"
STATUS = re.compile(r"error[=:] ?(\d{3})\b")


def main() -> NoReturn:
    """Exit code 0 if the service accepted the message."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a plugin that prints must not spoil the answer
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    order = json.loads(sys.stdin.buffer.read())
    try:
        reason = send(
            outward.notify(config.load().notify), order["target"], order["title"], order["body"]
        )
    except UsageError as error:
        reason = error.message
    answer.write(json.dumps({"why": reason}) + "\n")
    answer.flush()
    # a fast answer makes it unlikely that a killed daemon sends the message twice
    os._exit(1 if reason else 0)


def send(settings: outward.Notify, target: str, title: str, body: str) -> str:
    """Returns "" if the service accepted it, otherwise why not. Raises UsageError for an unknown
    target."""
    import apprise  # hundreds of modules, so only this process imports them

    outward.check_targets([target], settings)
    service = _service(settings.targets, target)
    if service is None:
        return NO_DESKTOP if target == outward.DESKTOP else UNKNOWN
    complaints = _Heard()
    speaker = logging.getLogger("apprise")
    speaker.addHandler(complaints)
    speaker.propagate = False
    notifier = apprise.Apprise()
    notifier.add(service)
    if notifier.notify(title=title, body=body, body_format=apprise.NotifyFormat.TEXT):
        return ""
    return complaints.why()


def judge(target: str, url: str) -> str:
    """Why no message can go to this target, "" if one may."""
    return UNKNOWN if _service({target: url}, target) is None else ""


def _service(targets: Mapping[str, str], target: str) -> Any:
    """The apprise object for it, None if there is none here."""
    import apprise

    logging.getLogger("apprise").setLevel(logging.WARNING)
    for url in _urls(targets, target):
        try:
            service = apprise.Apprise.instantiate(url, suppress_exceptions=True)
        except Exception:  # a plugin may raise anything for a strange URL
            service = None
        if service is not None:
            return service
    return None


def _urls(targets: Mapping[str, str], target: str) -> tuple[str, ...]:
    mail = re.fullmatch(outward.MAIL, target)
    if mail is not None:  # through the mail server of this machine
        sender = f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"
        return (
            (
                f"mailto://localhost:25?to={quote(mail[1], safe='')}"
                f"&from={quote(sender, safe='')}&mode=insecure"
            ),
        )
    if target in targets:
        return (targets[target],)
    if target == outward.DESKTOP:
        return DESKTOPS
    return ()


class _Heard(logging.Handler):
    """Collects the complaints of apprise, and passes on only their kind."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self._text += f"{record.getMessage()}\n"

    def why(self) -> str:
        codes = STATUS.findall(self._text)
        if codes:
            return f"the service answered {codes[-1]}"
        text = self._text.lower()
        if "connect" in text or "timed out" in text or "socket" in text:
            return "cannot reach the service, or it does not answer"
        return "the service did not accept the message"


if __name__ == "__main__":
    main()

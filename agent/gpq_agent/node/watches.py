"""Long polls: each stays pending until there is news."""

import functools
import os
import time
from typing import Dict, List, NamedTuple, Tuple

from gpq_agent import wire
from gpq_agent.node.attempt_files import pulses
from gpq_agent.node.host import logs
from gpq_agent.node.host.errors import SpoolError
from gpq_agent.node.operations import Message, Replies, refusal
from gpq_agent.node.spool.spool import Spool
from gpq_agent.node.states import LIVE
from gpq_agent.node.survey import Survey

BUSY_POLL, CALM_POLL = 0.05, 0.25  # seconds between two looks while a watch is pending
BUSY_FOR = 5.0  # seconds after a change during which the next one is likely
REPORT_BUDGET = 256 << 10
LOOK = 4096  # bytes of a report to find out whether it has new lines
LEFT_OUT = wire.REPORT + " grew too fast, or has lines over 1 MiB, so a part is left out"


class Watch(NamedTuple):
    """A pending long poll."""

    message: Message
    until: float  # time.monotonic
    # forgotten before the request: the daemon's database is older than that
    recalled: List[str] = []


class Watches:
    """The long polls of one agent."""

    def __init__(self, place: Spool, survey: Survey, replies: Replies) -> None:
        self.spool = place
        self.survey = survey
        self.replies = replies
        self.attempts = survey.attempts
        self.reign = replies.reign
        self._pending: List[Watch] = []
        self._sizes: Dict[str, int] = {}  # of the reports of ended attempts, by key

    @property
    def is_pending(self) -> bool:
        """Does anybody wait for news?"""
        return bool(self._pending)

    def patience(self) -> float:
        """Seconds until the next look, while anybody waits."""
        now = time.monotonic()
        poll = BUSY_POLL if now - self.survey.changed_at < BUSY_FOR else CALM_POLL
        return max(0.0, min([poll] + [watch.until - now for watch in self._pending]))

    def begin(self, message: Message) -> List[Message]:
        try:
            offsets = message.get("offsets", {})
            if not isinstance(offsets, dict) or not all(
                isinstance(value, int) for value in offsets.values()
            ):
                raise ValueError("offsets")
            for key in offsets:
                wire.parse_attempt_key(key)
            wait = min(max(0.0, float(message.get("wait", 0.0))), 3600.0)
            self.survey.devices.haste = max(0.0, float(message.get("look", 0.0)))
            self.reign.admit()
            self.reign.heard(message.get("heard"), self.survey.least_lease)
        except SpoolError as error:
            return [refusal(message.get("id"), error.message, error.hint, error.kind)]
        except OSError as error:  # leases that are not renewed end, so that nothing runs twice
            problem = "cannot renew leases: {}".format(error)
            return [refusal(message.get("id"), problem, kind="busy")]
        except (TypeError, ValueError) as error:
            return [refusal(message.get("id"), "invalid watch: {}".format(error), "see wire.OPS")]
        recalled_keys = [key for key in sorted(offsets) if self.attempts.is_forgotten(key)]
        self._pending.append(Watch(message, time.monotonic() + wait, recalled_keys))
        return []  # the next tick answers it if there is news already

    def answers(self, infos: List[wire.AttemptInfo]) -> List[Message]:
        """Replies to the long polls that are ready."""
        due_watches = [watch for watch in self._pending if self._is_due(watch, infos)]
        self._pending = [watch for watch in self._pending if watch not in due_watches]
        replies = []
        for watch in due_watches:
            recalled_attempts = filter(None, map(self.attempts.look, watch.recalled))
            news = functools.partial(self._news, infos=[*infos, *recalled_attempts])
            replies.append(self.replies.reply(watch.message, news))
        return replies

    def _is_due(self, watch: Watch, infos: List[wire.AttemptInfo]) -> bool:
        if time.monotonic() >= watch.until or watch.message.get("seen") != self.survey.digest:
            return True
        offsets = watch.message.get("offsets", {})
        return any(
            self._lines(info, offsets[key], LOOK)[1] > offsets[key]
            for key, info in ((wire.attempt_key(info.job, info.attempt), info) for info in infos)
            if key in offsets
        )

    def _lines(self, info: wire.AttemptInfo, offset: int, budget: int) -> Tuple[str, int]:
        """As `logs.lines_after`. What comes after the end of the attempt is not its report."""
        key = wire.attempt_key(info.job, info.attempt)
        path = os.path.join(self.spool.folder(key), wire.REPORT)
        if info.state in LIVE:
            return logs.lines_after(path, offset, budget)
        if key not in self._sizes:
            self._sizes[key] = logs.tail(path, 0, 0)[2]
        return logs.lines_after(path, offset, budget, self._sizes[key])

    def _news(self, message: Message, infos: List[wire.AttemptInfo]) -> Message:
        """Every attempt as it is, each with its new report lines. They share the budget equally, so
        that each gets some."""
        stamp = self.reign.stamp()
        offsets = message.get("offsets", {})
        readers = [info for info in infos if wire.attempt_key(info.job, info.attempt) in offsets]
        share = REPORT_BUDGET // max(1, len(readers))
        attempts = []
        for info in self.attempts.count(infos):
            key = wire.attempt_key(info.job, info.attempt)
            if key in offsets:
                report, offset = self._lines(info, offsets[key], share)
                info = info._replace(report=report, report_offset=offset)
                if info.state in LIVE:
                    ranks = [pulse._asdict() for pulse in pulses(self.spool.folder(key))]
                    info = info._replace(ranks=ranks)
                if report:
                    self.survey.touch()
                elif offset > offsets[key]:
                    self.attempts.files.note(key, LEFT_OUT)
            attempts.append(info._asdict())
        return {
            "digest": self.survey.digest,
            "attempts": attempts,
            "devices": self.survey.device_list(),
            "yields": self.survey.yielding.users(),
            "time": time.time(),
            "stamp": stamp,
        }

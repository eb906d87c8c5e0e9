"""Long polls: each stays pending until there is news."""

import functools
import json
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
MOST_REPORT = 512 << 10  # bytes of reports in an answer, as JSON, before the last
LONGEST_REPORT = 2 << 20  # bytes of one of them. A longer line is left out
MOST_RANKS = 8  # on each device of an attempt, whose folder may have files of any number
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
        self._turn = 0  # whose report comes first, if not all fit
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
        that each gets some. If long lines fill the answer, others wait for the next."""
        stamp = self.reign.stamp()
        offsets = message.get("offsets", {})
        readers = [info for info in infos if wire.attempt_key(info.job, info.attempt) in offsets]
        share = REPORT_BUDGET // max(1, len(readers))
        attempts, room = [], MOST_REPORT
        turn = self._turn % max(1, len(infos))
        for info in self.attempts.count(infos[turn:] + infos[:turn]):
            key = wire.attempt_key(info.job, info.attempt)
            if key in offsets:
                report, offset = "", offsets[key]
                if room > 0:
                    report, offset = self._lines(info, offset, share)
                    size = len(json.dumps(report))
                    report = report if size <= LONGEST_REPORT else ""
                    room -= size if report else 0
                else:
                    self._turn = turn + 1
                    info = info._replace(unread=True)
                info = info._replace(report=report, report_offset=offset)
                if info.state in LIVE:
                    some = pulses(self.spool.folder(key))[: MOST_RANKS * len(info.devices)]
                    info = info._replace(ranks=[pulse._asdict() for pulse in some])
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

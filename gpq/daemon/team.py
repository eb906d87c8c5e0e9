"""The own daemon's end of a team: a thread tells the arbiter what this daemon would run, another
takes what it grants. The loop never waits for either.

What an answer says counts only if it follows from something that was told (`grants.flaw`). A wrong
answer is dropped whole, and is as good as silence.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpq_agent import wire

from gpq import decoding
from gpq.config import TeamConfig
from gpq.connectors.arbiter import ANSWER_SECONDS, ArbiterClient
from gpq.connectors.ssh_agents import SshAgents
from gpq.control.controller import Controller
from gpq.core.feasibility.leases import span
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.rounds import offer_of
from gpq.core.team.claims import Statement, statement
from gpq.core.team.grants import Grants, Term, flaw
from gpq.errors import GpqError, Refused, UsageError
from gpq.pace import FACTOR
from gpq.policies.team import SILENCE
from gpq.rpc.job_answers import HoldingView, TeamView
from gpq.rpc.team_messages import AHEAD, LONGEST_TAKE, Receipt, Take, Tell

HEARTBEAT = 10.0  # seconds after which the same is told again
PAUSE = 0.1  # seconds between two statements or answers. A job reports more often than others care
RETRY_SECONDS = 1.0 * FACTOR
LONGEST_PAUSE = 60.0  # seconds between two attempts by ssh
STATEMENTS = 16  # of which an answer may follow
log = logging.getLogger(__name__)


class TeamLink:
    """`latest` is for the policy, and `warnings` are lines for the head of a listing."""

    def __init__(
        self, settings: TeamConfig, path: str, now: Callable[[], Seconds], agents: SshAgents
    ) -> None:
        """`path`: what outlives the daemon, the highest epoch and the last floor. `agents`: for the
        way to an arbiter on another machine."""
        self._settings, self._path, self._now, self._agents = settings, path, now, agents
        self._record = _memory_of(path)
        self._epoch = self._record.get("epoch", 0)
        self._term = Term(now(), floor=self._record.get("floor", 0))
        self._summary: TeamView | None = None
        self._round = -1
        self._statements: dict[int, Statement] = {}
        self._seq = 0
        self._problem = ""
        self._closing = threading.Event()
        self._clients: dict[str, ArbiterClient] = {}
        self._controller: Controller | None = None

    def latest(self) -> Term:
        return self._term

    def warnings(self) -> list[str]:
        silence = self._now() - self._term.at
        if silence <= SILENCE and not self._problem:
            return []
        line = f"team {self._settings.name}: {self._problem or 'the arbiter does not answer'}"
        if silence <= SILENCE:
            return [line]
        line += f" (for {span(silence)}). Nothing stops"
        if self._settings.without_arbiter == "wait":
            return [f"{line}, and nothing starts"]
        return [f"{line}, and jobs start on free GPUs up to your floor of {self._term.floor}"]

    def why(self, job: JobId) -> tuple[str, ...]:
        """Why the arbiter lets it wait, the headline first."""
        return self._term.why.get(job, ()) if self._now() - self._term.at <= SILENCE else ()

    def summary(self) -> TeamView | None:
        """Who has how much. None in a team of one, and while `warnings` says what is wrong."""
        return None if self.warnings() else self._summary

    def start(
        self, controller: Controller, addresses: Callable[[], Mapping[str, tuple[str, int]]]
    ) -> None:
        """`addresses`: of servers, and their ports."""
        self._controller, self._addresses = controller, addresses
        for work in (self._tell, self._take):
            name = f"team{work.__name__}"
            thread = threading.Thread(target=self._repeat, args=(name, work), name=name)
            thread.daemon = True
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for client in list(self._clients.values()):
            client.close()

    def _repeat(self, name: str, work: Callable[[ArbiterClient, Controller], None]) -> None:
        """Over one connection after the other. ssh is tried more and more seldom."""
        team, pause = self._settings, RETRY_SECONDS
        while not self._closing.is_set() and self._controller is not None:
            try:
                client = ArbiterClient(team.name, team.uid, team.arbiter, self._agents)
                self._clients[name], pause = client, RETRY_SECONDS
                try:
                    work(client, self._controller)
                finally:
                    client.close()
            except GpqError as error:
                self._note(error.message)
            except Exception as error:
                log.exception("a bug in the talk with the arbiter")
                self._note(f"gpq failed over an answer, which is a bug: {error!r:.200}")
            self._closing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE) if team.arbiter else RETRY_SECONDS

    def _note(self, problem: str) -> None:
        if problem != self._problem and not self._closing.is_set():
            log.warning("%s", problem or f"the arbiter of team {self._settings.name} answers")
            self._problem = problem

    def _tell(self, client: ArbiterClient, controller: Controller) -> None:
        self._follow(client.welcome().epoch)
        latest, at = Statement(0.0), float("-inf")
        while not self._closing.is_set():
            snapshot = controller.snapshot
            news = statement(
                snapshot,
                offer_of(snapshot)[0],
                private=self._settings.private,
                addresses=self._addresses(),
            )
            now = self._now()
            if replace(news, now=0.0) != replace(latest, now=0.0) or now - at >= HEARTBEAT:
                self._send(client, replace(news, now=now))
                latest, at = news, now
            self._closing.wait(PAUSE)
            with controller.changed:
                controller.changed.wait_for(
                    lambda: controller.snapshot is not snapshot or self._closing.is_set(),  # noqa: B023
                    timeout=HEARTBEAT,
                )

    def _send(self, client: ArbiterClient, news: Statement) -> None:
        self._seq += 1
        earlier = list(self._statements.items())[1 - STATEMENTS :]
        self._statements = {**dict(earlier), self._seq: news}
        try:
            client.call(Tell(seq=self._seq, statement=news), Receipt)
        except UsageError:  # too long: then without what was measured
            claims = tuple(replace(claim, rows=(), noise_curve=()) for claim in news.claims)
            short = replace(news, claims=claims)
            client.call(Tell(seq=self._seq, statement=short), Receipt)

    def _take(self, client: ArbiterClient, controller: Controller) -> None:
        begin = 0.0
        while not self._closing.is_set():
            self._closing.wait(begin + PAUSE - time.monotonic())  # it may answer without end
            begin = time.monotonic()
            request = Take(round=self._round, epoch=self._epoch)
            answer = client.call(request, Grants, LONGEST_TAKE + ANSWER_SECONDS)
            self._follow(answer.epoch)
            news = self._statements.get(answer.seq)
            if news is None:  # it follows from what an earlier daemon told
                continue
            self._round = answer.round
            if problem := flaw(answer, news):
                raise Refused(f"its arbiter answered wrongly, so gpq ignores it: {problem}")
            grants = {grant.job: grant.parts for grant in answer.grants}
            claims = {claim.job: claim for claim in news.claims}
            self._term = Term(self._now(), grants, claims, answer.floor, dict(answer.why))
            rows = [HoldingView(*holding) for holding in answer.holdings]
            self._summary = TeamView(self._settings.name, answer.gpus, rows) if rows else None
            self._note("")
            self._remember(answer.floor)
            if any(grants.get(claim.job, ()) != claim.parts for claim in news.claims):
                controller.hasten()

    def _follow(self, epoch: int) -> None:
        """Raises Refused for an arbiter that was replaced by a later one, and for an epoch that no
        arbiter can have yet, because no honest one could replace it."""
        latest = self._now() + AHEAD
        if epoch < self._epoch <= latest:
            raise Refused(
                f"an arbiter of epoch {epoch} answers, which one of {self._epoch} replaced"
            )
        if epoch > latest and epoch != self._epoch:
            raise Refused(f"an arbiter of epoch {epoch} answers, which is a time in the future")
        if epoch != self._epoch:
            self._epoch, self._round = epoch, -1
            self._remember(self._term.floor)

    def _remember(self, floor: int) -> None:
        content = {"epoch": self._epoch, "floor": floor}
        if content == self._record:
            return
        self._record = content
        try:
            wire.write_json(self._path, content)
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error.strerror)


def _memory_of(path: str) -> dict[str, int]:
    """Nothing, if there is no such file or it is damaged. The arbiter tells it again."""
    try:
        with open(path, "rb") as stream:
            return decoding.decode(stream.read(), dict[str, int])
    except (OSError, ValueError):
        return {}

"""The arbiter: takes what the members' daemons tell, decides for all of them, and answers who may
have which GPUs. It can start nothing.

One thread decides. Others serve connections. What must outlive the process is the roster, the
ledger and the audit. All else is told again within seconds.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace

import msgspec

from gpq.arbiter import views
from gpq.arbiter.audit import Audit
from gpq.arbiter.ledger import Ledger
from gpq.arbiter.roster import Roster, load
from gpq.core.model.jobs import Job
from gpq.core.model.policy import Policy
from gpq.core.model.profile import Profile
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.planning import stoppable
from gpq.core.rounds.rounds import allocate_for
from gpq.core.sharing.division import Division, on_recall
from gpq.core.sharing.floors import Floor, floors_of
from gpq.core.team.claims import MOST_WAITING, Parts, Statement
from gpq.core.team.grants import MOST_HOLDINGS, Grant, Grants, basis
from gpq.core.team.merging import Memory, Report, Team, grant, merge
from gpq.errors import GpqError, NotFound, Refused, UsageError
from gpq.ports import Peer
from gpq.rpc.team_messages import (
    LONGEST_TAKE,
    Amend,
    Hello,
    Receipt,
    Take,
    TeamRequest,
    Tell,
    View,
    Welcome,
)

BEAT: Seconds = 2.0  # between two rounds if nothing is told
REST = 1.0  # pause after a round, in multiples of its duration
LEDGER: Seconds = 30.0  # between two times that the ledger is written
RECALL: Seconds = 300.0  # for which a job that an admin recalled gets nothing
MOST_DEVICES = 2000  # of a member's servers, and so of jobs that hold some
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the last round decided, for views."""

    team: Team
    division: Division
    floors: Mapping[str, Floor]


NOTHING_YET = Verdict(Team(Snapshot(), {}, {}, {}, {}), Division({}, {}, {}), {})


class Arbiter:
    """`handle` answers any request from any thread, and `run` decides until `close`. `config`: as
    of a daemon. What users weigh is the roster's business."""

    def __init__(
        self, folder: str, policy: Policy, config: Config, now: Callable[[], Seconds] = time.time
    ) -> None:
        """`folder` has the roster, the ledger and the audit. Raises GpqError."""
        self._paths = {name: os.path.join(folder, f"{name}.json") for name in ("roster", "ledger")}
        self.roster = load(self._paths["roster"])
        self.ledger, notes = Ledger.open(self._paths["ledger"])
        self.audit = Audit(os.path.join(folder, "audit.jsonl"))
        self.audit.append(
            "start", epoch=self.ledger.epoch, roster=self.roster.digest(), notes=notes
        )
        self.verdict = NOTHING_YET
        self.reports: dict[str, Report] = {}
        self._policy, self._config, self._now = policy, config, now
        self._uids: dict[str, int] = {}  # whose daemon speaks for a member
        self._memory = Memory()
        self._recalls: dict[tuple[str, JobId], Seconds] = {}
        self._answers: dict[str, Grants] = {}
        self._bases: dict[str, set[tuple[JobId, int, Parts]]] = {}  # of the answers
        self.reserve: Callable[[Set[int]], None] = lambda uids: None  # who are members now
        self._changed = threading.Condition()
        self._news = threading.Event()
        self._closing = False
        self._at = self._written_at = now()  # of the last round, and of the ledger on disk

    # -- from any thread ---------------------------------------------------------------------------

    def admits(self, uid: int) -> bool:
        """May this user speak at all?"""
        return bool(self.roster.member_of(uid) or self.roster.may_join(uid))

    def no_member(self) -> Refused:
        """For those that may not."""
        hint = "ask an admin to type `gpq team add` with your login name"
        return Refused(f"you are no member of team {self.roster.name}", hint)

    def handle(self, request: TeamRequest, peer: Peer) -> msgspec.Struct | Grants:
        """The answer. Raises GpqError."""
        member = self.roster.member_of(peer.uid) or self._newcomer(peer.uid)
        if self.roster.members[member].paused:
            raise Refused(f"an admin has paused {member}", "ask an admin to resume you")
        match request:
            case Hello(team=self.roster.name):
                alone = peer.socket.endswith(f".{peer.uid}")
                return Welcome(self.ledger.epoch, member, self.roster.members[member].admin, alone)
            case Tell():
                return self._tell(request, member, peer.uid)
            case Take():
                return self._take(request, member)
            case View():
                return views.view(self, request, self._now())
            case Amend():
                return self._amend(request, member)
        raise NotFound(f"this is team {self.roster.name}, and no other")

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._news.set()

    def _newcomer(self, uid: int) -> str:
        """A new member by the Unix group. Raises Refused."""
        name = self.roster.may_join(uid)
        if not name:
            raise self.no_member()
        with self._changed:
            self._replace(self.roster.with_uid(name, uid), "join", name, name, uid)
        return name

    def _tell(self, request: Tell, member: str, uid: int) -> Receipt:
        now, news = self._now(), _bounded(request.statement)
        with self._changed:
            before = self.reports.get(member)
            if before and self._uids.get(member) != uid and before.is_fresh(now):
                raise Refused(
                    f"a daemon of user {self._uids[member]} speaks for {member} now",
                    "one daemon of each member is in the queue: end the other one",
                )
            self._uids[member] = uid
            self.reports[member] = Report(news, request.seq, now)
        self._news.set()
        return Receipt(request.seq)

    def _take(self, request: Take, member: str) -> Grants:
        nothing, row = Grants(self.ledger.epoch, 0, 0), self.roster.members.get(member)

        def is_new() -> bool:
            if self._closing or self.roster.members.get(member) is not row:
                return True  # who is removed or paused hears so from the next `take`
            answer = self._answers.get(member, nothing)
            is_seen = (answer.epoch, answer.round) == (request.epoch, request.round)
            return member in self._answers and not is_seen

        with self._changed:
            self._changed.wait_for(is_new, timeout=LONGEST_TAKE)
            return self._answers.get(member, nothing)

    def _amend(self, request: Amend, member: str) -> Receipt:
        with self._changed:
            if request.action == "recall":
                self._recall(request, member)
            else:
                roster = self.roster.amendment(
                    request.action, request.member, request.value, by=member
                )
                self._replace(roster, request.action, request.member, member, request.value)
        self._news.set()
        return Receipt()

    def _replace(self, roster: Roster, action: str, member: str, by: str, value: float) -> None:
        """First the audit, so that no change is without its line."""
        self.audit.append(action, member=member, by=by, value=value, roster=roster.digest())
        roster.save(self._paths["roster"])
        self.roster = roster
        for name in self.reports.keys() - roster.members.keys():
            del self.reports[name]
            self._answers.pop(name, None)
        if not self._closing:
            self.reserve(roster.uids)
        self._changed.notify_all()

    def _recall(self, request: Amend, by: str) -> None:
        if not self.roster.members[by].admin:
            raise Refused("only an admin may recall a job of another member", "ask an admin")
        job = JobId(int(request.value))
        report = self.reports.get(request.member)
        claims = report.statement.claims if report else ()
        if not any(claim.job == job and claim.parts for claim in claims):
            raise NotFound(f"no job {request.member}/{job} holds GPUs")
        name = self._memory.ids.get((request.member, job), JobId(0))
        twin = self.verdict.team.snapshot.jobs.get(name)
        if twin is not None and not (twin.movable or twin.spec.background):
            raise Refused(
                f"gpq cannot stop {request.member}/{job} without losing its work",
                f"ask {request.member} to end it",
            )
        self.audit.append("recall", member=request.member, job=job, by=by)
        self._recalls[request.member, job] = self._now() + RECALL

    # -- deciding ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `close`."""
        while not self._closing:
            self._news.wait(timeout=BEAT)
            self._news.clear()
            start = time.monotonic()
            try:
                self.decide()
            except Exception:  # members keep what they have, and decide alone after a while
                log.exception("a bug. This round decides nothing:")
            with self._changed:
                pause = REST * (time.monotonic() - start)
                self._changed.wait_for(lambda: self._closing, timeout=pause)
        self._save()

    def decide(self) -> None:
        """One round."""
        now = self._now()
        with self._changed:
            roster, reports = self.roster, dict(self.reports)
            self._memory.recalls |= self._recalls
            self._recalls = {}
        weights = tuple((name, row.share) for name, row in sorted(roster.members.items()))
        config = replace(
            self._config,
            by_user=True,
            user_weights=weights,
            floor_patience=roster.floor_patience,
            borrow_limit=roster.borrow_limit,
        )
        team = merge(
            reports,
            self._memory,
            config,
            now,
            admins={name for name, row in roster.members.items() if row.admin},
            paused={name for name, row in roster.members.items() if row.paused},
        )
        ledger = self.ledger
        snapshot = replace(
            team.snapshot, standings=ledger.standings, standings_at=ledger.standings_at
        )
        team = replace(team, snapshot=snapshot)
        division = self._divide(snapshot)
        moves = {
            name: placement
            for name, placement in division.placements.items()
            if name in team.presence and team.presence[name] != placement
        }
        grants = grant(team, division.placements, stoppable(moves, team.occupants), self._memory)
        floors = floors_of(snapshot)
        self.verdict = Verdict(team, division, floors)
        self._charge(division, now)
        self._publish(reports, grants)

    def _divide(self, snapshot: Snapshot) -> Division:
        """If the policy fails over what one member reported, that is set aside."""
        try:
            return allocate_for(on_recall(snapshot), self._policy)
        except Exception as error:
            for member in sorted({job.spec.user for job in snapshot.jobs.values()}):
                jobs = {name: _bare(job, member) for name, job in snapshot.jobs.items()}
                try:
                    division = allocate_for(replace(snapshot, jobs=jobs), self._policy)
                except Exception:
                    continue
                log.warning("the figures of %s are set aside: %r", member, error)
                return division
            raise

    def _charge(self, division: Division, now: Seconds) -> None:
        """What members hold counts, whatever runs there."""
        seconds, self._at = max(now - self._at, 0.0), now
        team = self.verdict.team
        for name, placement in team.presence.items():
            self.ledger.charge(team.claims[name][0], placement.replicas * seconds, now)
        self.ledger.standings, self.ledger.standings_at = dict(division.standings), now
        if now - self._written_at >= LEDGER:
            self._written_at = now
            self._save()

    def _save(self) -> None:
        try:
            self.ledger.save(self._paths["ledger"])
        except GpqError as error:  # the next one is whole again, and training goes on
            log.error("%s", error.message)

    def _publish(
        self, reports: Mapping[str, Report], grants: Mapping[str, tuple[Grant, ...]]
    ) -> None:
        team = self.verdict.team
        size, holdings = views.holdings(self, self._at)
        active = [row for row in holdings.values() if row.gpus or row.waiting]
        active = sorted(active, key=lambda row: (-row.gpus, row.member))[: MOST_HOLDINGS - 1]
        reasons: dict[str, list[tuple[JobId, tuple[str, ...]]]] = {}
        for name, (member, claim) in team.claims.items():
            if not claim.parts:
                lines = views.reasons(self.verdict, name)
                reasons.setdefault(member, []).append((claim.job, lines))
        news = []
        with self._changed:
            for member in reports.keys() & self.reports.keys():
                own, before = grants.get(member, ()), self._answers.get(member)
                seq, floor = reports[member].seq, holdings[member].floor
                rest = [row for row in active if row.member != member]
                rows = (holdings[member], *rest) if len(holdings) > 1 else ()
                why = tuple(reasons.get(member, ()))
                answer = Grants(self.ledger.epoch, 1, seq, own, floor, why, size, rows)
                base = basis(reports[member].statement.claims)
                if before is not None:
                    is_same = base == self._bases[member] and answer == replace(
                        before, round=1, seq=seq, why=why
                    )
                    answer = replace(answer, round=before.round + (not is_same))
                    news += _news(member, before, answer, team)
                self._answers[member], self._bases[member] = answer, base
            self._changed.notify_all()
        try:
            for what, fields in news:
                self.audit.append(what, **fields)
        except GpqError as error:  # training goes on
            log.error("%s", error.message)


def _bounded(news: Statement) -> Statement:
    """What one member tells must not keep a round busy at the cost of all. Raises UsageError."""
    holders = [claim for claim in news.claims if claim.parts]
    waiting = [claim for claim in news.claims if not claim.parts]
    if max(len(holders), sum(len(server.devices) for server in news.servers)) > MOST_DEVICES:
        raise UsageError(f"a member may have {MOST_DEVICES} GPUs and CPU slots at most")
    more = news.more + len(waiting[MOST_WAITING:])
    return replace(news, claims=(*holders, *waiting[:MOST_WAITING]), more=more)


def _news(
    member: str, before: Grants, after: Grants, team: Team
) -> list[tuple[str, dict[str, object]]]:
    """What the audit says of an answer: jobs that may start, and those that must give back."""
    holders = {
        claim.job for name, (user, claim) in team.claims.items() if user == member and claim.parts
    }
    earlier = {grant.job: grant.parts for grant in before.grants}
    present = {grant.job: grant.parts for grant in after.grants}
    starts = {job: present[job] for job in sorted(present.keys() - earlier.keys() - holders)}
    recalls = {job: earlier[job] for job in sorted((earlier.keys() & holders) - present.keys())}
    return [
        (what, {"member": member, "job": job, "devices": parts})
        for what, jobs in (("grant", starts), ("recall", recalls))
        for job, parts in jobs.items()
    ]


def _bare(job: Job, member: str) -> Job:
    """A job of this member without what it has measured."""
    if job.spec.user != member:
        return job
    return replace(job, profile=Profile(job.profile.declared))

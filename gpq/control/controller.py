"""The loop: wait for events, decide, commit, publish, act. It owns the state and the order of these
steps, and decides nothing itself. If a pass fails over what a job has measured, or over a piece of
news, the loop goes on without that."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

from gpq.control.counters import Counters
from gpq.core.feasibility import environments
from gpq.core.model.events import EnvironmentSeen, Event, NodeSeen, NodeSilent, Profiled, Submitted
from gpq.core.model.jobs import Job, with_notices
from gpq.core.model.policy import Policy
from gpq.core.model.profile import Profile
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId, Seconds
from gpq.core.rounds.reconcile import not_from_the_future
from gpq.core.rounds.rounds import Decision, Round, decide, due, next_round
from gpq.core.state.apply_events import fold
from gpq.errors import DaemonUnreachable, GpqError, StoreFailed
from gpq.ports import Store, World

_NODE_NEWS = (NodeSeen, NodeSilent, EnvironmentSeen)
T = TypeVar("T")
Build = Callable[[Snapshot], tuple[Sequence[Event], T]]
PATIENCE = 16  # group commits in a row that may delay a round
MANY = 1000  # with this many live jobs or more, rounds that only new jobs need may use at most
# this part of the time. They then take long, and there is hardly ever room for one more job.
SHARE = 0.2
LONGEST_PUT_OFF: Seconds = 5.0  # but no longer than this
AGAIN: Seconds = 1.0  # before the next try after the store refused
REMEMBERED = 256  # round times kept for `gpq daemon status`
Pass = Callable[[Snapshot, Sequence[Event]], Decision]
Suspect = tuple[Literal["job", "news"], int]  # the measurements of a job, or news by its place
SHOWN = 5000  # characters of each culprit in the log
ASIDE = (
    "gpq failed over what it has measured or heard, and set that aside, which is a bug in gpq:"
    " {!r:.200}. `gpq daemon logs` has more"
)
log = logging.getLogger(__name__)


class Controller:
    """One thread calls `run`. Any other thread may call `ask`. Readers take `snapshot` and
    `last_round` as they are."""

    def __init__(self, world: World, store: Store, policy: Policy, config: Config) -> None:
        self.world = world
        self.store = store
        self.policy = policy
        loaded = replace(store.load(), now=world.now(), config=config)
        self.snapshot: Snapshot = environments.recall(not_from_the_future(loaded))
        self.last_round: Round | None = None
        self.last_change: Round | None = None  # the last round that changed anybody's GPUs
        self.rounds = 0
        self.round_seconds: deque[Seconds] = deque(maxlen=REMEMBERED)
        self.tally = Counters()
        self.changed = threading.Condition()
        self._asks: deque[tuple[Build[Any], Future[Any]]] = deque()
        self._lock = threading.Lock()
        self._over: GpqError | None = None
        self._backlog: list[Event] = []  # facts of a commit that the store refused
        self._policy_news = threading.Event()
        self._due = self._urgent = False  # is a round due, and for another reason than new jobs?
        self._settled = False  # did an earlier pass produce the snapshot?
        # when the next round is due according to a snapshot
        self._next: tuple[Snapshot | None, Seconds] = (None, 0.0)
        self._put_off = 0
        self._round_over = time.perf_counter() - LONGEST_PUT_OFF
        self._not_before: Seconds | None = None
        world.publish(self.snapshot)

    # -- from any thread ---------------------------------------------------------------------------

    def ask(self, build: Build[T]) -> T:
        """Return what `build` answers, after its events are durable. `build` runs in the loop's
        thread on the newest snapshot.

        Raises what `build` raises (then nothing has changed), or GpqError if the events could not
        be stored.
        """
        return self.post(build).result()

    def post(self, build: Build[T]) -> Future[T]:
        """Like `ask`, without waiting for the answer."""
        answer: Future[T] = Future()
        with self._lock:
            if self._over is not None:
                raise self._over
            self._asks.append((build, answer))
        self.world.wake()
        return answer

    def hasten(self) -> None:
        """A round at once, because the policy would now decide otherwise."""
        self._policy_news.set()
        self.world.wake()

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs until the world has nothing more to send. Raises StoreFailed when it can no longer
        store the state."""
        ending: GpqError = DaemonUnreachable(
            "the daemon is stopping", "try again: a new one will start"
        )
        try:
            while (news := self.world.wait(self.wake_at())) is not None:
                self.step(news)
        except StoreFailed as error:
            ending = error
            raise
        finally:
            with self._lock:
                self._over = ending
            _fail(self._take_asks(), ending)
            with self.changed:
                self.changed.notify_all()

    def step(self, news: Sequence[Event]) -> None:
        """One pass: facts and requests in, one commit, orders out. The loop acknowledges and orders
        nothing before the commit."""
        snapshot = replace(self.snapshot, now=self.world.now())
        facts = [*self._backlog, *news]
        asks = self._take_asks()
        try:
            answers, ask_events = self._build(snapshot, facts, asks)
            self._look_for_reasons(snapshot, [*facts, *ask_events])
            # A caller waits for one commit, but not for a round. The round follows at once.
            allocate = self._due and not self._rest() and (not answers or self._put_off >= PATIENCE)
            start = time.perf_counter()
            run: Pass = partial(
                decide, policy=self.policy, allocate=allocate, settled=self._settled
            )
            decision = decision_of(run, snapshot, facts, ask_events)
            decision_seconds = time.perf_counter() - start
            commit_seconds = self._commit(decision)
        except BaseException as error:
            _fail(asks, error)
            is_over = isinstance(error, StoreFailed) or not isinstance(error, Exception)
            if is_over or not (asks or isinstance(error, GpqError)):
                raise
            # Nothing was written. The loop keeps the facts and tries them again, but drops the
            # requests.
            self._backlog = facts
            self._not_before = snapshot.now + AGAIN
            return
        self._backlog, self._not_before, self._settled = [], None, True
        round_seconds: Seconds | None = None
        if allocate:
            self._due, self._urgent, self._put_off = False, False, 0
            self.rounds += 1
            round_seconds = decision_seconds
            self.round_seconds.append(decision_seconds)
            self._round_over = time.perf_counter()
        else:
            self._put_off += 1
        tally = self.tally.after(self.snapshot, decision, round_seconds, commit_seconds)
        fault = self.last_round.fault if self.last_round is not None else ""
        if decision.round is not None and decision.round.fault != fault:
            log.warning(decision.round.fault or "the policy answers well again")
        with self.changed:
            self.tally = tally
            self.snapshot = decision.snapshot
            if decision.round is not None:
                self.last_round = decision.round
                if decision.round.changes:
                    self.last_change = decision.round
            self.world.publish(decision.snapshot)
            self.changed.notify_all()
        for answer, result in answers:
            answer.set_result(result)
        for action in decision.actions:
            self.world.perform(action)

    def _look_for_reasons(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Do these events make a round due, and for another reason than new jobs?"""
        other_events = [event for event in events if not isinstance(event, Submitted)]
        if self._policy_news.is_set():
            self._policy_news.clear()
            self._urgent = True
        if not self._urgent:
            self._urgent = due(snapshot, other_events) or snapshot.now >= self._next_round()
        self._due = self._due or self._urgent or due(snapshot, events)

    def wake_at(self) -> Seconds:
        """When the next `step` is due even if nothing arrives."""
        if self._not_before is not None:
            return self._not_before
        if self._due and (pause := self._rest()):
            return min(self.world.now() + pause, self._next_round())
        return self.snapshot.now if self._due else self._next_round()

    def _next_round(self) -> Seconds:
        basis, at = self._next
        if basis is not self.snapshot:
            self._next = self.snapshot, (at := next_round(self.snapshot))
        return at

    def _rest(self) -> Seconds:
        """How long a due round still has to wait, even if nobody waits for an answer."""
        if self._urgent or len(self.snapshot.jobs) < MANY or not self.round_seconds:
            return 0.0
        pause = min(self.round_seconds[-1] * (1 / SHARE - 1), LONGEST_PUT_OFF)
        return max(pause - (time.perf_counter() - self._round_over), 0.0)

    def _take_asks(self) -> list[tuple[Build[Any], Future[Any]]]:
        with self._lock:
            asks = list(self._asks)
            self._asks.clear()
        return asks

    def _build(
        self,
        snapshot: Snapshot,
        facts: Sequence[Event],
        asks: Sequence[tuple[Build[Any], Future[Any]]],
    ) -> tuple[list[tuple[Future[Any], Any]], list[Event]]:
        """Each request sees what earlier ones did, in a snapshot that it must not keep. A request
        that fails is answered here and leaves no trace."""
        answers: list[tuple[Future[Any], Any]] = []
        events: list[Event] = []
        if not asks:
            return answers, events
        base = snapshot
        # one copy for all of them: with many jobs, a copy for each would take longest
        jobs, snapshot = _on_a_copy(base, facts)
        for build, answer in asks:
            try:
                ask_events, result = build(snapshot)
            except Exception as error:  # the caller's own error, raised again in its thread
                answer.set_exception(error)
                continue
            try:
                snapshot = fold(snapshot, ask_events, into=jobs).snapshot
            except Exception as error:
                answer.set_exception(error)
                jobs, snapshot = _on_a_copy(base, [*facts, *events])
                continue
            events.extend(ask_events)
            answers.append((answer, result))
        return answers, events

    def _commit(self, decision: Decision) -> Seconds | None:
        """Write what changed, and return how long that took. Facts that only servers know (devices,
        silence) are not stored and cost no disk write. None if nothing was written."""
        before, after = self.snapshot, decision.snapshot
        durable_events = [event for event in decision.journal if not isinstance(event, _NODE_NEWS)]
        numbers_changed = (
            after.next_id != before.next_id or after.means_kept is not before.means_kept
        )
        ended = (*decision.ended, *decision.amended)
        if not (durable_events or ended or numbers_changed or after.jobs != before.jobs):
            return None
        start = time.perf_counter()
        self.store.commit(decision.journal, after, ended)
        return time.perf_counter() - start


def _on_a_copy(snapshot: Snapshot, events: Sequence[Event]) -> tuple[dict[JobId, Job], Snapshot]:
    """`snapshot` with `events`, and its jobs. Nobody else has these jobs, so they may be changed in
    place."""
    jobs = dict(snapshot.jobs)
    return jobs, fold(replace(snapshot, jobs=jobs), events, into=jobs).snapshot


def _fail(asks: Sequence[tuple[Build[Any], Future[Any]]], error: BaseException) -> None:
    for _, answer in asks:
        if not answer.done():
            answer.set_exception(error)


def decision_of(
    run: Pass, snapshot: Snapshot, news: Sequence[Event], asked: Sequence[Event]
) -> Decision:
    """The decision of the pass on news and on what was asked for. Raises GpqError, or the pass's
    own error if neither measurements nor news are to blame."""
    try:
        return run(snapshot, [*news, *asked])
    except GpqError:
        raise
    except Exception as error:

        def without(suspects: Collection[Suspect], line: str = "") -> Decision:
            rest, events = _without(snapshot, news, suspects, line)
            return run(rest, [*events, *asked])

        suspects: list[Suspect] = [("job", name) for name in snapshot.jobs]
        suspects += [("news", place) for place in range(len(news))]
        without(suspects)  # otherwise they are not to blame
        culprits = set(suspects)
        _restore(suspects, culprits, without)
        log.exception("a bug. gpq sets this aside:")
        for kind, number in sorted(culprits):
            content = snapshot.jobs[JobId(number)].profile if kind == "job" else news[number]
            log.error("%.*s", SHOWN, content)
        return without(culprits, ASIDE.format(error))


def _restore(
    group: Sequence[Suspect],
    culprits: set[Suspect],
    without: Callable[[Collection[Suspect]], Decision],
) -> None:
    """Take those of `group` off the culprits with which the pass succeeds."""
    try:
        without(culprits.difference(group))
    except Exception:
        half = len(group) // 2
        for part in (group[:half], group[half:]) if half else ():
            _restore(part, culprits, without)
    else:
        culprits.difference_update(group)


def _without(
    snapshot: Snapshot, news: Sequence[Event], suspects: Collection[Suspect], line: str
) -> tuple[Snapshot, list[Event]]:
    """`line`: why, for the users of these jobs."""
    jobs = dict(snapshot.jobs)
    events = dict(enumerate(news))
    name: JobId | None
    for kind, number in suspects:
        if kind == "job":  # without what it has measured until now
            name = JobId(number)
            old = jobs[name].profile
            profile = Profile(old.declared, habits=old.habits, script=old.script)
            jobs[name] = replace(jobs[name], profile=profile, marks=(), gains=(), pulses=())
        else:
            event = events.pop(number)
            name = getattr(event, "job", None)
            if isinstance(event, Profiled):  # it counts as read, so that nobody reads it again
                events[number] = Profiled(event.at, event.job, event.attempt, event.offset)
        if name in jobs:
            jobs[name] = with_notices(jobs[name], line)
    return replace(snapshot, jobs=jobs), [events[place] for place in sorted(events)]

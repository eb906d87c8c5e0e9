"""The store on disk against a dictionary: jobs change, daemons crash, and copies and other writers appear, in any
order."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpq.core.model.events import (
    CancelAsked,
    Cancelled,
    Edited,
    Event,
    Failed,
    Launched,
    Profiled,
    RequeueAsked,
    Stopped,
    Submitted,
    Succeeded,
)
from gpq.core.model.jobs import Job
from gpq.core.model.placements import BatchOrder, Exit, Placement
from gpq.core.model.snapshot import Snapshot
from gpq.core.model.units import DeviceId, JobId, NodeId
from gpq.core.state.apply_events import fold
from gpq.errors import StoreFailed
from gpq.store.sqlite import SqliteStore
from tests.contract.test_stores import spec
from tests.support.examples import examples

ENDS: dict[str, type[Succeeded] | type[Failed]] = {"ok": Succeeded, "fail": Failed}
PLACE = Placement(((NodeId("a"), (DeviceId("a-0"),)),))


@dataclass
class Model:
    """What the store must hold. A copy of it is a backup."""

    jobs: dict[JobId, Job] = field(default_factory=dict)
    ended: dict[JobId, Job] = field(default_factory=dict)
    journal: list[Event] = field(default_factory=list)
    next_id: int = 1

    def copy(self) -> Model:
        return Model(dict(self.jobs), dict(self.ended), list(self.journal), self.next_id)


class StoreMachine(RuleBasedStateMachine):
    """The core folds events as in the loop, so the jobs that are written are realistic."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "gpq.db")
        self.store = SqliteStore(self.path)
        self.model = Model()
        self.saved: Model | None = None
        self.old: list[SqliteStore] = []
        self.clock = 0.0
        self.epoch = self.store.epoch

    def _commit(self, *events: Event) -> None:
        model = self.model
        folded = fold(Snapshot(now=self.clock, jobs=model.jobs, next_id=model.next_id), events)
        ended = (*folded.ended, *folded.amended)
        self.store.commit(folded.journal, folded.snapshot, ended)
        model.jobs = dict(folded.snapshot.jobs)
        model.ended |= {job.id: job for job in ended}
        model.journal += [event for event in folded.journal if not isinstance(event, Profiled)]
        model.next_id = folded.snapshot.next_id
        self.clock += 1.0

    def _pick(self, number: int, *, running: bool) -> Job | None:
        found = [job for _, job in sorted(self.model.jobs.items()) if (job.placement is not None) is running]
        return found[number % len(found)] if found else None

    # -- jobs ----------------------------------------------------------------------------------------------------------

    @rule(names=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=3))
    def submit(self, names: list[str]) -> None:
        first = self.model.next_id
        self._commit(*[Submitted(self.clock, JobId(first + place), spec(name)) for place, name in enumerate(names)])

    @rule(number=st.integers(0, 9))
    def start(self, number: int) -> None:
        if (job := self._pick(number, running=False)) is not None:
            self._commit(Launched(self.clock, job.id, job.attempt + 1, PLACE, BatchOrder()))

    @rule(number=st.integers(0, 9), loss=st.floats(allow_nan=False), offset=st.integers(1, 1 << 40))
    def report(self, number: int, loss: float, offset: int) -> None:
        """Kept in the job's row and not in the journal."""
        if (job := self._pick(number, running=True)) is not None:
            self._commit(Profiled(self.clock, job.id, job.attempt, offset, metrics=(("loss", loss),)))

    @rule(
        number=st.integers(0, 9), how=st.sampled_from(sorted(ENDS)), code=st.integers(0, 255), note=st.text(max_size=9)
    )
    def finish(self, number: int, how: str, code: int, note: str) -> None:
        if (job := self._pick(number, running=True)) is not None:
            self._commit(ENDS[how](self.clock, job.id, Exit(code, note=note)))

    @rule(number=st.integers(0, 9), running=st.booleans())
    def cancel(self, number: int, running: bool) -> None:
        if (job := self._pick(number, running=running)) is not None:
            self._commit(CancelAsked(self.clock, job.id, "ada"))
            self._commit(Cancelled(self.clock, job.id))

    @rule(number=st.integers(0, 9))
    def requeue(self, number: int) -> None:
        if (job := self._pick(number, running=True)) is not None:
            self._commit(Stopped(self.clock, job.id, Exit(None, signal=15)))

    @rule(number=st.integers(0, 9), name=st.sampled_from(["a", "b"]), back=st.booleans())
    def again_or_amend(self, number: int, name: str, back: bool) -> None:
        """A job that had ended comes back, or its record changes."""
        if not self.model.ended:
            return
        past = [job for _, job in sorted(self.model.ended.items())][number % len(self.model.ended)]
        if back:
            del self.model.ended[past.id]
            self._commit(RequeueAsked(self.clock, past.id, "ada", past))
        else:
            self._commit(Edited(self.clock, past.id, past.spec.having(name=name), past=past))

    # -- the disk and who writes on it ---------------------------------------------------------------------------------

    def _reopen(self) -> None:
        self.store = SqliteStore(self.path)
        assert self.store.epoch > self.epoch, "an epoch was used twice"
        self.epoch = self.store.epoch

    @rule()
    def end_and_open(self) -> None:
        self.store.close()
        self._reopen()

    @rule()
    def crash_and_open(self) -> None:
        """The writer never closes. The next one finds its files as they are. The old one may wake up later."""
        self.old.append(self.store)
        self._reopen()

    @precondition(lambda self: self.old)
    @rule()
    def the_old_one_wakes(self) -> None:
        old = self.old.pop()
        before = old.load()
        late = Job(JobId(before.next_id), spec("late"), submitted_at=self.clock)
        after = replace(before, jobs={**before.jobs, late.id: late}, next_id=before.next_id + 1)
        with pytest.raises(StoreFailed):
            old.commit([Submitted(self.clock, late.id, late.spec)], after)
        old.close()

    @rule()
    def crash_within_a_transaction(self) -> None:
        """What was written without a commit is gone with the connection."""
        left = sqlite3.connect(self.path, isolation_level=None)
        left.execute("BEGIN IMMEDIATE")
        left.execute("DELETE FROM jobs")
        left.execute("UPDATE meta SET value = '1' WHERE key = 'next_id'")
        left.close()

    @rule()
    def back_up(self) -> None:
        self.store.backup()
        self.saved = self.model.copy()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def restore(self) -> None:
        """As the hint for a damaged database says: replace it with the copy."""
        assert self.saved is not None
        for store in (self.store, *self.old):
            store.close()
        self.old.clear()
        for left in ("-wal", "-shm"):
            if os.path.exists(self.path + left):
                os.unlink(self.path + left)
        shutil.copyfile(self.path + ".backup", self.path)
        self.model = self.saved.copy()
        self.store = SqliteStore(self.path)
        self.epoch = self.store.epoch

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        state = self.store.load()
        assert dict(state.jobs) == self.model.jobs
        assert state.next_id == self.model.next_id
        assert {job.id: job for job in self.store.history()} == self.model.ended
        assert self.store.ended_count() == len(self.model.ended)
        assert self.store.events() == self.model.journal

    def teardown(self) -> None:
        for store in (self.store, *self.old):
            store.close()
        with closing(SqliteStore(self.path)) as last:  # and all of it is on the disk
            assert dict(last.load().jobs) == self.model.jobs
            assert last.load().next_id == self.model.next_id
        self._folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)

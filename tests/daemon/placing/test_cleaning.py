"""Which jobs go when their time is over."""

from __future__ import annotations

import pytest

from gpq.control.controller import Controller
from gpq.core.model.events import Succeeded
from gpq.core.model.jobs import Dependency, On
from gpq.core.model.placements import Exit
from gpq.core.model.snapshot import Config, Snapshot
from gpq.core.model.units import JobId
from gpq.daemon.files import cleaning
from gpq.daemon.files.cleaning import DAY, Cleaning
from gpq.policies.fifo import Fifo
from tests.control.test_controller import Desk, running
from tests.support import builders
from tests.support.memory_store import MemoryStore


def test_jobs_whose_time_is_over_go_page_by_page_and_what_a_live_one_names_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleaning, "PAGE", 3)
    world, store = Desk(), MemoryStore()
    world.clock = 100 * DAY
    held = builders.job(21, spec_=builders.black_box(after=(Dependency(JobId(8), On.ANY),)))
    ended = [builders.job(number, ended_at=number * DAY) for number in range(1, 21)]
    late = builders.job(22, ended_at=5 * DAY)
    store.commit([Succeeded(99 * DAY, late.id, Exit(0))], Snapshot(jobs={held.id: held}, next_id=23), [*ended, late])
    controller, looks = Controller(world, store, Fifo(), Config(policy="fifo")), list[bool]()
    jobs = Cleaning(controller, store)
    jobs.follow = lambda: looks.append(True)
    with running(controller, world):
        jobs.expire("")
        assert store.ended_count() == 21
        jobs.expire("90d")
        assert sorted(job.id for job in store.history()) == [8, *range(11, 21), 22], "of 22 gpq heard only now"
        assert looks == [True]
        jobs.expire("90d")
        assert looks == [True], "nothing was left to remove"
        assert len(jobs.old(before=20.5 * DAY)) == 10
        assert jobs.remove(before=20.5 * DAY) == 10
    assert store.removed_ids([JobId(number) for number in range(25)]) == [*range(1, 8), *range(9, 21)]

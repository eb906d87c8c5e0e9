"""gpq keeps what jobs measured between servers. So it can predict what two servers would cost a job that never ran on
two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpq.core.goodput import models
from gpq.core.goodput.goodput import sync_time
from gpq.core.goodput.priors import inform
from gpq.core.model.events import LinkMeasured, NodeRemoved
from gpq.core.model.jobs import Job
from gpq.core.model.nodes import Link
from gpq.core.model.placements import Shape
from gpq.core.model.profile import Noise, Prior, Profile, ProfileRow
from gpq.core.model.units import NodeId
from gpq.core.state.apply_events import fold
from gpq.policies.goodput.forecast import slowest, sync_seconds, with_links
from gpq.policies.registry import policy
from tests.support.builders import DECLARED, node, on, running, snapshot

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
FAST, SLOW = Link(5e-5, 10e9), Link(5e-4, 100e6)
SEEN = (ProfileRow(1, 1, 64, 0.1, 0.1, 100.0), ProfileRow(1, 2, 64, 0.1, 0.105, 100.0))


def trained(parameters: int = 25_000_000, rows: tuple[ProfileRow, ...] = SEEN) -> Job:
    declared = replace(DECLARED, parameters=parameters, batch_size=128)
    profile = Profile(declared=declared, rows=rows, noise=Noise(1.0, 5000.0, 10_000))
    return running(1, on("a", 0, 1), profile=profile)


def model(job: Job, link: Link | None) -> models.Model:
    known = {(A, B): link} if link is not None else {}
    prior = with_links(job, None, known)
    found = models.model_of(inform(job, prior).profile)
    assert found is not None
    return found


def test_measurements_are_kept_per_pair_until_a_server_is_removed() -> None:
    here = snapshot(node("a"), node("b"), node("c"))
    news = [
        LinkMeasured(1.0, (A, B), 1e-3, 1e8),
        LinkMeasured(2.0, (B, C), 1e-4, 1e9),
        LinkMeasured(3.0, (A, B), 2e-3, 2e8),
    ]
    here = fold(here, news).snapshot
    assert here.links == {(A, B): Link(2e-3, 2e8, "gloo", 3.0), (B, C): Link(1e-4, 1e9, "gloo", 2.0)}
    assert list(fold(here, [NodeRemoved(4.0, A)]).snapshot.links) == [(B, C)]
    assert slowest(here.links) == here.links[A, B]
    assert slowest({}) is None


def test_the_network_term_comes_from_the_link() -> None:
    job = trained()
    assert sync_seconds(SLOW, 25_000_000) == pytest.approx(1.0005)
    assert float(sync_time(model(job, SLOW).params, 2, 2)) == pytest.approx(1.0, rel=0.15)
    assert float(sync_time(model(job, FAST).params, 2, 2)) < 0.05
    assert float(sync_time(model(job, None).params, 2, 2)) < 0.1, "unmeasured: a tenth more than within one server"


def test_a_jobs_own_measurements_across_servers_count_more() -> None:
    across = (*SEEN, ProfileRow(2, 2, 64, 0.1, 0.12, 50.0))
    job = trained(rows=across)
    assert with_links(job, None, {(A, B): SLOW}) == Prior()
    assert float(sync_time(model(job, SLOW).params, 2, 2)) == pytest.approx(
        float(sync_time(model(job, None).params, 2, 2))
    )
    prior = Prior(rows=across[2:])
    assert with_links(trained(), prior, {(A, B): SLOW}) is prior


def test_jobs_without_size_or_times_borrow_nothing_and_answers_are_repeatable() -> None:
    known = {(A, B): SLOW}
    assert with_links(trained(parameters=0), None, known) is None
    assert not (with_links(trained(rows=()), None, known) or Prior()).rows
    job = trained()
    assert with_links(job, None, known) is with_links(job, None, known)


@pytest.mark.parametrize(("link", "spreads"), [(FAST, True), (SLOW, False)])
def test_a_job_is_spread_over_a_fast_network_and_not_over_a_slow_one(link: Link, spreads: bool) -> None:
    here = replace(snapshot(node("a", 2), node("b", 2), trained(), now=10_000.0), links={(A, B): link})
    found = policy("goodput").allocate(here)
    shape = found[trained().id]
    assert isinstance(shape, Shape)
    assert (shape.nodes > 1) is spreads

"""The runs of `make chaos` for the daemon, small enough for every commit."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.chaos import head
from tests.chaos.crowd import crowd
from tests.chaos.injection import SYNCS
from tests.support.figures import Figures

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounting a disk of its own needs root")
needs_strace = pytest.mark.skipif(
    not shutil.which("strace"), reason="strace, which injects the faults, is not installed"
)


@pytest.mark.row("1")
def test_kills_at_random_moments_lose_and_duplicate_nothing(figures: Figures) -> None:
    figures.all(head.kills(4, 11))


@pytest.mark.long
@needs_strace
@pytest.mark.row("2")
def test_a_kill_at_any_sync_of_a_jobs_life_loses_and_duplicates_nothing(figures: Figures) -> None:
    figures.all(head.points(SYNCS))


@pytest.mark.long
@pytest.mark.row("3")
def test_kills_during_recovery_do_no_harm(figures: Figures) -> None:
    figures.all(head.double_crashes(3, 3))


@pytest.mark.long
@needs_root
@pytest.mark.row("4")
def test_a_power_cut_loses_nothing_that_was_acknowledged(figures: Figures) -> None:
    figures.all(head.power_cuts(5, 5))


@pytest.mark.row("8")
def test_the_daemon_waits_for_a_locked_database_and_changes_no_job(figures: Figures) -> None:
    figures.all(head.locked_database(5, 0))


@pytest.mark.long
@pytest.mark.row("9")
def test_a_daemon_with_a_damaged_database_says_so_or_has_everything(figures: Figures) -> None:
    figures.all(head.damaged_database(5, 2))


@pytest.mark.long
@pytest.mark.row("10")
def test_one_of_two_racing_daemons_serves(figures: Figures) -> None:
    figures.all(head.races(3, 0))


@pytest.mark.row("40")
def test_a_flooded_log_is_capped_and_uses_no_memory_of_the_daemon(figures: Figures) -> None:
    figures.all(head.flooded_log(80, 0))


@pytest.mark.row("46")
def test_two_hundred_simultaneous_clients_are_all_served(figures: Figures) -> None:
    """Their times are only noted, because other work on the machine counts for more. `make chaos` has bars for them."""
    found = crowd(400, 200)
    figures.exactly("jobs acknowledged, each with an id of its own", len(found.ids), 400)
    figures.exactly("jobs in the queue", found.jobs, 401)
    slow = sorted(found.submit_seconds)[len(found.submit_seconds) * 99 // 100]
    figures.note("99th percentile of a submission", f"{slow:.2f} s (asked of 10,000 by make chaos: 1)")


@pytest.mark.long
@needs_strace
@pytest.mark.row("5")
def test_a_failed_sync_ends_the_daemon_and_is_never_acknowledged(figures: Figures) -> None:
    figures.all(head.syncs_that_fail(1, 4))


@pytest.mark.long
@pytest.mark.row("47")
def test_breaks_lose_and_double_no_byte_of_a_session(figures: Figures) -> None:
    figures.all(head.session_breaks(5, 2))

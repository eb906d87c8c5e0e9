"""Full-size runs of what happens to the daemon: kills, power cuts, damaged databases. `test_head.py` runs them
small."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.chaos.crowd import Crowd, crowd
from tests.chaos.database import damage, lock_for, two_daemons
from tests.chaos.injection import STEPS, SYNCS, WRITES, failing_syncs, killed_at_every
from tests.chaos.noisy import flood
from tests.chaos.power import PowerCutDaemon, survivors
from tests.chaos.runs import Measured, run
from tests.chaos.sessions import WEIGHTS, behind_ssh
from tests.e2e.chaos import Verdict, chaos


@run("kills", row="1", times=1000, unit="kill -9 of the daemon")
def kills(times: int, seed: int) -> Sequence[Measured]:
    """Kills come at random moments and during answers to submissions.

    Ten short jobs run per kill. A file that the jobs write is the judge.
    """
    verdict = chaos(jobs=10 * times, kills=times, slots=16, seed=seed, longest=1.0)
    return [Measured("jobs", verdict.acknowledged, at_least=10 * times), *_verdict(verdict, times)]


@run("sync-points", row="2", times=1, unit="kill at every write and every sync")
def sync_points(times: int, seed: int) -> Sequence[Measured]:
    """A job runs and ends, another is requeued and cancelled. The daemon is killed at each point in turn."""
    return [one for calls in (SYNCS, WRITES) for _ in range(times) for one in points(calls)]


def points(calls: str) -> Sequence[Measured]:
    found = killed_at_every(calls)
    named = "syncs" if calls == SYNCS else "writes and syncs"
    missed = [step for step in STEPS if step not in found.steps]
    return [
        Measured(f"killed at {named}", found.killed, at_least=len(STEPS)),
        Measured(f"steps of a job without a kill at {named}", len(missed), at_most=0, why=str(missed)),
        Measured(f"lost, double or wrong after a kill at {named}", len(found.wrong), at_most=0, why=str(found.wrong)),
    ]


@run("double-crashes", row="3", times=200, unit="kill -9 followed by three while the daemon recovers")
def double_crashes(times: int, seed: int) -> Sequence[Measured]:
    """Kills come from 50 ms after the start of the next daemon until it serves, under short jobs."""
    verdict = chaos(jobs=4 * times, kills=times, slots=8, seed=seed, longest=1.0, again=1.0)
    return [
        Measured("kills during a recovery", verdict.kills_before_ready, at_least=times),
        *_verdict(verdict, 2 * times),
    ]


@run("power-cuts", row="4", times=100, unit="power cut of the head's disk")
def power_cuts(times: int, seed: int) -> Sequence[Measured]:
    """Uses ext4 on a loop device, shut down with unsynced data (EXT4_IOC_SHUTDOWN), then mounted again."""
    kept = survivors()
    verdict = chaos(jobs=5 * times, kills=times, slots=8, seed=seed, longest=1.0, kind=PowerCutDaemon)
    return [
        Measured("files that were not synced and outlived a cut", len(kept ^ {"synced:1", "grown:1"}), at_most=0),
        *_verdict(verdict, times),
    ]


@run("failing-syncs", row="5", times=20, unit="disk whose syncs start to fail with EIO")
def syncs_that_fail(times: int, seed: int) -> Sequence[Measured]:
    """The daemon says so, ends with a code other than 0, and acknowledges nothing that is missing afterwards."""
    found = [failing_syncs(seed + number) for number in range(times)]
    silent = [one for one in found if "can no longer write the state" not in one.said]
    return [
        Measured("acknowledged", sum(len(one.acknowledged) for one in found)),
        Measured("acknowledged falsely", sum(len(one.false) for one in found), at_most=0),
        Measured("daemons that continued or ended with 0", sum(one.exit_code in (None, 0) for one in found), at_most=0),
        Measured("daemons that did not say why they ended", len(silent), at_most=0, why=str(silent)),
    ]


@run("locked-database", row="8", times=30, unit="s of a lock that another process holds on the database")
def locked_database(times: int, seed: int) -> Sequence[Measured]:
    """Meanwhile a job ends, one runs, one waits, one is submitted. Reading continues, and writing waits.

    No answer is wrong.
    """
    found = lock_for(float(times))
    return [
        Measured("locked", found.seconds, at_least=times, unit="s"),
        Measured("changes of a job's state during the lock", len(found.changed), at_most=0, why=str(found.changed)),
        Measured("jobs reported wrongly or run twice afterwards", len(found.wrong), at_most=0, why=str(found.wrong)),
        Measured("submissions that waited and were acknowledged", found.acknowledged, at_least=1),
        Measured("slowest status during the lock", found.slowest_look, at_most=2.0, unit="s"),
    ]


@run("damaged-database", row="9", times=200, unit="damage at a random place in the database")
def damaged_database(times: int, seed: int) -> Sequence[Measured]:
    """Damages the file by a flipped bit, zeros, noise, a bad page or a missing end, then follows the hint."""
    found = damage(times, seed)
    return [
        Measured("refused at the start", found.refused),
        Measured("reported when it was read", found.told),
        Measured("harmless", found.harmless),
        Measured("silent resets", len(found.resets), at_most=0, why=str(found.resets)),
        Measured("refused files that were changed", len(found.touched), at_most=0, why=str(found.touched)),
        Measured("jobs restored from the backup, of 40", found.restored, at_least=40),
    ]


@run("two-daemons", row="10", times=50, unit="race of two daemons for one state directory")
def races(times: int, seed: int) -> Sequence[Measured]:
    """One serves, and the other says why it does not. The job that ran before continues."""
    found = two_daemons(times)
    wrong = [number for number in found.serving if number != 1]
    return [
        Measured("races", found.starts, at_least=times),
        Measured("races that none or both won", len(wrong), at_most=0, why=str(wrong)),
        Measured("jobs or refusals that were wrong afterwards", len(found.harmed), at_most=0, why=str(found.harmed)),
    ]


@run("flooded-log", row="40", times=1024, unit="MiB of log within a minute")
def flooded_log(times: int, seed: int) -> Sequence[Measured]:
    """Progress bars without line ends, binary data and lines into a log with a limit, followed by a reader."""
    limit = max(times / 16, 32)
    found = flood(times, rate=1024 / 60, limit=limit)
    accounted = found.followed + found.skipped
    return [
        Measured("most on the disk", found.disk, at_most=2 * limit, unit="MiB"),
        Measured("daemon, most resident memory", found.memory, at_most=150.0, unit="MB"),
        Measured("of that, since the start of the job", found.grown, unit="MB"),
        Measured("neither sent nor reported to the reader", abs(times - accounted), at_most=0, unit="MiB"),
        Measured("wrong exit codes", int(found.ended != ("failed", 4)), at_most=0, why=str(found.ended)),
    ]


@run("session-breaks", row="47", times=1000, unit="break under the streams of `gpq run`")
def session_breaks(times: int, seed: int) -> Sequence[Measured]:
    """Four commands behind ssh echo their input, and a fifth counts. Breaks hit ssh, relays, agents and the daemon.

    They hit the client of the fifth, too, and `gpq attach` continues. Pauses of a relay are counted apart.
    """
    session = behind_ssh(times, seed)
    return [
        Measured("breaks", session.breaks, at_least=times),
        *[Measured(f"that hit: {kind}", session.hits[kind], at_least=1 + times // 100) for kind in WEIGHTS],
        Measured("streams with a byte lost or doubled", len(session.wrong), at_most=0, why="; ".join(session.wrong)),
        Measured("processes left behind", len(session.left), at_most=0, why="; ".join(session.left)),
    ]


@run("crowd", row="46", times=10_000, unit="job submitted by 200 clients")
def many_clients(times: int, seed: int) -> Sequence[Measured]:
    """All submit at once to a queue that no job leaves, and look at it. Then kill -9 of the daemon and a restart."""
    return crowded(crowd(times, 200), times)


def crowded(found: Crowd, times: int) -> list[Measured]:
    """What a crowd measured, next to the bar."""
    submits, looks = sorted(found.submit_seconds), sorted(found.meanwhile_seconds)
    return [
        Measured("acknowledged, each with an id of its own", len(found.ids), at_least=times),
        Measured("in the queue", found.jobs, at_least=times + 1),
        Measured("still there after kill -9 and a restart", len(found.durable), at_least=times),
        Measured("submission, median", statistics.median(submits), unit="s"),
        Measured("submission, 99th percentile", submits[len(submits) * 99 // 100], at_most=1.0, unit="s"),
        Measured("submission, slowest", submits[-1], unit="s"),
        Measured("gpq status at the same time, median", statistics.median(looks), at_most=0.3, unit="s"),
        Measured("gpq status at the same time, slowest", looks[-1], unit="s"),
        Measured("gpq status afterwards, median", statistics.median(found.status_seconds), at_most=0.3, unit="s"),
        Measured("all rows over the socket", found.list_seconds, unit="s"),
        Measured("until all were acknowledged", found.seconds, unit="s"),
        Measured("daemon, processor time until then", found.busy_seconds, unit="s"),
        Measured("daemon, most memory", found.memory, at_most=200.0, unit="MB"),
        Measured("daemon after the restart, most memory", found.restarted_memory, at_most=200.0, unit="MB"),
        Measured("start to serving", found.restart_seconds, at_most=2.0, unit="s"),
    ]


def _verdict(verdict: Verdict, kills_asked: int) -> list[Measured]:
    ready = sorted(verdict.ready_seconds)
    return [
        Measured("kills", verdict.kills, at_least=kills_asked),
        Measured("kills aimed at a submission", verdict.kills_at_submission),
        Measured("submissions cut off by a kill", verdict.unanswered),
        Measured("acknowledged jobs lost", len(verdict.lost), at_most=0, why=str(verdict.lost)),
        Measured("jobs started twice", len(verdict.doubled), at_most=0, why=str(verdict.doubled)),
        Measured("wrong exit codes", len(verdict.wrong), at_most=0, why=str(verdict.wrong)),
        Measured("jobs that did not end", len(verdict.unfinished), at_most=0, why=str(verdict.unfinished)),
        Measured("start to serving, median", ready[len(ready) // 2], unit="s"),
    ]

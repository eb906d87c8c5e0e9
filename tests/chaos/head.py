"""Full-size runs of what happens to the daemon: kills, power cuts, damaged databases. `test_head.py` does them small."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.runs import Measured, run
from tests.e2e.chaos import chaos


@run("kills", row="1", times=1000, unit="kill -9 of the daemon")
def kills(times: int, seed: int) -> Sequence[Measured]:
    """kill -9 of the daemon under ten short jobs a kill; a file that the jobs write is the judge."""
    verdict = chaos(jobs=10 * times, kills=times, slots=16, seed=seed, longest=1.0)
    return [
        Measured("kills", verdict.kills, at_least=times),
        Measured("aimed at a submission", verdict.kills_at_submission),
        Measured("while it recovered", verdict.kills_before_ready),
        Measured("jobs acknowledged", verdict.acknowledged, at_least=10 * times),
        Measured("acknowledged jobs lost", len(verdict.lost), at_most=0, why=str(verdict.lost)),
        Measured("jobs started twice", len(verdict.doubled), at_most=0, why=str(verdict.doubled)),
        Measured("wrong exit codes", len(verdict.wrong), at_most=0, why=str(verdict.wrong)),
        Measured("jobs that did not end", len(verdict.unfinished), at_most=0, why=str(verdict.unfinished)),
    ]

"""What the benchmark of resizes makes of the moments that a job wrote down."""

from __future__ import annotations

import pytest

from benchmarks.resize.__main__ import misses, table
from benchmarks.resize.measure import Pause, Step, pauses


def steps(attempt: int, replicas: int, first: float, seconds: float) -> list[Step]:
    """Eight steps. The first three take a second longer than the others."""
    ended, made = first, []
    for number in range(8):
        made.append(Step(attempt, replicas, ended))
        ended += seconds + (1.0 if number < 2 else 0.0)
    return made


def test_a_pause_lasts_from_step_to_step_less_a_steady_step() -> None:
    before, after = steps(1, 1, 0.0, 0.5), steps(2, 2, 20.0, 0.25)
    [pause] = pauses(before + after)
    assert (pause.before, pause.after) == (1, 2)
    assert pause.seconds == pytest.approx(20.0 - before[-1].ended - 0.25)


def test_the_table_has_medians_and_their_ratios() -> None:
    slow = [Pause(1, 2, seconds) for seconds in (4.0, 8.0, 90.0)] + [Pause(2, 1, 10.0)]
    quick = [Pause(1, 2, 2.0), Pause(2, 1, 9.0)]
    pauses_by_way = {"torchrun": slow, "gpq": quick}
    text = table(25, pauses_by_way)
    assert "| torchrun | 8.00 s, 1.00 of torchrun | 10.00 s, 1.00 of torchrun |" in text
    assert "| gpq | 2.00 s, 0.25 of torchrun | 9.00 s, 0.90 of torchrun |" in text
    assert misses(25, pauses_by_way) == ["25 M, gpq, 2 -> 1: 0.90 of torchrun, the bar is 0.85"]

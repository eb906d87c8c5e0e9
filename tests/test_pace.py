"""The daemon's patience: its values for users, that one factor scales all of them, and that wrong factors are refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpq import pace

SHOWN = "from gpq import pace; print({name: value for name, value in vars(pace).items() if name.isupper()})"


def patience(factor: str | None) -> subprocess.CompletedProcess[str]:
    """How long a process waits that has this factor in its environment."""
    kept = {name: value for name, value in os.environ.items() if name != pace.VARIABLE}
    own = {} if factor is None else {pace.VARIABLE: factor}
    return subprocess.run(
        [sys.executable, "-c", SHOWN], env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **own}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def test_users_have_the_documented_pace() -> None:
    told = eval(patience(None).stdout)
    assert told == eval(patience("1.0").stdout)
    assert (told["SILENCE"], told["HOPEFUL_BACKOFF"], told["LAST_BACKOFF"]) == (11.0, 2.0, 30.0)
    assert (told["FIRST_TIMEOUT"], told["LEAST_TIMEOUT"], told["KEEPALIVE"]) == (15, 5, 3)


@pytest.mark.parametrize("factor", [0.2, 10.0])
def test_one_factor_scales_all_of_it(factor: float) -> None:
    users, scaled = eval(patience(None).stdout), eval(patience(str(factor)).stdout)
    least = {"KEEPALIVE": 1, "FIRST_TIMEOUT": 5, "LEAST_TIMEOUT": 5}
    for name, seconds in users.items():
        if name != "VARIABLE":
            assert scaled[name] == pytest.approx(max(seconds * factor, least.get(name, 0))), name


@pytest.mark.parametrize("factor", ["", "0", "-1", "10.1", "nan", "inf", "fast"])
def test_an_invalid_factor_is_refused_in_one_line(factor: str) -> None:
    refused = patience(factor)
    assert refused.returncode == 1
    assert refused.stderr == f"gpq: GPQ_TEST_PACE is {factor!r}, and has to be a number above 0 and at most 10\n"

"""How many examples the generated tests try, and how: the same ones in every run, without a deadline for one."""

from __future__ import annotations

import os

from hypothesis import settings

SHARES = {"few": 0.1, "some": 1.0, "many": 5.0}
SHARE = SHARES[os.environ.get("GPQ_EXAMPLES", "some")]


def examples(count: int) -> int:
    """`count`, less in `make check` and more in `make test-long`."""
    return max(1, round(count * SHARE))


def load_profile() -> None:
    """For all tests, in CI and elsewhere. A machine that stalls for a second must fail nothing."""
    settings.register_profile("gpq", derandomize=True, deadline=None, max_examples=examples(100), database=None)
    settings.load_profile("gpq")

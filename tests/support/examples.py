"""How many examples the generated tests try: the same ones in every run, with no time limit for a single one."""

from __future__ import annotations

import os

from hypothesis import settings

SHARES = {"few": 0.1, "some": 1.0, "many": 5.0}
SHARE = SHARES[os.environ.get("GPQ_EXAMPLES", "some")]


def examples(count: int) -> int:
    """`count`, or fewer in `make check` and more in `make test-long`."""
    return max(1, round(count * SHARE))


def load_profile() -> None:
    """For all tests, in CI and elsewhere. A slow machine must not make a test fail."""
    settings.register_profile("gpq", derandomize=True, deadline=None, max_examples=examples(100), database=None)
    settings.load_profile("gpq")

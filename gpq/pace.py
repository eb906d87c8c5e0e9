"""The daemon's patience with servers: how long it waits for them, and how long between two tries to
reach them, and points in time until which a thread waits. All in seconds.

GPQ_TEST_PACE, a factor above 0 and at most 10, scales all of them, so that tests of silence need
not wait as long as users do. Only tests set it, and gpq reads it once. ssh counts in whole seconds,
and a login takes its time on a busy machine, so these durations have a minimum.
"""

import os
import threading
import time

VARIABLE = "GPQ_TEST_PACE"


def _factor() -> float:
    text = os.environ.get(VARIABLE, "1.0")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if 0.0 < factor <= 10.0:  # false for nan
        return factor
    raise SystemExit(f"gpq: {VARIABLE} is {text!r}, and has to be a number above 0 and at most 10")


FACTOR = _factor()


def _whole(seconds: int, least: int) -> int:
    return max(least, round(seconds * FACTOR))


# A connected server. Three missed answers and a margin, because the agent itself may wait 10 s for
# the GPU driver
SILENCE = 11.0 * FACTOR
# gpq counts silence in looks this far apart, so a daemon that was stopped blames no server
POLL = 1.0 * FACTOR
# a watch answers after this long even without news, or after a part of the shortest lease
WATCH = 3.0 * FACTOR
KEEPALIVE = _whole(3, least=1)  # between two probes of ssh itself, which misses three

# A server that is not connected: between two tries to reach it.
FIRST_BACKOFF = 0.1 * FACTOR
LAST_BACKOFF = 30.0 * FACTOR
# The longest pause shortly after an answer or our own start, because a server must be back within 5
# s.
HOPEFUL, HOPEFUL_BACKOFF = 600.0 * FACTOR, 2.0 * FACTOR

# A server that is being connected. For TCP and the key exchange, until gpq knows how long they take
FIRST_TIMEOUT = _whole(15, least=5)
# TCP sends a lost SYN again after 1 and 3 s, so a longer wait would be late after a cut
LEAST_TIMEOUT = _whole(5, least=5)
# without a byte until the shell is there. ssh itself gives up earlier on a dead connection
LOGIN_PATIENCE = 60.0 * FACTOR
SHELL_PATIENCE = 30.0 * FACTOR  # without a byte after that

# All servers. After the start or a silence, gpq waits this long before it relies on what they
# report
FIRST_NEWS = 10.0 * FACTOR
# after an absence of the daemon, it waits this long for the servers' own news
LISTENING = 15.0 * FACTOR


def deadline(seconds: float) -> float:
    """A point that `left` reads."""
    return time.monotonic() + seconds


def left(until: float) -> float:
    """Seconds until then, at least 0 and at most what a lock can wait."""
    return min(max(until - time.monotonic(), 0.0), threading.TIMEOUT_MAX)

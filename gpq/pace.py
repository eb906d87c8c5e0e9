"""The daemon's patience with servers: how long it waits for them, and between two tries to reach
them. All in seconds.

GPQ_TEST_PACE, a factor above 0 and at most 10, scales all of it alike, so that tests of silence
need not wait as long as users do. It is for tests alone and read once. ssh takes whole seconds, and
a login takes what it takes on a busy machine: those durations have a least value.
"""

import os

VARIABLE = "GPQ_TEST_PACE"


def _factor() -> float:
    text = os.environ.get(VARIABLE, "1.0")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if 0.0 < factor <= 10.0:  # not so for nan
        return factor
    raise SystemExit(f"gpq: {VARIABLE} is {text!r}, and has to be a number above 0 and at most 10")


FACTOR = _factor()


def _whole(seconds: int, least: int) -> int:
    return max(least, round(seconds * FACTOR))


# A node that is connected.
# three answers missed, and some; the agent itself may wait 10 s for the GPU driver
SILENCE = 11.0 * FACTOR
# silence is counted by looks this far apart, so that a daemon that was stopped blames nobody
POLL = 1.0 * FACTOR
# a watch answers after this long even without news, or in a part of the shortest lease
WATCH = 3.0 * FACTOR
KEEPALIVE = _whole(3, least=1)  # between two of ssh's own questions, of which it misses three

# One that is not: between two tries to reach it.
FIRST_BACKOFF = 0.1 * FACTOR
LAST_BACKOFF = 30.0 * FACTOR
# So soon after an answer, or our own start, the longest one: a node shall be back within 5 s.
HOPEFUL, HOPEFUL_BACKOFF = 600.0 * FACTOR, 2.0 * FACTOR

# One that is being reached.
# for TCP and the exchange of keys, until it is known how long they take
FIRST_TIMEOUT = _whole(15, least=5)
# a lost SYN is sent again after 1 and 3 s; who waits longer is late after a cut
LEAST_TIMEOUT = _whole(5, least=5)
# without a byte until the shell is there: ssh itself gives up on a dead way before
LOGIN_PATIENCE = 60.0 * FACTOR
SHELL_PATIENCE = 30.0 * FACTOR  # without a byte after that

# All of them.
# after the start, or of silence: who needs to know what they say waits for so long
FIRST_NEWS = 10.0 * FACTOR
LISTENING = 15.0 * FACTOR  # after the daemon's own absence, the nodes' own news are waited for

"""A replica that cannot handle SIGTERM, because it waits where no handler runs, next to a replica that is gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A launcher kills one replica. The other waits in a C lock, or trains on.
LAUNCHER = """
import ctypes, os, signal, sys, time
from gpq_agent.train.runtime import stranded
from gpq_agent.train.runtime.termination import SigtermHandler
stranded.PATIENCE = stranded.LOOK = 0.2

def stuck(terminator):
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

def training(terminator):
    while not terminator.requested:
        time.sleep(0.01)
    terminator.arm()
    time.sleep(2.0)
    os._exit(75)

other = os.fork()
if other == 0:
    time.sleep(600)
reading, writing = os.pipe()
replica = os.fork()
if replica == 0:
    terminator = SigtermHandler(replicas=2)
    terminator.arm()
    os.write(writing, b".")
    globals()[sys.argv[1]](terminator)
os.read(reading, 1)
os.kill(replica, signal.SIGTERM)
os.kill(other, signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(replica, 0)[1]))
"""


@pytest.mark.parametrize(
    ("kind", "code", "words"), [("stuck", 143, "waits for another one that is gone"), ("training", 75, "")]
)
def test_only_a_replica_that_cannot_handle_sigterm_is_ended(kind: str, code: int, words: str) -> None:
    command = [sys.executable, "-c", LAUNCHER, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, words in done.stderr) == (f"{code}\n", True), done.stderr
    assert bool(done.stderr) == bool(words)

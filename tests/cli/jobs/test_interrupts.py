"""Ctrl-C at the worst moment: after the command has checked for signals and before the system call that waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The kernel delivers the signal to the other thread, so it does not interrupt the first thread's system call.
WAITS = """\
import os, signal, socket, sys, threading
from gpq.client.connection import Connection
from gpq.rpc.job_answers import JobList
from gpq.rpc.requests import Wait

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
over = threading.Event()

def serve():
    client, _ = listener.accept()
    client.recv(1 << 16)
    os.kill(os.getpid(), signal.SIGINT)
    over.wait(30)
    over.set()
    client.close()

threading.Thread(target=serve, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
try:
    Connection(sys.argv[1]).call(Wait(["1"], wait=60.0), JobList)
except KeyboardInterrupt:
    print("too late" if over.is_set() else "at once")
"""


def test_ctrl_c_between_the_signal_check_and_the_wait_is_not_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS, str(tmp_path / "socket")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("at once\n", "")

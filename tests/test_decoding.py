"""Many threads work out the same types at once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import msgspec
import pytest

from gpq import decoding

# What a daemon does if its first two commands arrive together. Without the lock, every second such process died of
# SIGSEGV.
AT_ONCE = """
import sys, threading
from gpq.core.model.jobs import Job
from gpq.store import rows
from tests.support.builders import on, running

sys.setswitchinterval(1e-6)
job = running(1, on("a", 0))
text = rows.encode(job)
start, read = threading.Barrier(8), []

def one():
    start.wait()
    read.append(rows.decode(text, Job))

threads = [threading.Thread(target=one) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(read != [job] * 8)
"""


@dataclass
class Pair:
    left: int
    right: str = ""


def test_threads_never_see_a_half_prepared_type() -> None:
    ends = [subprocess.run([sys.executable, "-c", AT_ONCE], check=False).returncode for _ in range(10)]
    assert ends == [0] * 10


def test_text_and_trees_become_the_requested_type() -> None:
    assert decoding.decode('{"left": 1}', Pair) == decoding.convert({"left": 1}, Pair) == Pair(1)
    assert decoding.decode(b'[{"left": 2, "right": "x"}]', list[Pair]) == [Pair(2, "x")]
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str`"):
        decoding.decode('{"left": "1"}', Pair)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str`"):
        decoding.convert({"left": "1"}, Pair)
    with pytest.raises(msgspec.DecodeError):
        decoding.decode('{"left"', Pair)

"""Asks file systems that may not answer, for example because a file server is down. A child asks,
and gpq gives up after a while.

A process that waits for such a file system cannot always be killed, so it must never be the agent
that waits.
"""

import json
import os
import select
import signal
import time
from typing import Callable, Dict, List

from gpq_agent.node.host import procs
from gpq_agent.node.host.errors import SpoolError

PATIENCE = 4.0  # seconds. The daemon calls an agent silent after 11 s
AGAIN_AFTER = 10.0  # seconds until a place that did not answer is asked again
SHORT_PATIENCE = 1.0  # seconds for the next question there
LOOKS = 4  # number of waits in all that time

_silent: Dict[str, float] = {}  # when each place did not answer
_left: List[int] = []  # children that the kernel has not released yet


def check(place: str, question: Callable[[], None], longest: float = PATIENCE) -> None:
    """Run `question`, which checks mainly `place`, for at most `longest` seconds. Raises its
    SpoolError, or one of kind "busy" if there is no answer."""
    _left[:] = [pid for pid in _left if os.waitpid(pid, os.WNOHANG)[0] != pid]
    if time.monotonic() - _silent.get(place, -AGAIN_AFTER) < AGAIN_AFTER:
        raise no_answer(place)
    patience = SHORT_PATIENCE if _silent.pop(place, None) is not None else longest
    try:
        pid, pipe = procs.fork_with_pipe()
    except OSError as error:
        raise no_process(error) from error
    if pid == 0:
        _answer(pipe, question)
    try:
        # Counts the seconds in several waits. If the machine stood still during one, the answer has
        # time in the others.
        ready = any(select.select([pipe], [], [], patience / LOOKS)[0] for _ in range(LOOKS))
        line = os.read(pipe, 1 << 16) if ready else b""
    finally:
        os.close(pipe)
    if not ready:
        os.kill(pid, signal.SIGKILL)
        _left.append(pid)
        _silent[place] = time.monotonic()
        raise no_answer(place)
    os.waitpid(pid, 0)
    try:
        answer = json.loads(line.decode("utf-8"))
    except ValueError:
        problem = "the process that checked {} ended too soon".format(place)
        raise SpoolError(problem, "", "busy") from None
    if answer:
        raise SpoolError(answer["message"], answer["hint"], answer["kind"])


def _answer(writing: int, question: Callable[[], None]) -> None:
    """In the child: write `{}` or the problem, in one write that a pipe takes as a whole."""
    answer: Dict[str, object] = {}
    try:
        procs.keep_only({writing})
        question()
    except SpoolError as error:
        answer = {"message": error.message[:1000], "hint": error.hint[:1000], "kind": error.kind}
    except OSError as error:
        answer = {"message": str(error)[:1000], "hint": "check its file system", "kind": "busy"}
    finally:
        os.write(writing, json.dumps(answer).encode("utf-8"))
        os._exit(0)


def no_answer(place: str) -> SpoolError:
    message = "the file system of {} does not answer on this server".format(place)
    return SpoolError(message, "is its file server down?", "busy")


def no_process(error: OSError) -> SpoolError:
    """The refusal of a start when no process can be created."""
    hint = "it has too many processes or too little memory: see `ulimit -u` and pids.max there"
    return SpoolError("cannot start a process on this server: {}".format(error), hint, "busy")

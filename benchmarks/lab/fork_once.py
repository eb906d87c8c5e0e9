"""Starts the replicas of an attempt on one server from one interpreter that has imported torch.

On a real server each replica imports torch on cores of its own. Here sixteen imports would share
two cores. The `python` of the lab's scripts, which `run.py` writes, runs this in place of gpq's
`replicas.py`. All the rest is left to that file. Warm starts from a standby already work like this.
"""

import contextlib
import importlib.util
import os
import runpy
import sys

import gpq_agent.train  # noqa: F401
import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel
import torch.utils.data  # noqa: F401

WRAPPER = """\
#!{python} -IS
import os, sys
words = sys.argv[1:]
if words[2:] and words[:2] == ["-I", "-S"] and words[2].endswith("replicas.py"):
    words = [{fork_once!r}, *words[2:]]
os.execv({python!r}, [{python!r}, *words])
"""


class Replica(Exception):
    """Raised in a replica, to leave the code that started it."""


def main() -> None:
    path, failures, ranks, _, script, *arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("replicas", path)
    replicas = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(replicas)

    def fork(rank: int, local_rank: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        replicas.become(rank, local_rank)
        raise Replica

    with contextlib.suppress(Replica):
        sys.exit(replicas.supervise(failures, [int(rank) for rank in ranks.split(",")], fork))
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()

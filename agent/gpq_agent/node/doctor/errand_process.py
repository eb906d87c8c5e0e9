"""What an errand of `gpq doctor` receives, and how it answers."""

import json
import os
import subprocess
from typing import Any, Dict, List, NamedTuple

from gpq_agent import wire
from gpq_agent.node.host import procs

Fields = Dict[str, Any]
TRY_LIMIT = 3.0  # of one connection
LAST_LINE = 300


class Place(NamedTuple):
    """The agent's surroundings."""

    spool: str
    checkpoints: str
    base: Dict[str, str]  # the environment of a login, which all jobs have
    common: str = ""  # the folder of this server that every user's gpq uses
    limits: Dict[str, List[int]] = {}  # of a login, as in wire.Attributes


def tell(pipe: int, answer: Fields) -> None:
    """Send the errand's one answer. Its process may continue."""
    procs.write_all(pipe, wire.encode(answer))
    os.close(pipe)


def run(command: List[str], env: Dict[str, str], limit: float) -> Fields:
    """Run a program and return what it printed in its line that starts with `gpq:`, otherwise an
    error with its last line."""
    try:
        process = subprocess.run(
            command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": "{} did not answer within {:g} s".format(command[0], limit)}
    except OSError as error:
        return {"error": "cannot run {}: {}".format(command[0], error.strerror)}
    for line in reversed(process.stdout.decode("utf-8", "replace").splitlines()):
        if line.startswith("gpq:"):
            answer: Fields = json.loads(line[4:])
            return answer
    output = process.stderr.decode("utf-8", "replace").splitlines()
    lines = ["no output", *filter(None, map(str.strip, output))]
    return {"error": "exit {}: {}".format(process.returncode, lines[-1][:LAST_LINE])}

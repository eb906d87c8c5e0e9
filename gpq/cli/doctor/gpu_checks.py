"""`gpq doctor --gpu`: tests GPUs part by part, on this machine or on several servers at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpq_agent import wire

from gpq import config
from gpq.cli.doctor.errands import MOST_AT_ONCE, errand, job_environment
from gpq.client.connection import call
from gpq.options import environment
from gpq.rpc import node_answers, requests

LONGEST = 600.0  # seconds for all parts together
MARGIN = 3.0  # seconds beyond its limit in which a part may still report what it has
REPORT = "gpq_agent.node.doctor.gpu_report"


@dataclass(frozen=True)
class GpuCheck:
    node: str  # "" for this machine
    section: str  # "A" driver, "B" one replica, "C" several
    name: str
    verdict: str  # "PASS" | "FAIL" | "SKIP"
    figure: str
    seconds: float


Part = Callable[[str, float], list[wire.GpuLine]]


def report(names: Sequence[str], python: str, show: Callable[[str], None]) -> list[GpuCheck]:
    """Tests this machine if no server is named. Raises GpqError if the daemon cannot be reached or
    does not know a server."""
    try:
        if not names:
            interpreter = environment.interpreter(python, dict(os.environ))
            return _parts("", lambda part, limit: _here(part, interpreter, limit), show)
        nodes = call(requests.Nodes(list(names)), node_answers.NodeList).nodes
        configs = config.load().nodes
        pythons = {
            node.name: environment.on_server(python, configs.get(node.name, config.NodeConfig()))
            for node in nodes
        }

        def of_server(name: str) -> list[GpuCheck]:
            return _parts(name, lambda part, limit: _there(name, part, pythons[name], limit), show)

        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            return [check for checks in pool.map(of_server, pythons) for check in checks]
    finally:
        show("")


def _parts(node: str, run: Part, show: Callable[[str], None]) -> list[GpuCheck]:
    """All parts in order. Skips a part that could end after LONGEST."""
    begin = time.monotonic()
    checks: list[GpuCheck] = []
    for name, part in wire.GPU_PARTS.items():
        show(f"{node or 'this machine'}: {', '.join(part.names)}")
        seconds_left = LONGEST - (time.monotonic() - begin)
        if seconds_left < part.limit + MARGIN:
            lines = alike(
                part.names,
                "SKIP",
                f"the report takes at most {LONGEST:.0f} s, only {seconds_left:.0f} s were left",
            )
        else:
            lines = run(name, part.limit)
        checks += [GpuCheck(node, part.section, *line) for line in lines]
    return checks


def alike(names: Iterable[str], verdict: str, figure: str) -> list[wire.GpuLine]:
    return [wire.GpuLine(name, verdict, figure) for name in names]


def _here(part: str, python: str, limit: float) -> list[wire.GpuLine]:
    """Runs in its own process, because a broken driver may never answer."""
    order = {"part": part, "python": python, "env": absolute(dict(os.environ))}
    search = os.pathsep.join(os.path.abspath(entry or ".") for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-m", REPORT], env={**os.environ, "PYTHONPATH": search},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True, cwd="/",
    )  # fmt: skip
    try:
        output, errors = process.communicate(json.dumps(order), timeout=limit + MARGIN)
        ending = (errors.strip().splitlines() or ["no output"])[-1]
        ending = f"exit {process.returncode}: {ending}"
    except subprocess.TimeoutExpired:
        _kill(process)
        output, ending = process.communicate()[0], f"no answer within {limit + MARGIN:.0f} s"
    except BaseException:
        _kill(process)
        raise
    rows = [
        json.loads(line[len("gpq:") :]) for line in output.splitlines() if line.startswith("gpq:")
    ]
    return complete(part, rows, ending)


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends it with everything that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def absolute(env: dict[str, str]) -> dict[str, str]:
    """Makes PYTHONPATH absolute, because scripts run in another folder."""
    if env.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.pathsep.join(
            os.path.abspath(entry or ".") for entry in env["PYTHONPATH"].split(":")
        )
    return env


def _there(node: str, part: str, python: str, limit: float) -> list[wire.GpuLine]:
    """Runs through the daemon and the server's agent."""
    answer = errand(node, "gpu", limit + MARGIN, part=part, python=python, env=job_environment())
    rows: Any = answer.get("lines", [])
    return complete(part, rows, str(answer.get("error", "the server reported nothing")))


def complete(part: str, rows: Sequence[Mapping[str, Any]], ending: str) -> list[wire.GpuLine]:
    """A line for each check of the part. A check that reported nothing is FAIL with `ending`."""
    by_name = {row["name"]: wire.GpuLine(**row) for row in rows}
    names = wire.GPU_PARTS[part].names
    return [by_name.get(line.name, line) for line in alike(names, "FAIL", ending)]

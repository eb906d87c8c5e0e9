"""Copies the files of a job from one real agent to another, as the daemon does, and shows what a folder then holds."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gpq_agent.node.files.transfer import Pipes, run_receiver, run_sender
from gpq_agent.node.spool.spool import Spool

from gpq.connectors.local import Channel, LocalChannel
from gpq.daemon.files.transfer import Gauge, Transfer
from gpq.errors import GpqError
from tests.agent.node.harness import NodeAgent

JOB = 7
LARGE = 100_000


def seen(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a folder: kind, permissions, time, content."""
    found: dict[str, tuple[Any, ...]] = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            status = os.lstat(path)
            content: Any = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = status.st_size, _data(path)
            found[os.path.relpath(path, folder)] = oct(status.st_mode), status.st_mtime_ns, content
    return found


def _data(path: str) -> bytes:
    """The part that is not zero at the beginning. The rest of a long file is a hole."""
    with open(path, "rb") as stream:
        return stream.read(2 * LARGE)


class Within:
    """A channel to a sender or receiver that runs in a thread of the test, because a process takes long to start."""

    def __init__(self, run: Callable[[Pipes], int]) -> None:
        inner, outer = os.pipe(), os.pipe()
        self.writer: BinaryIO = os.fdopen(inner[1], "wb", 0)
        self.reader: BinaryIO = os.fdopen(outer[0], "rb", 0)
        pipes = Pipes(os.fdopen(inner[0], "rb"), os.fdopen(outer[1], "wb"))
        self._thread = threading.Thread(target=self._run, args=(run, pipes))
        self._thread.start()

    def _run(self, run: Callable[[Pipes], int], pipes: Pipes) -> None:
        run(pipes)
        for pipe in pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def last_words(self) -> str:
        return ""

    def close(self) -> None:
        self.writer.close()
        self._thread.join()
        self.reader.close()


def opened(node: NodeAgent, *words: str) -> Channel:
    """A process that sends or receives there, as the daemon opens it."""
    process = subprocess.Popen(
        [*node.argv, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=node.environment, cwd="/", start_new_session=True, bufsize=0,
    )  # fmt: skip
    return LocalChannel(process, None)


def bring(source: NodeAgent, target: NodeAgent, job: int = JOB, *, within: bool = False) -> Gauge:
    """As the daemon does it, or `within` this process. Raises GpqError with the reason why they stay."""
    stays = "" if within else listed(source, job)["stays"]
    if stays:
        raise GpqError(stays)

    def sender(_: object) -> Channel:
        if within:
            return Within(lambda pipes: run_sender(pipes, spool_of(source), job, 0.0))
        return opened(source, "--send", str(job))

    def receiver(_: object) -> Channel:
        if within:
            return Within(lambda pipes: run_receiver(pipes, spool_of(target), str(job), 0.0, "", 0))
        return opened(target, "--receive", str(job))

    gauge = Gauge()
    Transfer(sender, receiver, contextlib.nullcontext, lambda: False, lambda: True, gauge).run()
    return gauge


def spool_of(node: NodeAgent) -> Spool:
    return Spool(str(node.spool), node.argv[node.argv.index("--checkpoints") + 1])


def listed(node: NodeAgent, job: int = JOB) -> Mapping[str, Any]:
    """What a server has of a job: `count`, `age`, `stays`."""
    answer: Mapping[str, Any] = node.ask("errand", errand="files", fields={"job": job}, limit=60.0)["answer"]
    return answer

"""The daemon's own machine as a server: the agent is a child process in its own session."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from gpq.connectors import environment
from gpq.connectors.base import Channel
from gpq.connectors.complaints import Complaints, make_file
from gpq.errors import GpqError

LONGEST_LINE = 300  # characters of the last complaint
CLOSE_PATIENCE = 5.0  # seconds that a process has to end after its input was closed


class LocalChannel:
    """Pipes to a child process. Its complaints go to the file `errors`."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Path | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.complaints = Complaints(process.stderr, errors)  # type: ignore[arg-type]
        self.reader: BinaryIO = process.stdout  # type: ignore[assignment]
        self.writer: BinaryIO = process.stdin  # type: ignore[assignment]

    def last_words(self) -> str:
        lines = self.complaints.last().splitlines()
        return next((line.strip()[:LONGEST_LINE] for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Close both pipes and collect the process. If it does not end, kill it. Jobs survive,
        because shims own them."""
        with contextlib.suppress(OSError):  # it was already gone
            self.writer.close()
        try:
            self.process.wait(CLOSE_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.close()


class LocalConnector:
    """`errors` is the file for the agent's complaints, or None to drop them. `environ` is the
    environment from which the agent gets a part, by default our own. `python` runs the agent, by
    default our own."""

    def __init__(
        self,
        errors: Path | None = None,
        environ: Mapping[str, str] | None = None,
        python: str = "",
    ) -> None:
        self.errors = errors
        self.python = [python] if python else environment.interpreter()
        self.environ = environment.of_agent(os.environ if environ is None else environ)

    def put(self, content: bytes, path: str) -> None:
        """Through a temporary file in the same folder."""
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except OSError as error:
            Path(temporary).unlink(missing_ok=True)
            raise GpqError(
                f"cannot write {path}: {error.strerror}",
                "check that the folder exists and has space",
            ) from error

    def agent(
        self, arguments: Sequence[str], waiting: Callable[[], None] = lambda: None
    ) -> Channel:
        return self.spawn([*self.python, "-m", "gpq_agent.node", *arguments], waiting)

    def spawn(self, argv: Sequence[str], waiting: Callable[[], None] = lambda: None) -> Channel:
        """In its own session, so that Ctrl-C and the end of a terminal do not reach it. In /, so
        that no file in the current folder counts as a module."""
        if self.errors is not None:
            make_file(self.errors)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=self.environ,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise GpqError(
                f"cannot start {argv[0]}: {error.strerror}", "check the Python installation"
            ) from error
        return LocalChannel(process, self.errors)

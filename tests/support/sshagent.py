"""A real ssh-agent for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import wait_until


class SshAgent:
    """`with SshAgent(path, key) as agent` listens at `path`, and holds that key, if any."""

    def __init__(self, path: Path, *keys: Path) -> None:
        if shutil.which("ssh-agent") is None:
            pytest.skip("needs openssh-client")
        self.path = str(path)
        self._keys = keys

    def __enter__(self) -> SshAgent:
        self._process = subprocess.Popen(["ssh-agent", "-D", "-a", self.path], stdout=subprocess.DEVNULL)
        environment = {**os.environ, "SSH_AUTH_SOCK": self.path}
        wait_until(self._listens, "the ssh-agent listens")
        for key in self._keys:
            subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True)
        return self

    def _listens(self) -> bool:
        """Its socket is there a moment before it listens."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.path) == 0

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.end()

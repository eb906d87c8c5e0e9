"""The first command starts the daemon, however long that takes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpq.client import autostart, connection
from gpq.errors import DaemonUnreachable


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GPQ_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.0)
    return connection.paths.socket()


def test_a_daemon_that_starts_after_the_timeout_is_still_used(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:

        def start(quiet: bool) -> bool:
            listener.bind(path)
            listener.listen()
            return True

        monkeypatch.setattr(autostart, "ensure_daemon", start)
        connection.connect().close()


def test_a_daemon_that_never_listens_gives_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []
    monkeypatch.setattr(autostart, "ensure_daemon", lambda quiet: started.append(True))
    with pytest.raises(DaemonUnreachable, match="cannot reach the daemon's socket"):
        connection.connect()
    assert started == [True]

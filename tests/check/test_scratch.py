"""The one folder where the processes of a check write."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from gpq.check import runner


def test_socket_paths_fit_in_any_folder(tmp_path: Path) -> None:
    for name in ("short", "l" * 100):
        home = tmp_path / name
        home.mkdir()
        folder = runner.variables(home)["TMPDIR"]
        assert os.path.samefile(folder, home / "tmp")
        os.mkdir(os.path.join(folder, "pymp-12345678"))  # like multiprocessing
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.join(folder, "pymp-12345678", "listener-12345678"))
        assert (home / "tmp" / "pymp-12345678" / "listener-12345678").exists()
        runner.tidy(home)
        assert not os.path.islink(folder)

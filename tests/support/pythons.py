"""The Pythons of this machine, whatever HOME is: on PATH, or kept by pyenv in the account's own home."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Python(NamedTuple):
    executable: str
    home: Path  # where it is installed


@cache
def pythons() -> dict[tuple[int, int], Python]:
    """The first Python of each minor version from 3.8 on, by version. The one that runs the tests precedes its equals."""
    on_path = [
        shutil.which(f"python3.{minor}", path=folder)
        for folder in os.environ.get("PATH", "").split(os.pathsep)
        for minor in range(8, 16)
    ]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path(pwd.getpwuid(os.getuid()).pw_dir, ".pyenv"))
    found: dict[tuple[int, int], Python] = {}
    for candidate in filter(None, [sys.executable, *on_path, *map(str, pyenv.glob("versions/3.*/bin/python"))]):
        code = "import json, sys; print(json.dumps([sys.version_info[:2], sys.executable, sys.base_prefix]))"
        done = subprocess.run([candidate, "-c", code], capture_output=True, cwd="/", timeout=30, check=False)
        if done.returncode == 0:  # a shim of pyenv may refuse
            (major, minor), executable, home = json.loads(done.stdout)
            if (major, minor) >= (3, 8):
                found.setdefault((major, minor), Python(executable, Path(home)))
    return dict(sorted(found.items()))

"""Which program runs here: the script, its own modules, the versions of torch and gpq. `gpq check`
saves it, and a job compares it."""

import contextlib
import hashlib
import json
import os
import sys
import sysconfig
import types
from typing import Dict, NamedTuple

import torch

import gpq_agent

INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
MOST_READ = 1 << 26  # bytes of a file


class Program(NamedTuple):
    """What runs here. `files`: SHA-256 of the script and its own modules, by path. `digest`: of
    these without their paths, which differ between servers, and of the versions of torch and
    gpq."""

    digest: str
    torch: str
    library: str
    files: Dict[str, str]


def program() -> Program:
    """The program, as far as it is imported by now."""
    # The files of the script and its own modules: not of Python, installed packages or gpq, also
    # through links.
    foreign = [os.path.dirname(gpq_agent.__file__)]
    foreign += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    prefixes = tuple(os.path.join(os.path.realpath(folder), "") for folder in foreign)
    files: Dict[str, str] = {}
    for module in list(sys.modules.values()):
        # Read it from the module's dict, because a module may import others when asked for an
        # attribute.
        file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        if isinstance(file, str) and os.path.isfile(file):
            path = os.path.realpath(file)
            # Installers may put links into site-packages, to a cache of theirs.
            installed = any(part in file or part in path for part in INSTALLED)
            if not installed and not path.startswith(prefixes):
                files[path] = ""  # if it cannot be read
                with contextlib.suppress(OSError), open(path, "rb") as stream:
                    files[path] = hashlib.sha256(stream.read(MOST_READ)).hexdigest()
    library = gpq_agent.__version__
    whole = json.dumps([sorted(files.values()), torch.__version__, library])
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return Program(digest, torch.__version__, library, dict(sorted(files.items())))

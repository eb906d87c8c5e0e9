"""The folder of a check as the one place where its processes write: variables that send programs
there, and a command that lets them write nowhere else.

What the script itself writes, `gpq_agent.train.prove.redirect` sends to the folder of its shape.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import gpq_agent

LANDLOCK = Path(gpq_agent.__file__).parent / "train" / "prove" / "landlock.py"
NAME = "tmp"  # below the folder of the check
# Sockets are made there, with names of 36 characters, and a path of one has 107 at most.
LONGEST = 70
LINKS = Path("/tmp")  # where a path is short
LINK = "link"  # beside it, to the link
FOLDERS = {
    "TMPDIR": "",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}
# A check is no experiment. Xet is a program of Huggingface that writes past Python.
FIXED = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "HF_HUB_DISABLE_XET": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def variables(home: Path) -> dict[str, str]:
    """Whatever the shell says of them. The folder is there then."""
    folder = home / NAME
    folder.mkdir(exist_ok=True)
    if len(os.fsencode(folder)) > LONGEST:
        folder = _linked(folder)
    paths = {name: str(folder / subfolder) for name, subfolder in FOLDERS.items()}
    return {**FIXED, **paths, "MLFLOW_TRACKING_URI": f"file:{folder / 'mlruns'}"}


def _linked(folder: Path) -> Path:
    """The same by a short path."""
    link = LINKS / f"gpq-{secrets.token_hex(8)}"
    (folder.parent / LINK).symlink_to(link)  # first, so that whoever tidies up finds it
    link.symlink_to(folder)
    return link


def tidy(home: Path) -> None:
    """What lies outside of `home`."""
    with contextlib.suppress(OSError):
        os.unlink(os.readlink(home / LINK))


def confined(python: str, home: Path) -> list[str]:
    """The head of a command that writes below `home` alone, on a Linux that sees to that."""
    return [python, "-I", str(LANDLOCK), str(home)]

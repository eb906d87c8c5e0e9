"""Puts back the files that a checked script has overwritten, from the copies that its processes kept; names the new ones."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from gpq_agent import wire

MOST_NAMED = 5
OURS = ".gpq-check"  # ends the name of a file that is being put back


@dataclass
class Restored:
    """Paths. `lost` are those that could not be put back, with the reason; their copies stay where they are."""

    back: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def restore(home: Path) -> Restored:
    """After all processes of a check in `home` are gone. Once more does nothing more."""
    result = Restored()
    folder = home / wire.CHECK_KEPT
    for entry in sorted(folder.glob("*.json")):
        try:
            found = json.loads(entry.read_bytes())
            path, kind, target = str(found["path"]), str(found["kind"]), str(found["target"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        try:
            if kind == "new":
                result.new += [path] if os.path.lexists(path) else []
            elif _put_back(path, entry.with_suffix(""), target):
                result.back.append(path)
        except OSError as error:
            result.lost.append(f"{path} ({error.strerror or error}; as it was: {entry.with_suffix('')})")
            continue
        with contextlib.suppress(OSError):
            entry.unlink()
            entry.with_suffix("").unlink(missing_ok=True)
    return result


def _put_back(path: str, copy: Path, target: str) -> bool:
    """Was it another one? A link to `target`, else what is in `copy`, with its times and rights."""
    if target:
        if os.path.islink(path) and os.readlink(path) == target:
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.symlink(target, path)
        return True
    if os.path.isfile(path) and not os.path.islink(path) and filecmp.cmp(path, copy, shallow=False):
        shutil.copystat(copy, path)
        return False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shutil.copy2(copy, path + OURS)
    os.replace(path + OURS, path)
    return True


def remarks(found: Restored, cwd: str) -> list[str]:
    """Lines for the user; paths as seen from `cwd`."""
    said = []
    if found.back:
        said.append(f"the script overwrote {_named(found.back, cwd)}: put back as before the check")
    new = [path for path in found.new if _is_below(path, cwd)]
    if new:
        said.append(f"the script wrote {_named(new, cwd)}, which {'were' if new[1:] else 'was'} not there before")
    said += [f"could not be put back: {each}" for each in found.lost]
    return said


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.realpath(folder) + os.sep)


def _named(paths: list[str], cwd: str) -> str:
    short = [os.path.relpath(path, os.path.realpath(cwd)) if _is_below(path, cwd) else path for path in sorted(paths)]
    more = f" and {len(short) - MOST_NAMED} more" if len(short) > MOST_NAMED else ""
    return ", ".join(short[:MOST_NAMED]) + more

"""Whether the modules that were imported are still those that a new interpreter would import."""

import os
import sys
from typing import Dict, List, Tuple

Facts = Tuple[int, int, int]
Imported = Dict[str, Facts]


def imported_files() -> Imported:
    """The files and search folders behind the imported modules, as they are now."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [path for path in files if isinstance(path, str)]
    return {path: _facts(path) for path in [sys.executable, *_folders(), *paths]}


def changed_file(before: Imported) -> str:
    """What was changed, installed or removed since, or ""."""
    for path, facts in before.items():
        if _facts(path) != facts:
            return "{} has changed".format(path)
    return ""


def hidden_by(folder: str) -> str:
    """A file of the script's folder that a new interpreter would import instead, or ""."""
    try:
        names = {entry.name.partition(".")[0] for entry in os.scandir(folder)}
    except OSError:
        return "{} cannot be read".format(folder)
    hidden = sorted((names & sys.modules.keys()) - {"__main__", *sys.builtin_module_names})
    return "{} is in the folder of the script".format(hidden[0]) if hidden else ""


def _folders() -> List[str]:
    return [path for path in sys.path if os.path.isdir(path)]


def _facts(path: str) -> Facts:
    try:
        facts = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns)

"""What a checked script does to files that were there before is undone, whatever way it goes; else it is not let do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpq_agent import wire

from gpq.check.restoring import Restored, remarks, restore

WAYS = {
    "overwritten": "open('kept', 'w').write('x')",
    "appended": "open('kept', 'ab').write(b'x')",
    "changed in place": "open('kept', 'r+').write('x')",
    "by pathlib": "pathlib.Path('kept').write_text('x')",
    "by a path in bytes": "open(b'kept', 'w').write('x')",
    "by a link": "open('link', 'w').write('x')",
    "emptied by a descriptor": "os.close(os.open('kept', os.O_RDWR | os.O_TRUNC))",
    "truncated": "os.truncate('kept', 1)",
    "removed": "os.remove('kept')",
    "replaced": "open('other', 'w').write('x'); os.replace('other', 'kept')",
    "renamed": "os.rename('kept', 'gone')",
    "renamed, and another in its place": "os.rename('kept', 'gone'); open('kept', 'w').write('x')",
    "saved by torch": "torch.save(torch.zeros(3), 'kept')",
    "saved by numpy": "numpy.save(open('kept', 'wb'), numpy.zeros(3))",
    "copied over": "open('other', 'w').write('x'); shutil.copy('other', 'kept')",
    "a database": "base = sqlite3.connect('base'); base.execute('insert into t values (2)'); base.commit()",
    "a link that is replaced": "os.remove('link'); os.symlink('other', 'link')",
    "a folder that is removed": "shutil.rmtree('folder')",
    "a folder that is renamed": "os.rename('folder', 'away'); os.mkdir('folder'); open('folder/inside', 'w').write('x')",
    "from another folder": "os.chdir('folder'); open('../kept', 'w').write('x')",
    "a name that is no text": "open(b'na\\xffme', 'wb').write(b'x')",
    "twice": "open('kept', 'w').write('x'); open('kept', 'w').write('y')",
    "by a child": "[os.waitpid(pid, 0) if pid else (open('kept', 'w').write('x'), os._exit(0)) for pid in [os.fork()]]",
}
BEGIN = "import numpy, os, pathlib, shutil, sqlite3, sys, torch\nimport gpq_agent.train\n"


Tree = dict[bytes, tuple[str, bytes, int]]


@dataclass(frozen=True)
class Played:
    """What was there before, after the script, and what came of it."""

    folders: dict[str, Path]
    before: dict[str, Tree]
    changed: dict[str, Tree]
    restored: Restored
    again: Restored


def tree(folder: Path) -> Tree:
    """Everything below: what it is, what is in it, when it was changed."""
    found: Tree = {}
    for root, folders, files in os.walk(os.fsencode(folder)):
        for name in [*folders, *files]:
            path = os.path.join(root, name)
            if os.path.islink(path):
                found[path] = ("link", os.readlink(path), 0)
            elif os.path.isfile(path):
                found[path] = ("file", Path(os.fsdecode(path)).read_bytes(), os.stat(path).st_mtime_ns)
    return found


def made(folder: Path) -> Path:
    """A folder of somebody's."""
    (folder / "folder" / "deeper").mkdir(parents=True)
    for name in ("kept", "folder/inside", "folder/deeper/inside", os.fsdecode(b"na\xffme")):
        (folder / name).write_text(f"of {name.isascii()} worth")
        os.utime(folder / name, (1_500_000_000, 1_500_000_000))
    (folder / "link").symlink_to("kept")
    making = "import sqlite3; base = sqlite3.connect('base'); base.execute('create table t (x)'); base.commit()"
    subprocess.run([sys.executable, "-c", making], cwd=folder, check=True)
    return folder


def run(script: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, wire.ENV_CHECK: json.dumps({"folder": str(home / "a-shape")})}
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Every way, each in a folder of its own."""
    base = tmp_path_factory.mktemp("ways")
    folders = {way: made(base / str(number)) for number, way in enumerate(WAYS)}
    before = {way: tree(folder) for way, folder in folders.items()}
    home = base / "home"
    home.mkdir()
    script = "".join(f"os.chdir({str(folders[way])!r})\n{line}\n" for way, line in WAYS.items())
    done = run(script, base, home)
    assert done.returncode == 0, done.stderr
    changed = {way: tree(folder) for way, folder in folders.items()}
    return Played(folders, before, changed, restore(home), restore(home))


@pytest.mark.parametrize("way", WAYS)
def test_files_are_as_before(way: str, played: Played) -> None:
    folder, before, changed = played.folders[way], played.before[way], played.changed[way]
    assert any(changed.get(path) != was for path, was in before.items()), "nothing was changed"
    now = tree(folder)
    assert {path: now.get(path) for path in before} == before
    for path in now.keys() - before.keys():
        assert any(os.fsdecode(path).startswith(new) for new in played.restored.new), path
    assert any(path.startswith(f"{folder}/") for path in played.restored.back)


def test_once_is_enough_and_all_is_said(played: Played) -> None:
    assert not played.restored.lost
    assert played.again == Restored()
    said = remarks(played.restored, str(played.folders["removed"]))
    assert [line.split(" ", 3)[:3] for line in said] == [["the", "script", "overwrote"]]


def test_what_is_only_read_or_new_is_left_alone(tmp_path: Path) -> None:
    folder, home = made(tmp_path / "folder"), tmp_path / "home"
    home.mkdir()
    before = tree(folder)
    done = run("open('kept').read(); open('new', 'w').write('x'); open('new', 'w').write('y')", folder, home)
    assert done.returncode == 0, done.stderr
    found = restore(home)
    assert (found.back, found.new, found.lost) == ([], [str(folder / "new")], [])
    assert remarks(found, str(folder)) == ["the script wrote new, which was not there before"]
    assert {path: was for path, was in tree(folder).items() if path in before} == before
    assert (folder / "new").read_text() == "y"


def test_a_file_that_cannot_be_kept_is_not_overwritten(tmp_path: Path) -> None:
    folder, home = made(tmp_path / "folder"), tmp_path / "home"
    home.mkdir()
    (home / wire.CHECK_KEPT).write_text("in the way")
    before = tree(folder)
    done = run("open('kept', 'w')", folder, home)
    assert done.returncode != 0
    assert "gpq check cannot keep a copy of" in done.stderr
    assert tree(folder) == before


def test_a_copy_that_cannot_be_put_back_stays_and_is_named(tmp_path: Path) -> None:
    folder, home = made(tmp_path / "folder"), tmp_path / "home"
    home.mkdir()
    done = run("os.remove('kept'); os.mkdir('kept'); open('kept/inside', 'w').close()", folder, home)
    assert done.returncode == 0, done.stderr
    found = restore(home)
    [line] = found.lost
    assert line.startswith(str(folder / "kept"))
    copy = line.rsplit("as it was: ", 1)[1].rstrip(")")
    assert Path(copy).read_text() == "of True worth"
    assert remarks(found, str(folder))[-1] == f"could not be put back: {line}"

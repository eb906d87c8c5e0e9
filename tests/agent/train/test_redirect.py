"""A checked script sees its file changes as in a plain run, and nobody else sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gpq_agent
import pytest
from gpq_agent import wire
from gpq_agent.train.prove import landlock

from tests.support.pythons import pythons

# At the end, `seen` is compared with its value in a plain run, and so is the folder as the script sees it.
WAYS = {
    "write": "seen = open('kept', 'w').write('x')",
    "write a new one": "open('new', 'w').write('x'); seen = open('new').read()",
    "exclusively": "open('new', 'x').close(); seen = os.path.getsize('new')",
    "exclusively what is there": "open('kept', 'x')",
    "append": "open('kept', 'ab').write(b'x'); seen = open('kept').read()",
    "change in place": "stream = open('kept', 'r+'); seen = stream.read(2), stream.name; stream.write('x'); stream.close()",
    "without a buffer": "stream = open('kept', 'wb', 0); stream.write(b'x'); seen = stream.name",
    "a path in bytes": "open(b'kept', 'w').write('x'); seen = sorted(os.listdir(b'.')), os.readlink(b'link')",
    "a name that is no text": "open(b'na\\xffme', 'wb').write(b'x')",
    "twice": "open('kept', 'w').write('x'); open('kept', 'a').write('y')",
    "through a link": "open('link', 'a').write('x'); seen = open('kept').read(), os.path.islink('link')",
    "through a link to a folder": "open('folder-link/inside', 'w').write('x'); seen = open('folder/inside').read()",
    "through a link that leads nowhere": "os.symlink('to-come', 'way'); open('way', 'w').write('x')",
    "where no folder is": "open('none/new', 'w')",
    "where a file is no folder": "open('kept/new', 'w')",
    "a folder": "open('folder', 'w')",
    "nothing": "open('', 'w')",
    "a descriptor": "number = os.open('kept', os.O_RDWR); os.write(number, b'x'); os.close(number)",
    "an empty descriptor": "os.close(os.open('kept', os.O_WRONLY | os.O_TRUNC)); seen = os.path.getsize('kept')",
    "a descriptor of nothing": "os.open('none', os.O_WRONLY)",
    "a file of a lock": "number = os.open('lock', os.O_RDONLY | os.O_CREAT); fcntl.flock(number, 2); os.close(number)",
    "from a descriptor": "folder = os.open('folder', 0); os.close(os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=folder)); "
    "os.mkdir('deep', dir_fd=folder); os.unlink('inside', dir_fd=folder); seen = sorted(os.listdir(folder)); os.close(folder)",
    "an opener": "open('kept', 'w', opener=lambda path, flags: os.open(path, flags)).write('x')",
    "truncate": "os.truncate('kept', 1); seen = os.stat('kept').st_size",
    "remove": "os.remove('kept'); seen = os.path.exists('kept'), os.path.lexists('link'), os.path.exists('link')",
    "remove what is not there": "os.remove('none')",
    "remove twice": "os.remove('kept'); os.remove('kept')",
    "remove a folder": "os.remove('folder')",
    "remove and write": "os.remove('kept'); open('kept', 'a').write('x'); seen = open('kept').read()",
    "remove a link": "os.unlink('link')",
    "rmdir": "os.rmdir('empty')",
    "rmdir of a full one": "os.rmdir('folder')",
    "rmdir of a file": "os.rmdir('kept')",
    "rmdir and mkdir": "shutil.rmtree('folder'); os.mkdir('folder'); seen = os.listdir('folder')",
    "removedirs": "os.remove('folder/deeper/inside'); os.remove('folder/inside'); os.removedirs('folder/deeper')",
    "replace": "open('other', 'w').write('x'); os.replace('other', 'kept')",
    "rename": "os.rename('kept', 'gone'); seen = open('gone').read(), os.stat('gone').st_mtime, os.path.exists('kept')",
    "rename, and another in its place": "os.rename('kept', 'gone'); open('kept', 'w').write('x')",
    "rename what is not there": "os.rename('none', 'gone')",
    "rename to itself": "os.rename('kept', 'kept')",
    "rename a folder": "os.rename('folder', 'away'); seen = open('away/deeper/inside').read()",
    "rename a folder, and another": "os.rename('folder', 'away'); os.mkdir('folder'); open('folder/inside', 'w').write('x')",
    "rename a folder to an empty one": "os.rename('folder', 'empty')",
    "rename a folder to a full one": "os.mkdir('other'); os.rename('other', 'folder')",
    "rename a folder to a file": "os.rename('folder', 'kept')",
    "rename a file to a folder": "os.rename('kept', 'folder')",
    "rename a folder into itself": "os.rename('folder', 'folder/inner')",
    "rename a link": "os.rename('link', 'other'); seen = os.readlink('other')",
    "rename out of TMPDIR": "path = tempfile.mkstemp()[1]; open(path, 'w').write('x'); os.replace(path, 'kept')",
    "mkdir": "os.mkdir('new'); open('new/file', 'w').write('x'); seen = os.listdir('new')",
    "mkdir of what is there": "os.mkdir('folder')",
    "mkdir where a file is": "os.mkdir('kept')",
    "makedirs": "os.makedirs('folder/a/b', exist_ok=True); os.makedirs('folder/a/b', exist_ok=True); "
    "seen = os.listdir('folder/a')",
    "link": "os.link('kept', 'again'); open('again', 'a').write('x'); seen = open('kept').read(), os.stat('kept').st_nlink",
    "symlink": "os.symlink('folder/inside', 'short'); open('short', 'a').write('x'); seen = open('folder/inside').read()",
    "symlink again": "os.remove('link'); os.symlink('base', 'link'); "
    "seen = os.path.realpath('link') == os.path.realpath('base')",
    "symlink of what is there": "os.symlink('kept', 'link')",
    "a loop of links": "os.symlink('b', 'a'); os.symlink('a', 'b'); open('a')",
    "utime": "os.utime('kept', (5, 6)); seen = os.stat('kept').st_mtime",
    "chmod": "os.chmod('kept', 0o600); seen = oct(os.stat('kept').st_mode)",
    "chmod of a folder": "os.chmod('folder', 0o700); seen = oct(os.stat('folder').st_mode), sorted(os.listdir('folder'))",
    "chmod of a descriptor": "stream = open('new', 'w'); os.chmod(stream.fileno(), 0o600); seen = oct(os.stat('new').st_mode)",
    "access": "os.mkdir('new'); seen = os.access('new', os.W_OK), os.access('none', os.F_OK), os.access('kept', os.R_OK)",
    "statvfs": "os.mkdir('new'); seen = shutil.disk_usage('new').total > 0",
    "listdir": "open('new', 'w').close(); os.remove('kept'); seen = sorted(os.listdir()), sorted(os.listdir('folder'))",
    "listdir of nothing": "os.listdir('none')",
    "listdir of a file": "os.listdir('kept')",
    "scandir": "open('folder/new', 'w').write('x'); os.remove('folder/inside'); seen = sorted((each.name, each.path, "
    "each.is_dir(), each.is_file(), each.is_symlink(), "
    "each.stat().st_size if each.is_file() else 0) for each in os.scandir('folder'))",
    "scandir of links": "seen = sorted((each.name, each.is_dir(), each.is_file(), each.is_dir(follow_symlinks=False)) "
    "for each in os.scandir() if each.is_symlink())",
    "walk": "os.makedirs('folder/new'); seen = sorted((root, sorted(names), sorted(files)) for root, names, "
    "files in os.walk('.'))",
    "fwalk": "os.makedirs('folder/new'); seen = sorted((root, sorted(names), sorted(files)) "
    "for root, names, files, _ in os.fwalk('folder'))",
    "glob": "open('folder/new.txt', 'w').close(); seen = sorted(glob.glob('folder/*.txt')), sorted(glob.glob('**', "
    "recursive=True))",
    "exists": "open('new', 'w').close(); os.mkdir('d'); seen = [each(name) for each in (os.path.exists, os.path.isfile, "
    "os.path.isdir) for name in ('new', 'd', 'none', 'kept', 'folder')]",
    "chdir": "os.mkdir('new'); os.chdir('new'); open('file', 'w').write('x'); open('../kept', 'a').write('x'); "
    "seen = os.path.basename(os.getcwd()), os.listdir(), open('../new/file').read(), os.path.exists('../folder/inside'), "
    "os.path.basename(os.path.dirname(os.path.abspath('x'))), os.getcwdb() == os.fsencode(os.getcwd())",
    "chdir to what is there": "os.chdir('folder'); open('../kept', 'w').write('x'); open('new', 'w').write('x'); "
    "seen = sorted(os.listdir())",
    "copytree": "shutil.copytree('folder', 'copy'); seen = sorted(os.listdir('copy')), os.stat('copy/inside').st_mtime",
    "copytree with links": "shutil.copytree('.', 'copy', symlinks=True); seen = sorted(os.listdir('copy'))",
    "rmtree": "shutil.rmtree('folder'); seen = os.path.exists('folder/inside'), os.path.exists('folder')",
    "rmtree of a new one": "shutil.copytree('folder', 'copy'); shutil.rmtree('copy')",
    "copy": "shutil.copy2('folder/inside', 'kept'); seen = open('kept').read(), os.stat('kept').st_mtime",
    "move": "shutil.move('kept', 'folder'); seen = sorted(os.listdir('folder'))",
    "archive": "shutil.make_archive('all', 'tar', 'folder'); shutil.unpack_archive('all.tar', 'out'); "
    "seen = sorted(os.listdir('out'))",
    "zip": "zipfile.ZipFile('a.zip', 'w').write('kept'); seen = zipfile.is_zipfile('a.zip')",
    "gzip": "gzip.open('a.gz', 'wt').write('x'); bz2.open('a.bz', 'wt').write('x'); lzma.open('a.xz', 'wt').write('x')",
    "pathlib": "path = pathlib.Path('new'); path.mkdir(); (path / 'a').write_text('x'); (path / 'a').rename(path / 'b'); "
    "(path / 'c').touch(); pathlib.Path('kept').unlink(); seen = sorted(map(str, path.iterdir())), path.exists(), "
    "sorted(map(str, path.glob('*'))), (path / 'b').read_text(), pathlib.Path('kept').is_file(), path.resolve().name, "
    "sorted(map(str, pathlib.Path('.').rglob('*'))), (path / 'c').stat().st_size, "
    "pathlib.Path.cwd().name == pathlib.Path('.').resolve().name",
    "pathlib in place": "path = pathlib.Path('kept'); path.open('a').write('x'); path.chmod(0o600); path.replace('other'); "
    "pathlib.Path('soft').symlink_to('other'); pathlib.Path('empty').rmdir(); seen = pathlib.Path('soft').read_text()",
    "tempfile": "stream = tempfile.NamedTemporaryFile(dir='.'); stream.write(b'x'); seen = os.path.exists(stream.name); "
    "stream.close()",
    "tempfile without a name": "stream = tempfile.TemporaryFile(dir='.'); stream.write(b'x'); stream.close()",
    "a temporary folder": "with tempfile.TemporaryDirectory(dir='.') as name: open(os.path.join(name, 'x'), 'w').close()",
    "memfd": "number = os.memfd_create('x'); os.ftruncate(number, 5); seen = os.fstat(number).st_size",
    "symlink to a folder": "os.symlink('folder', 'd', target_is_directory=True); seen = sorted(os.listdir('d'))",
    "logging": "handler = logging.FileHandler('kept'); handler.emit(logging.makeLogRecord({'msg': 'x'})); handler.close()",
    "sqlite": "base = sqlite3.connect('base'); base.execute('insert into t values (2)'); base.commit(); base.close(); "
    "seen = sqlite3.connect('base').execute('select * from t').fetchall()",
    "sqlite, by URI": "base = sqlite3.connect('file:base?mode=rw', uri=True); base.execute('insert into t values (2)'); "
    "base.commit(); "
    "base.close(); seen = sqlite3.connect('file:base?mode=ro', uri=True).execute('select * from t').fetchall()",
    "sqlite, a new one": "base = sqlite3.connect('new'); base.execute('create table t (x)'); base.commit(); base.close(); "
    "seen = os.path.exists('new')",
    "sqlite in memory": "seen = [sqlite3.connect(*each).execute('select 1').fetchall() for each in ((':memory:',), ('',))]",
    "a child": "[os.waitpid(pid, 0) if pid else (open('kept', 'w').write('x'), os._exit(0)) for pid in [os.fork()]]",
    "a thread": "each = threading.Thread(target=lambda: open('kept', 'w').write('x')); each.start(); each.join()",
    "pickled": "seen = [pickle.loads(pickle.dumps(each)) is each for each in (open, os.remove, os.stat)]",
    "fifo": "os.mkfifo('pipe'); seen = stat.S_ISFIFO(os.stat('pipe').st_mode)",
    "rights of what is read": "seen = oct(os.stat('kept').st_mode), os.stat('kept').st_mtime, os.stat('kept').st_nlink",
}  # fmt: skip
TORCH = {
    "torch.save": "torch.save(torch.ones(3), 'kept'); seen = torch.load('kept').tolist(), torch.load(f='kept', "
    "mmap=True).tolist()",
    "torch.save of a new one": "torch.save(obj=torch.ones(3), f=pathlib.Path('new.pt')); "
    "seen = torch.load(pathlib.Path('new.pt')).tolist()",
    "torch.save to a stream": "torch.save(torch.ones(3), open('kept', 'wb')); seen = torch.load(open('kept', 'rb')).tolist()",
    "torch.save, and replace": "torch.save(torch.ones(3), 'part'); os.replace('part', 'kept'); "
    "seen = torch.serialization.load('kept').tolist()",
    "torch.jit": "net = torch.jit.script(torch.nn.ReLU()); torch.jit.save(net, 'net.pt'); "
    "seen = torch.jit.load('net.pt')(torch.tensor(-1.)).item()",
    "numpy.save": "numpy.save('kept.npy', numpy.ones(3)); seen = numpy.load('kept.npy').tolist()",
    "numpy.savetxt": "numpy.savetxt('kept', numpy.ones(3)); seen = numpy.loadtxt('kept').tolist(), "
    "numpy.genfromtxt('kept').tolist()",
    "numpy.savez": "numpy.savez('a.npz', x=numpy.ones(3)); seen = numpy.load('a.npz')['x'].tolist()",
    "tofile": "numpy.ones(3).tofile('kept'); seen = numpy.fromfile('kept').tolist()",
    "memmap": "array = numpy.memmap('kept', mode='r+', dtype='u1'); array[:2] = 65; array.flush(); seen = open('kept').read()",
    "a new memmap": "array = numpy.memmap('new', mode='w+', dtype='u1', shape=(3,)); array[:] = 65; array.flush(); "
    "seen = open('new').read()",
}  # fmt: skip
PAST = "the script writes to here/{} in a way that gpq check cannot redirect ({})"
REFUSED = {
    "io.FileIO('kept', 'w')": PAST.format("kept", "open"),
    "posix.rename('kept', 'other')": PAST.format("kept", "os.rename"),
    "posix.remove('link')": PAST.format("link", "os.remove"),
    "posix.mkdir('folder/new')": PAST.format("folder/new", "os.mkdir"),
    "os.fchmod(os.open('kept', os.O_RDONLY), 0o600)": PAST.format("kept", "os.chmod"),
    "sqlite3.Connection('base')": PAST.format("base", "sqlite3.connect"),
    "open('fifo', 'w')": "the script writes to here/fifo, which is neither a file nor a folder",
}
BEGIN = """
import bz2, fcntl, glob, gzip, io, json, logging, lzma, os, pathlib, pickle, posix, shutil, sqlite3, stat, sys, tempfile
import threading, zipfile
os.umask(0o22)
"""
VIEW = """
def view(folder):
    found = {}
    for root, folders, files in os.walk(os.fsencode(folder)):
        for name in [*folders, *files]:
            path = os.path.join(root, name)
            key = os.fsdecode(os.path.relpath(path, os.fsencode(folder))).encode("utf-8", "backslashreplace").decode()
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[key] = os.fsdecode(os.readlink(path))
            elif stat.S_ISREG(mode) and not key.startswith(("a.", "all.")):
                with open(path, "rb") as stream:
                    found[key] = [oct(mode), stream.read().decode("latin-1")]
            else:
                found[key] = oct(mode)
    return found

told = {}
for way, (folder, line) in json.load(sys.stdin).items():
    os.chdir(folder)
    names = dict(globals(), seen=None)
    try:
        exec(line, names)
        how = ""
    except Exception as error:
        how = "{} {}".format(type(error).__name__, getattr(error, "errno", str(error).splitlines()[:1]))
    names["stream"] = names["base"] = names["array"] = None
    os.chdir(folder)
    told[way] = json.loads(json.dumps([how, repr(names["seen"]), view(folder)]).replace(folder, "here"))
print(json.dumps(told))
"""


LIBRARY = "import numpy, torch, gpq_agent.train\n"
# The part that works in a Python without torch. The library's own first lines import torch.
ALONE = f"""
import types
sys.path.insert(0, {str(Path(gpq_agent.__file__).parents[1])!r})
package = sys.modules["gpq_agent.train"] = types.ModuleType("gpq_agent.train")
package.__path__ = [{str(Path(landlock.__file__).parents[1])!r}]
from gpq_agent.train.prove import redirect
redirect.guard(os.environ, sys.addaudithook)
"""
OTHERS = [python.executable for version, python in pythons().items() if version != sys.version_info[:2]]
Ways = dict[str, tuple[str, str]]  # the folder, and the code to run there
Told = dict[str, list[Any]]


def made(folder: Path) -> Path:
    """A user's folder."""
    (folder / "folder" / "deeper").mkdir(parents=True)
    (folder / "empty").mkdir()
    for name in ("kept", "folder/inside", "folder/deeper/inside", "folder/a.txt", os.fsdecode(b"na\xffme")):
        (folder / name).write_text(f"of {name.isascii()} worth")
        os.utime(folder / name, (1_500_000_000, 1_500_000_000))
    (folder / "link").symlink_to("kept")
    (folder / "folder-link").symlink_to("folder")
    (folder / "outer").symlink_to(folder / "folder")
    os.mkfifo(folder / "fifo")
    making = "import sqlite3; base = sqlite3.connect('base'); base.execute('create table t (x)'); base.commit()"
    subprocess.run([sys.executable, "-c", making], cwd=folder, check=True)
    return folder


def tree(folder: Path) -> dict[str, Any]:
    """Everything below: its type, its content and the time of its last change."""
    found: dict[str, Any] = {}
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(root, name)
            about = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
            found[str(path)] = (about.st_mode, about.st_mtime_ns, about.st_nlink, content)
    return found


def run(script: str, home: Path, ways: Ways, python: str, *head: str, **environ: str) -> Told:
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*head, python, "-W", "error::FutureWarning", "-c", BEGIN + script + VIEW], input=json.dumps(ways),
        capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(home / "tmp"), **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: Told = json.loads(done.stdout.splitlines()[-1])
    return told


def checked(
    home: Path, ways: Ways, shape: str = "a-shape", library: str = LIBRARY, python: str = sys.executable
) -> Told:
    """Run it as `gpq check` does."""
    (home / shape).mkdir(parents=True, exist_ok=True)
    head = (python, "-I", landlock.__file__, str(home))
    return run(library, home, ways, python, *head, **{wire.ENV_CHECK: json.dumps({"folder": str(home / shape)})})


class Played:
    """All ways, each in its own folder, once in a plain run and once in a checked run."""

    def __init__(self, base: Path, ways: dict[str, str], plain: str, library: str, python: str) -> None:
        aside, self.folders = (
            {way: made(base / name / str(number)) for number, way in enumerate(ways)} for name in ("plain", "checked")
        )
        self.before = {way: tree(folder) for way, folder in self.folders.items()}
        self.plain = run(plain, base / "aside", {way: (str(aside[way]), ways[way]) for way in ways}, python)
        own = {way: (str(self.folders[way]), ways[way]) for way in ways}
        self.seen = checked(base / "home", own, library=library, python=python)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("ways"), {**WAYS, **TORCH}, "import numpy, torch\n", LIBRARY, sys.executable)


@pytest.mark.parametrize("way", [*WAYS, *TORCH])
def test_a_checked_run_sees_what_a_plain_run_sees_and_changes_nothing(way: str, played: Played) -> None:
    seen, plain = played.seen[way], played.plain[way]
    assert seen == plain
    assert tree(played.folders[way]) == played.before[way]


@pytest.mark.parametrize("python", OTHERS)
def test_other_pythons_do_the_same(python: str, tmp_path: Path) -> None:
    played = Played(tmp_path, WAYS, "", ALONE, python)
    assert played.seen == played.plain
    assert {way: tree(folder) for way, folder in played.folders.items()} == played.before


def test_writes_that_cannot_be_redirected_are_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "folder")
    before = tree(folder)
    told = checked(tmp_path / "home", {way: (str(folder), way) for way in REFUSED})
    assert {way: how for way, (how, *_) in told.items()} == {
        way: f"GpqTrainError {[line]}" for way, line in REFUSED.items()
    }
    assert tree(folder) == before


def test_a_shape_keeps_its_changes_and_no_other_shape_sees_them(tmp_path: Path) -> None:
    folder, home = made(tmp_path / "folder"), tmp_path / "home"
    before = tree(folder)
    look = "seen = sorted(os.listdir()), open('kept').read(), os.path.exists('folder')"
    line = f"open('kept', 'a').write('x'); open('new', 'w').close(); shutil.rmtree('folder'); {look}"
    first, again, other = (
        checked(home, {"way": (str(folder), each)}, shape)["way"]
        for each, shape in ((line, "one"), (look, "one"), (look, "two"))
    )
    assert first == again
    assert other[1] == repr((sorted(os.listdir(folder)), "of True worth", True))
    assert tree(folder) == before


def test_two_replicas_can_write_the_same_file_at_once(tmp_path: Path) -> None:
    """Neither loses what the other wrote."""
    folder = made(tmp_path / "folder")
    (folder / "kept").write_text("x" * (1 << 22))
    line = """
pids = []
for letter in "ab":
    pid = os.fork()
    if not pid:
        with open("kept", "r+") as stream:
            stream.seek(ord(letter))
            stream.write(letter)
        os._exit(0)
    pids.append(pid)
seen = [os.waitpid(pid, 0)[1] for pid in pids], open("kept").read()[95:100]
"""
    for number in range(5):
        told = checked(tmp_path / "home", {"way": (str(folder), line)}, str(number))
        assert told["way"][1] == repr(([0, 0], "xxabx"))


def test_c_code_and_other_programs_cannot_write_elsewhere(tmp_path: Path) -> None:
    folder = made(tmp_path / "folder")
    before = tree(folder)
    programs = {
        "cp folder/inside kept": 1, "cp folder/inside new": 1, "rm kept": 1, "mv kept other": 1, "mkdir new": 1,
        "truncate -s 0 kept": 1, "ln kept other": 1, "touch new": 1, "cat kept": 0, "touch $TMPDIR/a": 0,
        "mkdir $TMPDIR/d; mv $TMPDIR/a $TMPDIR/d": 0, "touch /dev/shm/gpq-$$; rm /dev/shm/gpq-$$": 0,
    }  # fmt: skip
    script = "import subprocess; done = subprocess.run([{!r}], shell=True, capture_output=True, text=True); "
    ways = {each: (str(folder), script.format(each) + "seen = done.returncode, done.stderr") for each in programs}
    c_code = "torch._C.PyTorchFileWriter('kept')"
    told = checked(tmp_path / "home", {**ways, c_code: (str(folder), c_code)})
    for program, code in programs.items():
        assert told[program][1].startswith(f"({code}, "), told[program]
        assert ("Permission denied" in told[program][1]) == bool(code)
    assert told[c_code][0].startswith("RuntimeError")
    assert tree(folder) == before


WORKERS = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        with open("log", "a") as stream: print(index, file=stream)
        return torch.tensor([index, index**2])
for strategy in ("file_descriptor", "file_system"):
    torch.multiprocessing.set_sharing_strategy(strategy)
    loader = torch.utils.data.DataLoader(Data(), 2, num_workers=2, multiprocessing_context="fork")
    assert [batch.tolist() for batch in loader] == [[[0, 0], [1, 1]], [[2, 4], [3, 9]]]
store = torch.distributed.FileStore(tempfile.mktemp(), 1)
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
torch.distributed.all_reduce(torch.ones(3))
lock = torch.multiprocessing.Lock()
seen = sorted(open("log").read().split())
"""


def test_loader_processes_and_process_groups_work_as_usual(tmp_path: Path) -> None:
    folder = made(tmp_path / "folder")
    # short, because sockets need short paths, as in gpq.check.runner
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        told = checked(Path(home), {"way": (str(folder), WORKERS)})
    assert told["way"][:2] == ["", repr(sorted("00112233"))]

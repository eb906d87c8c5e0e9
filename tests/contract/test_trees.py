"""Checkpoint folders of any shape between two real agents: they are the same on both sides, or refused by name."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.errors import GpqError
from tests.agent.harm import made_socket, made_sparse
from tests.agent.node.harness import NodeAgent
from tests.contract.trees import JOB, LARGE, bring, listed, seen

NAMES = st.one_of(
    st.sampled_from(["a", "b", ".hidden", "latest.pt", "step 1", "ü", "gpq", "own", "-n", "x" * 200]),
    st.binary(min_size=1, max_size=6).map(lambda raw: os.fsdecode(raw.replace(b"/", b"_").replace(b"\0", b"_"))),
).filter(lambda name: name not in (".", ".."))
CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.integers(LARGE, LARGE + 3).map(lambda size: b"x" * size),
)
FILES = st.tuples(st.just("file"), CONTENTS, st.sampled_from([0o600, 0o644, 0o755, 0o400, 0o444]))
HOLES = st.tuples(st.just("holes"), st.integers(0, 3), st.integers(1, 1 << 33))
LINKS = st.tuples(
    st.just("link"), st.sampled_from(["a", "b", "./a", "../a", "../../a", "b/../a", "/etc/passwd", "nowhere"])
)
OTHERS = st.tuples(st.sampled_from(["fifo", "setuid"]))
TREES = st.recursive(
    st.one_of(FILES, FILES, HOLES, LINKS), lambda inner: st.dictionaries(NAMES, inner, max_size=5), max_leaves=12
)


Plant = Callable[[Path], object]


def named(*names: bytes | str) -> Plant:
    """Files with their names as content."""

    def plant(folder: Path) -> None:
        for name in names:
            path = os.path.join(os.fsencode(folder), os.fsencode(name))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as stream:
                stream.write(os.fsencode(name))

    return plant


def deep(name: str, levels: int) -> Plant:
    """A file so many folders deep, whatever the length of its path."""

    def plant(folder: Path) -> None:
        here = os.open(folder, os.O_RDONLY)
        for _ in range(levels):
            os.mkdir(name, dir_fd=here)
            below = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)

    return plant


def links(**targets: str) -> Plant:
    def plant(folder: Path) -> None:
        for name, target in targets.items():
            (folder / name).symlink_to(target)

    return plant


def with_mode(mode: int, *, is_folder: bool = False) -> Plant:
    def plant(folder: Path) -> None:
        (folder / "x").mkdir() if is_folder else (folder / "x").write_text("x")
        (folder / "x").chmod(mode)

    return plant


def made_twins(folder: Path) -> None:
    (folder / "one").write_bytes(os.urandom(100_000))
    os.link(folder / "one", folder / "two")


def made_many(folder: Path) -> None:
    for number in range(100_000):
        if number % 1000 == 0:
            (folder / f"{number}").mkdir()
        (folder / f"{number // 1000 * 1000}" / f"{number}.npy").touch()


def made_crowd(folder: Path) -> None:
    place = folder.joinpath(*["n" * 250] * 12)
    place.mkdir(parents=True)
    for number in range(11_000):
        (place / f"{number:0250d}").touch()


def made_in_place_of(make: Plant) -> Plant:
    """In place of the folder itself."""

    def plant(folder: Path) -> None:
        folder.rmdir()
        make(folder)

    return plant


WHOLE: dict[str, Plant] = {
    "no UTF-8": named(b"\xff\xfe", b"a\x80/\xc3", b"\xed\xa0\x80", b"caf\xe9.pt"),
    "looks like an escape": named("%ff", "\\xff", "\\udcff", "\u00ff", "?"),
    "line ends and control characters": named("a\nb", "\r", "\x1b[2J", "\x01/\x02\n"),
    "spaces and dashes": named(" ", "-rf", "--", "a b", "  /x", "*", "~"),
    "longest names": named("n" * 255, b"\xff" * 255, "\u00e9" * 127),
    "twins in another case": named("Model.pt", "model.pt", "MODEL.PT"),
    "twins in another normal form": named("caf\u00e9", "cafe\u0301"),
    "signs": named("\U0001f600", "\u202etxt", "\ufeff", "\ue000"),
    "500 levels": deep("d", 500),
    "500 levels of odd bytes": deep("\udcff\udcfe", 500),
    "empty folders": lambda folder: (folder / "a" / "b").mkdir(parents=True),
    "two names of one file": made_twins,
    "holes": lambda folder: made_sparse(folder / "x"),
    "links inside": links(a="b", b="nowhere", c=".", d="c/e"),
    "a link with odd bytes": links(a="\udcff"),
    "without permissions": with_mode(0),
    "sticky": with_mode(0o1777, is_folder=True),
    "100,000 files": made_many,
}  # fmt: skip
REFUSED: dict[str, tuple[Plant, str]] = {
    "levels beyond the longest path": (deep("n" * 100, 500), "nnn"),
    "levels at the longest path": (deep("n" * 99, 40), "nnn"),
    "a FIFO": (lambda folder: os.mkfifo(folder / "x"), "x is not a file"),
    "a socket": (lambda folder: made_socket(folder / "x"), "x is not a file"),
    "a device": (lambda folder: os.mknod(folder / "x", stat.S_IFCHR | 0o600, os.makedev(1, 3)), "x is not a file"),
    "setuid": (with_mode(0o4755), "x runs as another user"),
    "an absolute link": (links(x="/etc/passwd"), "x is a link to /etc/passwd"),
    "a link that leads out": (links(x="../../y"), "x is a link to ../../y"),
    "two links in a loop": (links(x="y", y="x"), "x is a link in a loop"),
    "a link to itself": (links(x="x"), "x is a link in a loop"),
    "a link below a loop": (links(x="y/z", y="y"), "x is a link in a loop"),
    "a file in place of the folder": (made_in_place_of(Path.touch), "its folder cannot be read: Not a directory"),
    "a FIFO in place of the folder": (made_in_place_of(os.mkfifo), "its folder cannot be read: Not a directory"),
    "a loop in place of the folder": (
        made_in_place_of(lambda folder: folder.symlink_to(folder.name)),
        "its folder cannot be read: Too many levels of symbolic links",
    ),
    "too many long names": (made_crowd, "or their names have more than 32 MiB"),
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeAgent, NodeAgent, Path]]:
    """Two servers that share nothing except this folder, in which each has its own folder."""
    home = tmp_path_factory.mktemp("pair")
    agents = [
        NodeAgent(home / f"spool-{name}", "--slots", "1", "--checkpoints", str(home / name), env=env)
        for name, env in (("here", {"LC_ALL": "C.UTF-8"}), ("there", {"LC_ALL": "POSIX"}))
    ]
    yield agents[0], agents[1], home
    begin(home)
    for one in agents:
        one.close()


def make(place: Path, tree: Any) -> None:
    """Creates at `place` what `tree` says: a folder is a dictionary."""
    if isinstance(tree, dict):
        place.mkdir()
        for name, inner in tree.items():
            make(place / name, inner)
        return
    kind, *facts = tree
    if kind == "file":
        place.write_bytes(facts[0])
        place.chmod(facts[1])
    elif kind == "holes":
        with open(place, "wb") as stream:
            stream.write(b"begin" * facts[0])
            stream.truncate(facts[1])
    elif kind == "link":
        place.symlink_to(facts[0])
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.write_bytes(b"")
        place.chmod(0o4755)


def begin(home: Path) -> tuple[Path, Path]:
    """Both folders of the job, empty."""
    folders = home / "here" / str(JOB), home / "there" / str(JOB)
    for folder in folders:
        subprocess.run(["rm", "-rf", "--", folder], check=True)  # Python cannot remove deep trees
    return folders


def leads_nowhere(folder: Path) -> bool:
    """Is there a link that would lead elsewhere from another folder, or in a loop?"""
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    root = os.path.realpath(folder)
    return any(
        os.readlink(link).startswith("/") or not (os.path.realpath(link) + "/").startswith(root + "/") or loops(link)
        for link in links
    )


def loops(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@given(tree=st.dictionaries(NAMES, TREES, min_size=1, max_size=5), before=st.dictionaries(NAMES, TREES, max_size=3))
def test_a_tree_is_the_same_on_both_sides_or_refused_by_name(
    pair: tuple[NodeAgent, NodeAgent, Path], tree: dict[str, Any], before: dict[str, Any]
) -> None:
    """`before` is at the target from an earlier attempt."""
    source, target, home = pair
    here, there = begin(home)
    make(here, tree)
    make(there, before)
    old = seen(there)
    if leads_nowhere(here):
        with pytest.raises(GpqError, match=r"is a link (to|in a loop)"):
            bring(source, target, within=True)
        assert seen(there) == old
        return
    bring(source, target, within=True)
    assert seen(there) == seen(here)
    assert bring(source, target, within=True).moved == 0


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"a": {"pipe": ("fifo",)}}, "a/pipe is not a file, a folder or a link"),
        ({"new\nline": ("link", "/etc/passwd")}, r"new\nline is a link to /etc/passwd"),
    ],
)
def test_a_file_that_cannot_be_recreated_is_named(
    pair: tuple[NodeAgent, NodeAgent, Path], tree: dict[str, Any], why: str
) -> None:
    source, target, home = pair
    here, _ = begin(home)
    make(here, tree)
    with pytest.raises(GpqError) as caught:
        bring(source, target)
    assert why in caught.value.message


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.long] * ("files" in kind)) for kind in WHOLE])
def test_an_odd_tree_arrives_whole_and_is_removed_whole(pair: tuple[NodeAgent, NodeAgent, Path], kind: str) -> None:
    source, target, home = pair
    here, there = begin(home)
    here.mkdir()
    WHOLE[kind](here)
    bring(source, target)
    assert seen(there) == seen(here)
    assert bring(source, target, within=True).moved == 0
    target.ask("drop", job=JOB)
    assert [path.name for path in (home / "there").iterdir() if not path.name.startswith(".s")] == []


@pytest.mark.parametrize("kind", REFUSED)
def test_a_tree_that_cannot_move_is_refused_by_name_in_one_line(
    pair: tuple[NodeAgent, NodeAgent, Path], kind: str
) -> None:
    source, _, home = pair
    here, _ = begin(home)
    here.mkdir()
    plant, words = REFUSED[kind]
    plant(here)
    stays = listed(source)["stays"]
    assert words in stays
    assert (stays.isprintable(), len(stays) < 600) == (True, True)


def test_a_terabyte_of_holes_costs_only_its_content(pair: tuple[NodeAgent, NodeAgent, Path]) -> None:
    source, target, home = pair
    here, there = begin(home)
    here.mkdir()
    with open(here / "index", "wb") as stream:
        stream.write(b"begin")
        stream.seek(1 << 40)
        stream.write(b"end")
    assert bring(source, target).moved < 1_000_000
    assert (there / "index").stat().st_size == (1 << 40) + 3
    with open(there / "index", "rb") as stream:
        assert stream.read(5) == b"begin"
        stream.seek(1 << 40)
        assert stream.read() == b"end"

"""Checkpoint folders of any shape between two real agents: they are the same on both sides, or refused by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpq.errors import GpqError
from tests.agent.node.harness import NodeAgent
from tests.contract.trees import JOB, LARGE, bring, seen
from tests.support.figures import Figures

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


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeAgent, NodeAgent, Path]]:
    """Two servers that share nothing except this folder, in which each has its own folder."""
    home = tmp_path_factory.mktemp("pair")
    agents = [
        NodeAgent(home / f"spool-{name}", "--slots", "1", "--checkpoints", str(home / name), env=env)
        for name, env in (("here", {"LC_ALL": "C.UTF-8"}), ("there", {"LC_ALL": "POSIX"}))
    ]
    yield agents[0], agents[1], home
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
        if folder.exists():
            shutil.rmtree(folder)
    return folders


def leads_out(folder: Path) -> bool:
    """Is there a link that would lead elsewhere from another folder?"""
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    root = os.path.realpath(folder)
    return any(
        os.readlink(link).startswith("/") or not (os.path.realpath(link) + "/").startswith(root + "/") for link in links
    )


@given(tree=st.dictionaries(NAMES, TREES, max_size=5), before=st.dictionaries(NAMES, TREES, max_size=3))
def test_a_tree_is_the_same_on_both_sides_or_refused_by_name(
    pair: tuple[NodeAgent, NodeAgent, Path], tree: dict[str, Any], before: dict[str, Any]
) -> None:
    """`before` is at the target from an earlier attempt."""
    source, target, home = pair
    here, there = begin(home)
    make(here, tree)
    make(there, before)
    old = seen(there)
    if leads_out(here):
        with pytest.raises(GpqError, match="is a link to"):
            bring(source, target)
        assert seen(there) == old
        return
    bring(source, target)
    assert seen(there) == seen(here)
    assert bring(source, target).moved == 0


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"a": {"pipe": ("fifo",)}}, "a/pipe is not a file, a folder or a link"),
        ({"su": ("setuid",)}, "su runs as another user"),
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


def test_many_small_files_go_in_few_messages(
    pair: tuple[NodeAgent, NodeAgent, Path], figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, home = pair
    here, there = begin(home)
    here.mkdir()
    for number in range(5000):
        (here / f"shard-{number}").write_bytes(b"%d" % number)
    asked: list[str] = []
    monkeypatch.setattr(source, "send", _noting(source, asked))
    monkeypatch.setattr(target, "send", _noting(target, asked))
    bring(source, target)
    assert seen(there) == seen(here)
    figures.note("messages for 5,000 files", str(len(asked)))
    assert len(asked) < 40


def _noting(node: NodeAgent, asked: list[str]) -> Callable[..., int]:
    real = node.send

    def send(operation: str, **fields: Any) -> int:
        asked.append(operation)
        return real(operation, **fields)

    return send

"""`gpq submit --snapshot`: which files it freezes and what it refuses."""

from __future__ import annotations

import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpq import paths
from gpq.errors import UsageError
from gpq.options import job_spec, snapshot
from gpq.options.submit_texts import SubmitTexts


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPQ_HOME", str(tmp_path / "state"))
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    return tmp_path / "state"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A repository with a commit, a changed file, a new file, an ignored file and a removed file."""
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    for name in ("train.py", "sub/tool.py", "gone.py"):
        (folder / name).write_text("print('old')\n")
    (folder / ".gitignore").write_text("data\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    (folder / "train.py").write_text("print('new')\n")
    (folder / "new.py").write_text("")
    (folder / "data").write_text("large")
    (folder / "gone.py").unlink()
    (folder / "link").symlink_to("sub/tool.py")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout.strip()


def archive(code: str) -> tarfile.TarFile:
    return tarfile.open(f"{paths.snapshots()}/{code}.tar")


def test_files_that_git_does_not_ignore_are_frozen_as_they_are_now(work: Path) -> None:
    frozen = snapshot.freeze(str(work / "sub"))
    with archive(frozen.code) as found:
        assert found.getnames() == [".gitignore", "link", "new.py", "sub/tool.py", "train.py"]
        stream = found.extractfile("train.py")
        assert stream is not None
        assert stream.read() == b"print('new')\n"
    commit = git(work, "rev-parse", "HEAD")[:12]
    assert frozen.summary == f"commit {commit}, dirty, 5 files, sha256 {frozen.code[:12]}"
    assert frozen.cwd == "sub"
    assert snapshot.within(frozen, str(work / "train.py"), str(work / "sub")) == "../train.py"
    (work / "train.py").touch()
    assert snapshot.freeze(str(work)).code == frozen.code, "the same code has the same name"
    (work / "train.py").write_text("print('newer')\n")
    assert snapshot.freeze(str(work)).code != frozen.code


def test_an_empty_working_directory_exists_in_the_copy(work: Path) -> None:
    (work / "empty" / "deep").mkdir(parents=True)
    frozen = snapshot.freeze(str(work / "empty" / "deep"))
    assert frozen.cwd == "empty/deep"
    with archive(frozen.code) as found:
        assert [member.name for member in found if member.isdir()] == ["empty/deep"]


def test_a_snapshot_without_git_copies_the_directory(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "x.pyc").write_bytes(b"")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o4755)
    frozen = snapshot.freeze(str(folder))
    with archive(frozen.code) as found:
        assert [(member.name, member.mode) for member in found] == [("run.sh", 0o755)]
    assert frozen.summary.startswith("a copy of the directory, no git, 1 files")


def test_large_files_and_links_that_lead_outside_are_refused_with_a_hint(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "out").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="the link out points outside"):
        snapshot.freeze(str(work))
    (work / "out").unlink()
    monkeypatch.setattr(snapshot, "MOST_BYTES", 20)
    (work / "train.py").write_text("#" * 50)
    with pytest.raises(UsageError, match=r"the largest file is train\.py") as told:
        snapshot.freeze(str(work))
    assert ".gitignore" in told.value.hint
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "x").write_text("x" * 21)
    with pytest.raises(UsageError, match="is not a git repository and has more than"):
        snapshot.freeze(str(tmp_path / "plain"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no files for a snapshot"):
        snapshot.freeze(str(tmp_path / "empty"))
    assert not list(Path(paths.snapshots()).glob(".*")), "no unfinished snapshot remains"


def test_a_script_gets_its_path_in_the_copy_and_a_script_outside_is_refused(work: Path, tmp_path: Path) -> None:
    built = job_spec.build(SubmitTexts(["train.py", "--x"], black_box=False, cwd=str(work), snapshot=True))
    assert (built.argv, built.code_cwd, built.name) == (["train.py", "--x"], ".", "train")
    (tmp_path / "other.py").write_text("")
    with pytest.raises(UsageError, match="is outside the snapshot"):
        job_spec.build(SubmitTexts([str(tmp_path / "other.py")], black_box=False, cwd=str(work), snapshot=True))
    assert job_spec.build(SubmitTexts(["train.py"], black_box=False, cwd=str(work))).code == ""


def test_no_program_from_a_repositorys_settings_is_run(work: Path, tmp_path: Path) -> None:
    """A file monitor, a hook or a filter. gpq runs none of them when you freeze a colleague's code."""
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\ncat\n")
    program.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / name).symlink_to(program)
    settings = {
        "core.fsmonitor": program, "core.hooksPath": hooks, "filter.x.clean": program, "filter.x.smudge": program,
        "filter.x.process": program, "filter.x.required": "true", "diff.external": program, "core.pager": program,
    }  # fmt: skip
    for name, value in settings.items():
        git(work, "config", name, str(value))
    (work / ".gitattributes").write_text("* filter=x\n")
    frozen = snapshot.freeze(str(work))
    assert ", dirty, " in frozen.summary
    assert not ran.exists(), ran.read_text()


def test_a_submodule_that_was_never_fetched_is_empty(work: Path) -> None:
    commit = git(work, "rev-parse", "HEAD")
    (work / "library").mkdir()
    git(work, "update-index", "--add", "--cacheinfo", f"160000,{commit},library")
    with archive(snapshot.freeze(str(work)).code) as found:
        assert [name for name in found.getnames() if name.startswith("library")] == []


def test_snapshots_in_several_threads_do_not_mix(work: Path, tmp_path: Path) -> None:
    others = []
    for number in range(8):
        folder = tmp_path / f"other-{number}"
        folder.mkdir()
        (folder / "train.py").write_text(f"print({number})\n" * 10_000)
        others.append(folder)
    with ThreadPoolExecutor(8) as pool:
        frozen = list(pool.map(lambda folder: snapshot.freeze(str(folder)), others))
    for folder, one in zip(others, frozen, strict=True):
        with archive(one.code) as found:
            stream = found.extractfile("train.py")
            assert stream is not None
            assert stream.read() == (folder / "train.py").read_bytes()

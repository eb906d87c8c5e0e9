"""`gpq submit --snapshot`: which files it freezes and what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpq import paths
from gpq.errors import UsageError
from gpq.options import job_spec, snapshot
from gpq.options.job_spec import SubmitTexts


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPQ_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
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
    built = job_spec.build(SubmitTexts(["train.py", "--x"], False, {"cwd": str(work), "snapshot": True}))
    assert (built.argv, built.code_cwd, built.name) == (["train.py", "--x"], ".", "train")
    (tmp_path / "other.py").write_text("")
    with pytest.raises(UsageError, match="is outside the snapshot"):
        job_spec.build(SubmitTexts([str(tmp_path / "other.py")], False, {"cwd": str(work), "snapshot": True}))
    assert job_spec.build(SubmitTexts(["train.py"], False, {"cwd": str(work)})).code == ""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that says that it ran, in the file `ran` next to it."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\necho $0 $* >> {tmp_path}/ran\ncat\n")
    path.chmod(0o755)
    return path


def commit_all(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")


@pytest.mark.parametrize("of", ["config", "an included file", "the work tree", "a submodule", "the user"])
def test_no_program_from_the_settings_of_a_repository_is_run(
    work: Path, tmp_path: Path, program: Path, of: str
) -> None:
    """A file monitor, hooks, filters of any name. gpq runs none of them when you freeze a colleague's code."""
    hooks = work / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (hooks / name).symlink_to(program)
    (work / "program").write_bytes(program.read_bytes())
    (work / "program").chmod(0o755)
    (work / "hooks" / ".gitignore").write_text("*\n")
    inner = work / "inner"
    subprocess.run(["git", "clone", "-q", str(work), str(inner)], check=True)
    settings: dict[str, object] = {
        "core.fsmonitor": program, "core.hooksPath": hooks, "diff.external": program, "core.pager": program,
        "pager.config": program, "core.sshCommand": program, "gpg.program": program, "diff.x.textconv": program,
        "status.submoduleSummary": "true", "submodule.recurse": "true",
    }  # fmt: skip
    for name in ("x", "a=b", "A.B", "ü"):
        settings |= {f"filter.{name}.{use}": program for use in ("clean", "smudge", "process")}
    if of == "the user":  # relative, as in a team's instructions: the repository's own file
        settings |= {"core.fsmonitor": "./program", "core.hooksPath": "hooks"}
    git(work, "config", "extensions.worktreeConfig", "true")
    file = {
        "config": work / ".git/config", "an included file": tmp_path / "more", "the work tree": work / ".git/config.worktree",
        "a submodule": inner / ".git/config", "the user": tmp_path / ".gitconfig",
    }[of]  # fmt: skip
    (work / ".gitattributes").write_text("* filter=x diff=x\n*.py filter=a=b\nsub/* filter=ü\n")
    (inner / ".gitattributes").write_text("* filter=x\n*.py filter=a=b\n")
    (inner / "train.py").write_text("print('abc')\n")  # as long as before, and changed
    for name, value in settings.items():
        subprocess.run(["git", "config", "-f", str(file), name, str(value)], check=True)
    if of == "an included file":
        git(work, "config", "include.path", str(file))
    frozen = snapshot.freeze(str(work))
    assert ", dirty, " in frozen.summary
    with archive(frozen.code) as found:
        assert {"train.py", "inner/train.py", "program"} <= set(found.getnames())
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_an_incomplete_clone_is_not_completed(work: Path, tmp_path: Path, program: Path) -> None:
    """Git would ask the repository's remote for what is missing, through a program that the repository names."""
    commit_all(work)
    tree = git(work, "rev-parse", "HEAD^{tree}")
    (work / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    settings = {
        "core.repositoryFormatVersion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true",
        "remote.origin.url": str(tmp_path), "remote.origin.uploadpack": str(program),
    }  # fmt: skip
    for name, value in settings.items():
        git(work, "config", name, value)
    git(work, "update-index", "--force-remove", "train.py")
    assert ", changes unknown, " in snapshot.freeze(str(work)).summary
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


@pytest.mark.parametrize("kind", ["plain", "filtered", "mode", "split", "worktree", "sha256", "user", "exclude"])
def test_the_files_and_the_state_are_those_that_git_would_report(work: Path, tmp_path: Path, kind: str) -> None:
    if kind == "sha256":
        shutil.rmtree(work / ".git")
        git(work, "init", "-q", "--object-format=sha256")
    if kind in ("user", "exclude"):
        file = tmp_path / ".config/git/ignore" if kind == "user" else work / ".git/info/exclude"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("new.py\n")
    if kind == "filtered":  # as with git-lfs: git has something else than the file
        (work / ".gitattributes").write_text("*.py filter=upper\n")
        (tmp_path / ".gitconfig").write_text('[filter "upper"]\nclean = tr a-z A-Z\nsmudge = tr A-Z a-z\n')
        for path in work.glob("**/*.py"):
            os.utime(path, (1, 1))  # older than the index, so that git trusts the index
    commit_all(work)
    if kind == "mode":  # as on a disk without permissions
        git(work, "config", "core.fileMode", "false")
        (work / "train.py").chmod(0o755)
    if kind == "split":
        git(work, "update-index", "--split-index")
    top = work
    if kind == "worktree":
        top = tmp_path / "second"
        git(work, "worktree", "add", "-q", "-b", "second", str(top))
        (top / "train.py").write_text("print('second')\n")
        commit_all(top)
    names = git(top, "ls-files").split("\n")
    frozen = snapshot.freeze(str(top))
    with archive(frozen.code) as found:
        assert found.getnames() == names
    assert ("new.py" in names) == (kind not in ("user", "exclude"))
    assert frozen.summary.startswith(f"commit {git(top, 'rev-parse', 'HEAD')[:12]}, clean, ")
    (top / "sub" / "tool.py").write_text("print('changed')\n")
    assert ", dirty, " in snapshot.freeze(str(top)).summary


def test_a_changed_file_of_a_submodule_makes_the_copy_dirty(work: Path, tmp_path: Path) -> None:
    git(work, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(work), "library")
    commit_all(work)
    assert ", clean, " in snapshot.freeze(str(work)).summary
    (work / "library" / "train.py").write_text("print('changed')\n")
    frozen = snapshot.freeze(str(work))
    assert ", dirty, " in frozen.summary
    with archive(frozen.code) as found:
        assert "library/train.py" in found.getnames()


def test_a_damaged_repository_is_refused_and_not_copied_as_a_directory(work: Path) -> None:
    (work / ".git" / "index").write_bytes(b"DIRC")
    with pytest.raises(UsageError, match=r"git cannot list the files in .*: fatal: "):
        snapshot.freeze(str(work))
    (work / ".git" / "commondir").write_text("missing")
    with pytest.raises(UsageError, match=r"git cannot list the files in .*No such file"):
        snapshot.freeze(str(work))


def test_settings_that_git_cannot_read_are_named(work: Path, tmp_path: Path) -> None:
    for config in (tmp_path / ".gitconfig", work / ".git" / "config"):
        before = config.read_bytes() if config.exists() else b""
        config.write_bytes(b"[core\n")
        with pytest.raises(UsageError, match=rf"in {work}: fatal: bad config line 1 in file .*{config.name}"):
            snapshot.freeze(str(work))
        config.write_bytes(before)
    assert snapshot.freeze(str(work)).summary.startswith("commit ")


@pytest.mark.parametrize("kind", ["empty", "file", "link"])
def test_a_folder_whose_git_is_broken_is_not_copied_as_a_directory(work: Path, kind: str) -> None:
    """Nor as a part of the repository around it."""
    inner = work / "sub"
    if kind == "empty":
        (inner / ".git").mkdir()
    elif kind == "file":  # of a work tree whose repository has moved
        (inner / ".git").write_text("gitdir: /nowhere/.git/worktrees/sub\n")
    else:
        (inner / ".git").symlink_to("/nowhere")
    with pytest.raises(UsageError, match=rf"git cannot list the files in {inner}: .*No such file"):
        snapshot.freeze(str(inner))


def test_a_repository_without_git_on_this_machine_is_refused(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the directory would have the ignored files, too."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=rf"{work} is a git repository, but there is no git"):
        snapshot.freeze(str(work / "sub"))


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_a_repository_of_another_user_is_frozen_although_git_itself_refuses(work: Path) -> None:
    for path in (work, *work.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    with pytest.raises(subprocess.CalledProcessError):
        git(work, "status")
    assert snapshot.freeze(str(work)).summary.startswith("commit ")
    with archive(snapshot.freeze(str(work)).code) as copy:
        assert "data" not in copy.getnames()


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

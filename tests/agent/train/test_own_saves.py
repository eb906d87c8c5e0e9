"""Saves that a script writes itself. Only complete ones count, and every save starts with an empty folder."""

from pathlib import Path

from gpq_agent.train.checkpoints.script_checkpoints import ScriptCheckpoints


def write(path: str, **files: str) -> None:
    for name, content in files.items():
        file = Path(path, *name.split("__"))
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)


def test_a_half_written_save_is_not_mixed_into_the_next_one(tmp_path: Path) -> None:
    first = ScriptCheckpoints(str(tmp_path))
    write(first.next_path(), rank0="a", rank1="b")
    first.commit(10)
    write(first.next_path(), rank0="half", rank1="half")  # and then the attempt is killed
    again = ScriptCheckpoints(str(tmp_path))
    again.sweep()
    assert again.start_step == 10
    assert again.resume_path is not None
    assert sorted(path.name for path in Path(again.resume_path).iterdir()) == ["rank0", "rank1"]
    write(again.next_path(), rank0="c")  # only one replica this time
    assert [path.name for path in Path(again.commit(20)).iterdir()] == ["rank0"]


def test_all_replicas_save_into_the_same_folder_every_time(tmp_path: Path) -> None:
    lead, other = ScriptCheckpoints(str(tmp_path)), ScriptCheckpoints(str(tmp_path))
    for step in (10, 20, 30):
        assert lead.next_path() == other.next_path()
        write(lead.next_path(), rank0="x")
        write(other.next_path(), deep__rank1="y")
        lead.commit(step)
        other.advance()
        assert lead.resume_path == other.resume_path
    assert len([path for path in (tmp_path / "own").iterdir() if path.is_dir()]) == 2

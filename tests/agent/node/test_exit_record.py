"""The record of an attempt's end is written as soon as its disk allows it. Nobody writes one into a folder that was removed."""

from __future__ import annotations

import threading
from pathlib import Path

from gpq_agent import wire
from gpq_agent.node.shim.exit_record import write_exit

END = wire.ExitRecord(1, 1, 7, None, False, None, 1.0, ended_at=2.0, note="")


def test_the_shim_waits_for_a_disk_that_does_not_say_whether_the_folder_exists(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    folder = disk / "1.1"
    disk.symlink_to(disk)  # looking at the folder gives an error (ELOOP), but not that it is missing
    writer = threading.Thread(target=write_exit, args=(str(folder), END), daemon=True)
    writer.start()
    writer.join(0.5)
    assert writer.is_alive()
    (tmp_path / "mended" / "1.1").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "mended")
    (tmp_path / "link").replace(disk)  # it is never missing
    writer.join(30)
    record = wire.read_json(str(folder / wire.EXIT))
    assert record is not None
    assert record["code"] == 7


def test_nobody_waits_for_a_folder_that_was_removed(tmp_path: Path) -> None:
    write_exit(str(tmp_path / "1.1"), END)
    assert not (tmp_path / "1.1").exists()


def test_the_record_of_a_job_that_made_its_folder_a_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "1.1").touch()
    write_exit(str(tmp_path / "1.1"), END)
    assert (wire.read_json(str(tmp_path / "1.1" / wire.EXIT)) or {})["code"] == 7

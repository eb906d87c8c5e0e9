"""The record of an attempt's end is written as soon as its disk allows it. Nobody writes one into a purged folder."""

from __future__ import annotations

import threading
from pathlib import Path

from gpq_agent import wire
from gpq_agent.node.shim.exit_record import write_exit

END = wire.ExitRecord(1, 1, 7, None, False, None, 1.0, ended_at=2.0, note="")


def test_the_shim_waits_for_a_disk_that_does_not_say_whether_the_folder_exists(tmp_path: Path) -> None:
    folder = tmp_path / "1.1"
    folder.symlink_to(folder)  # looking at it gives an error (ELOOP), but not that it is missing
    writer = threading.Thread(target=write_exit, args=(str(folder), END), daemon=True)
    writer.start()
    writer.join(0.5)
    assert writer.is_alive()
    (tmp_path / "mended").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mended")
    (tmp_path / "link").replace(folder)  # it is never missing
    writer.join(30)
    record = wire.read_json(str(folder / wire.EXIT))
    assert record is not None
    assert record["code"] == 7


def test_nobody_waits_for_a_folder_that_was_purged(tmp_path: Path) -> None:
    write_exit(str(tmp_path / "1.1"), END)
    assert not (tmp_path / "1.1").exists()

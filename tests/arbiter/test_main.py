"""The process of an arbiter, before it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpq.arbiter import main


def test_an_administrator_can_forbid_teams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(main, "FORBIDDEN", str(tmp_path / "no-team"))
    (tmp_path / "no-team").touch()
    assert main.main(["lab", "--new"]) != 0
    assert "the administrator of this machine allows no team here" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()

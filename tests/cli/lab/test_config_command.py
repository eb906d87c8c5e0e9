"""What `gpq config` and `gpq doctor` say about the configuration. Neither needs a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpq.policies.registry import POLICIES
from tests.cli.conftest import BARE, Gpq
from tests.cli.jobs.test_live import ok


def test_doctor_names_each_failure_with_its_fix(gpq: Gpq, home: Path) -> None:
    said = gpq("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(said.stdout)["checks"]}
    assert {"python", "config", "state", "daemon", "gpus", "torch", "shm", "clock", "socket"} <= set(checks)
    assert (said.returncode == 1) == any(check["verdict"] == "fail" for check in checks.values())
    assert checks["config"]["verdict"] == "ok"
    (home / "config.toml").write_text("interval = -1\n")
    long = str(home / ("x" * 120))
    said = gpq("doctor", "--python", BARE, GPQ_HOME=long)
    assert said.returncode == 1
    assert "fail  config" in said.stdout
    assert "fail  socket" in said.stdout
    assert "fix: " in said.stdout
    assert not Path(long).exists()


def test_the_policies_are_listed_and_the_active_one_is_marked(gpq: Gpq, home: Path) -> None:
    lines = ok(gpq, "config", "policies", COLUMNS="200").splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["fifo"]
    assert lines[0].split(maxsplit=1) == ["goodput", POLICIES["goodput"].sentence]
    assert len(lines) == len(POLICIES)
    (home / "config.toml").write_text('policy = "best"\n')
    told = json.loads(ok(gpq, "config", "policies", "--json"))["policies"]
    assert [row["name"] for row in told] == list(POLICIES)
    assert not any(row["chosen"] for row in told)


@pytest.mark.parametrize("command", ["show", "check", "path", "policies"])
def test_all_json_output_of_config_has_a_schema(gpq: Gpq, command: str) -> None:
    assert json.loads(ok(gpq, "config", command, "--json"))["schema"] == 2


def test_config_show_prints_a_valid_configuration(gpq: Gpq, home: Path) -> None:
    with (home / "config.toml").open("a") as settings:
        settings.write('[nodes."b.c"]\nslots = 1\n[accept]\n"train.py" = ["own-next"]\n')
    shown = ok(gpq, "config", "show")
    assert ok(gpq, "config") == shown
    assert gpq("config", "shwo").returncode == 2
    (home / "again.toml").write_text(shown)
    assert "is valid" in ok(gpq, "config", "check", str(home / "again.toml"))
    assert ok(gpq, "config", "show", GPQ_CONFIG=str(home / "again.toml")) == shown
    assert ok(gpq, "config", "path") == f"{home}/config.toml\n"

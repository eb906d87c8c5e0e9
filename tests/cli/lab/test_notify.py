"""`gpq notify`, and what `gpq config` says about targets, without a daemon."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT
from tests.support import commands
from tests.support.webhook import webhook

SECRET = "geheim7f3a9c"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def gpq(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{ROOT}/agent",
        "GPQ_HOME": str(config.parent),
        "LANG": "C.UTF-8",
    }
    environment["GPQ_CONFIG"] = str(config)
    return commands.run(words, environment, cwd=config.parent)


def test_targets_are_listed_and_tested(config: Path) -> None:
    with webhook() as slack, webhook("refuses") as broken:
        config.write_text(
            f'[notify]\nslack = "{slack.url(SECRET)}"\nbroken = "{broken.url(SECRET)}"\ndefault = "slack"\non = ["fail"]\n'
        )
        config.chmod(0o600)
        assert gpq(config, "notify").stdout.splitlines() == [
            "slack   json://...",
            "broken  json://...",
            "jobs without --notify notify slack (on fail), with 20 lines of their log",
        ]
        tried = gpq(config, "notify", "test", "slack", "broken")
        assert (tried.returncode, tried.stdout) == (1, "slack: sent\n")
        assert tried.stderr.splitlines()[0] == "gpq: broken: the service answered 500"
        assert slack.titles() == ["gpq: a test"]
        said = gpq(config, "notify", "test", "gone")
        assert (said.returncode, said.stderr.splitlines()[0]) == (
            2,
            "gpq: config.toml has no target `gone` in [notify]",
        )
        rows = json.loads(gpq(config, "notify", "test", "slack", "--json").stdout)
        assert rows == {"targets": [{"name": "slack", "sent": True, "problem": ""}], "schema": 2}
        checked = gpq(config, "config", "check")
        assert (checked.returncode, checked.stderr) == (0, "")
    shown = gpq(config, "config", "show")
    assert "left out because their URLs may hold secrets: notify.broken, notify.slack" in shown.stderr
    copy = config.with_name("copy.toml")
    copy.write_text(shown.stdout)
    assert gpq(config, "config", "check", str(copy)).returncode == 0
    listed = gpq(config, "notify", "list", "--json").stdout
    assert json.loads(listed)["targets"] == {"slack": "json", "broken": "json"}
    assert SECRET not in shown.stdout + shown.stderr + listed + gpq(config, "config", "show", "--json").stdout


def test_check_names_an_invalid_apprise_url_and_a_file_that_others_can_read(config: Path) -> None:
    config.write_text(f'[notify]\nodd = "slack://{SECRET}"\n')
    said = gpq(config, "config", "check")
    assert (said.returncode, SECRET in said.stderr) == (2, False)
    assert "notify.odd: apprise does not know this kind of URL, or the URL is incomplete" in said.stderr
    config.write_text('[notify]\nhook = "json://127.0.0.1/x"\n')
    config.chmod(0o644)
    said = gpq(config, "config", "check")
    assert (said.returncode, "chmod 600" in said.stderr) == (0, True)


def test_notify_without_targets_says_what_to_write(config: Path) -> None:
    config.write_text("")
    said = gpq(config, "notify").stdout.splitlines()
    assert said[0].startswith('no targets. Write [notify] NAME = "URL" in config.toml')
    assert said[1] == "jobs without --notify notify nobody (on end), with 20 lines of their log"

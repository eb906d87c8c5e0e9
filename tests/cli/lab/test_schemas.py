"""The published schemas. Every command with `--json` has one, each schema is valid, and real output matches it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpq import verdicts
from gpq.cli.lab.schema import name_of
from gpq.options import json_answers
from gpq.options.completion_data import GRAMMAR
from gpq.rpc import job_answers
from tests.cli.conftest import BARE, ROOT, Call, Gpq
from tests.cli.served import Made, job
from tests.generated import schemas
from tests.generated.printed import PRINTED, STREAMS
from tests.support.measurements import tiny, workload
from tests.support.schemas import check, command, validator
from tests.support.sshd import Sshd

WITH_JSON = sorted(path for path, (_, options) in GRAMMAR.items() if "--json" in options)


def test_exactly_the_commands_with_json_have_a_schema() -> None:
    assert sorted(PRINTED) == WITH_JSON, "update PRINTED in tests/generated/printed.py"
    assert set(WITH_JSON) >= STREAMS
    there = {entry.name for entry in (ROOT / "gpq" / "schemas").iterdir()}
    assert there == {f"{name_of(path)}.json" for path in WITH_JSON}


@pytest.mark.parametrize("path", WITH_JSON)
def test_each_schema_is_valid_and_requires_every_field_but_forbids_none(path: str) -> None:
    found = schemas.schema(path)
    Draft202012Validator.check_schema(found)
    text = json.dumps(found)
    for name in found["$defs"]:
        assert f"#/$defs/{name}" in text
    for each in found["$defs"].values():
        assert set(each.get("required", ())) == set(each.get("properties", ()))
        assert each.get("additionalProperties") is not False
    assert "ignore fields that you do not know" in found["description"]


def test_the_schema_repeats_what_the_source_says_about_a_field() -> None:
    row = schemas.schema("status")["$defs"]["JobView"]
    assert row["properties"]["goodput"]["description"].startswith("useful examples per second")
    assert row["description"] == "One row of `gpq status`."
    assert schemas.comments(job_answers.CancelResult)["waiting"].startswith("the jobs among them")
    assert schemas.comments(json_answers.Settings)["grace"].endswith("unless `gpq submit --grace` says otherwise")


def test_two_kinds_of_habit_have_their_own_descriptions() -> None:
    kept = schemas.schema("show")["$defs"]["HabitView"]["properties"]
    found = schemas.schema("check")["$defs"]["FoundHabit"]["properties"]
    assert kept["freedoms"]["description"] == "some of accumulate, split, resize, retune"
    assert found["freedoms"]["description"].endswith("Empty for a guess")
    assert kept["lent"]["description"].startswith("an earlier job of the program had this habit")


def test_two_classes_with_the_same_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = type("HabitView", (), {})
    monkeypatch.setattr(verdicts, "Other", other, raising=False)
    with pytest.raises(TypeError, match="two classes are called HabitView: "):
        schemas.schema("show")


def test_an_extra_field_passes_but_a_missing_or_mistyped_field_does_not() -> None:
    right = {"path": "/c.toml", "schema": 2}
    is_valid = validator("config path").is_valid
    assert is_valid(right)
    assert is_valid({**right, "news": 1})
    assert is_valid({"error": "it failed", "hint": ""})
    assert not is_valid({"path": "/c.toml"})
    assert not is_valid({**right, "schema": "1"})
    assert not is_valid([right])


def ran(gpq: Call, *argv: str, code: int = 0) -> dict[str, Any]:
    """The first JSON that a command printed. It must match the schema."""
    said = gpq(*argv)
    assert said.returncode == code, said
    path = command(argv)
    first: dict[str, Any] = check(path, said.stdout)[0]
    assert ("error" in first) == ("hint" in first) == (code > 1)
    return first


def test_the_output_for_a_busy_queue_matches_the_schemas(call: Call, made: Made) -> None:
    staging = job_answers.StagingView("its checkpoint from a", 1, 2, 0.5)
    made.rows.append(job(3, "pending", staging=staging, hung="no step for 90 s", hung_seconds=90.0, stragglers=[1]))
    assert len(ran(call, "status", "--json")["jobs"]) == 3
    for argv in (
        ["status", "--all", "--user", "alice", "--json"], ["status", "--state", "running", "--recent", "3", "--json"],
        ["show", "1", "--json"], ["why", "1", "--json"], ["top", "--json"], ["nodes", "--json"], ["hold", "1", "--json"],
        ["nodes", "list", "a", "--json"], ["release", "1", "--json"], ["requeue", "1", "--json"],
        ["submit", "--json", "--", "true"], ["submit", "--dry-run", "--json", "--", "true"],
    ):  # fmt: skip
        ran(call, *argv)
    assert ran(call, "cancel", "1", "--json", code=1)["remaining"] == [3]
    assert ran(call, "logs", "1", "--json")["attempt"] == 1
    for argv, code in (
        (["show", "99", "--json"], 4), (["why", "99", "--json"], 4), (["submit", "--json", "--gpus", "0", "--", "true"], 2),
        (["status", "--json", "--recent", "x"], 2), (["cancel", "1", "--timeout", "5", "--json"], 2),
        (["top", "--interval", "0", "--json"], 2), (["nodes", "reserve", "a", "--json"], 2),
    ):  # fmt: skip
        ran(call, *argv, code=code)


def test_the_answers_of_a_real_daemon_match_the_schemas(
    live: Gpq, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TS_SOCKET", str(home / "none.sock"))
    (home / "two.sh").write_text("#!/bin/sh\n#SBATCH --nodes=2\n")
    ran(call, "submit", "--json", "--name", "one", "--tag", "a", "--", "sh", "-c", "echo hello; exit 3")
    waited = call("wait", "1", "--json")
    assert (waited.returncode, check("wait", waited.stdout)[0]["jobs"][0]["exit_status"]) == (3, 3)
    ran(call, "submit", "--json", "--hold", "--", "sleep", "1000")
    for argv, code in (
        (["show", "1", "--json"], 0), (["why", "2", "--json"], 0), (["logs", "1", "--json"], 0),
        (["logs", "2", "--json"], 1), (["hold", "2", "--json"], 5), (["wait", "2", "--timeout", "1s", "--json"], 124),
        (["release", "2", "--json"], 0), (["release", "1", "--json"], 5), (["requeue", "1", "--json"], 0),
        (["status", "--json"], 0), (["top", "--json"], 0), (["daemon", "status", "--json"], 0),
        (["nodes", "reserve", "local:0", "--for-duration", "1h", "--json"], 0), (["nodes", "--json"], 0),
        (["nodes", "unreserve", "1", "--json"], 0), (["nodes", "unreserve", "7", "--json"], 4),
        (["nodes", "drain", "local", "--json"], 0), (["nodes", "undrain", "local", "--json"], 0),
        (["nodes", "drain", "nowhere", "--json"], 4), (["yield", "--for", "1h", "--json"], 0), (["yield", "--end", "--json"], 0),
        (["nodes", "clean", "--older", "90d", "--json"], 0), (["nodes", "clean", "--older", "x", "--json"], 2),
        (["edit", "2", "--name", "new", "--json"], 0), (["edit", "2", "--priority", "x", "--json"], 2),
        (["cancel", "all", "--json"], 0),
        (["config", "show", "--json"], 0), (["config", "--json"], 0), (["config", "check", "--json"], 0),
        (["config", "check", "none.toml", "--json"], 2), (["config", "path", "--json"], 0),
        (["import", "slurm", "none.sh", "--json"], 2), (["import", "slurm", "two.sh", "--json"], 5),
        (["import", "ts", "--json"], 4), (["notify", "list", "--json"], 0),
        (["history", "--json"], 0), (["report", "--by", "job", "--json"], 0), (["report", "--since", "x", "--json"], 2),
        (["notify", "test", "nobody", "--json"], 2),
        (["config", "policies", "--json"], 0), (["simulate", "none.csv", "--json"], 2),
    ):  # fmt: skip
        said = call(*argv)
        assert said.returncode == code, said
        assert check(command(argv), said.stdout), argv
    said = live("doctor", "--json", "--python", BARE)
    assert check("doctor", said.stdout)[0]["checks"]
    tiny(home / "traces")
    workload(home / "w.csv")
    argv = ("simulate", "w.csv", "--traces", "traces", "--nodes", "2x4", "--policy", "fifo", "--seed", "0,1", "--json")
    assert ran(call, *argv)["means"]


def test_the_output_for_adding_and_removing_a_server_matches_the_schemas(gpq: Gpq, home: Path, tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd") as server:
        add = (
            "nodes",
            "add",
            server.name,
            "-F",
            str(server.config),
            "--slots",
            "1",
            "--name",
            "far",
            "--yes",
            "--json",
        )
        assert ran(gpq, *add)["added"][0]["name"] == "far"
        ran(gpq, *add, code=5)
    assert ran(gpq, "nodes", "remove", "far", "--force", "--json") == {"removed": "far", "live": False, "schema": 2}


def test_schemas_are_printed_and_listed_and_a_command_without_one_is_refused(gpq: Gpq) -> None:
    assert json.loads(gpq("schema", "nodes", "drain").stdout) == schemas.schema("nodes drain")
    assert json.loads(gpq("schema", "nodes").stdout) == schemas.schema("nodes list")
    listed = gpq("schema").stdout.splitlines()
    assert len(listed) == len(WITH_JSON)
    assert all(os.path.exists(line.split()[-1]) for line in listed)
    for words in (["daemon", "start"], ["completion"], ["../status"], ["nowhere"]):
        said = gpq("schema", *words)
        assert (said.returncode, "has no --json" in said.stderr) == (4, True)

"""`gpq submit`: the daemon gets what the user typed, whichever code path reads the options."""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpq import verdicts
from gpq.api import options as api_options
from gpq.cli.app import dispatch
from gpq.core.rounds.planning import CANCEL_GRACE
from gpq.errors import UsageError
from gpq.job_request import JobRequest
from gpq.options import environment, job_spec, remarks, submit_request
from gpq.options.completion_data import GRAMMAR
from gpq.rpc import protocol, requests
from gpq.rpc.submit_table import OPTIONS, Option
from tests.cli.conftest import Call, Gpq
from tests.cli.served import Made

GOOD = [
    ["--", "sleep", "5"],
    ["-g", "2", "--", "sh", "-c", "echo -- --gpus 3"],
    ["train.py"],
    ["--gpus=1-8", "train.py", "--gpus", "7", "--", "x"],
    ["--gpus", "3-", "train.py"],
    ["--gpus", "4", "--rigid", "./train.py", "-v"],
    ["--name", "n1", "-t", "1h30m", "--priority", "-3", "--retries=2", "--hold", "--", "true"],
    ["--requeue-on-lost", "10m", "--", "true"],
    ["--setup", "source venv/bin/activate", "train.py"],
    ["--tag", "a", "--tag=b", "-e", "A=1", "--env", "B=x=y", "--", "true"],
    ["--preemptible", "--signal", "sigusr1", "--grace", "90s", "--resume-args", "--resume 'a b'", "--", "true"],
    ["--done-file", "out/done", "--", "true"],
    ["--batch-size", "64", "--max-batch-size", "512", "--atomic-batch-size", "8-32", "train.py"],
    ["--accept", "own-next", "--accept", "own-count", "train.py"],
    ["--gpu-type", "A100", "--min-gpu-memory", "40G", "--python", "python3", "--cwd", "/", "--", "true"],
]


@pytest.mark.parametrize("argv", GOOD, ids=" ".join)
def test_options_mean_the_same_with_and_without_typer(call: Call, made: Made, home: Path, argv: list[str]) -> None:
    (home / "train.py").touch()
    assert call("submit", *argv).stdout.startswith("job 5 submitted")
    assert call("submit", *argv, entry=dispatch).returncode == 0
    assert len(made.asked) == 2
    assert made.asked[0] == made.asked[1]


def asked(gpq: Gpq, made: Made, *argv: str, **environ: str) -> requests.SpecMessage:
    """The job specification that reached the daemon."""
    said = gpq("submit", *argv, **environ)
    assert said.returncode == 0, said.stderr
    request = made.asked[-1]
    assert isinstance(request, requests.Submit)
    return request.spec


def test_a_command_has_a_fixed_size_and_a_script_may_grow(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").touch()
    command = asked(gpq, made, "--", "/opt/tool", "--gpus", "9")
    assert (command.level, command.min_gpus, command.max_gpus, command.name) == ("black-box", 1, 1, "tool")
    assert command.argv == ["/opt/tool", "--gpus", "9"]
    script = asked(gpq, made, "train.py", "--epochs", "3")
    assert (script.level, script.min_gpus, script.max_gpus, script.name) == ("script", 1, 0, "train")
    assert script.argv == [str(home / "train.py"), "--epochs", "3"]
    assert asked(gpq, made, "--gpus", "2-6", "train.py").max_gpus == 6
    fixed = asked(gpq, made, "--gpus", "2", "--rigid", "train.py")
    assert (fixed.min_gpus, fixed.max_gpus, fixed.rigid) == (2, 2, True)
    signalled = asked(gpq, made, "--preemptible", "--signal", "USR1", "--", "old")
    assert (signalled.level, signalled.signal, signalled.grace) == ("signal", "USR1", None)


def test_submit_imports_neither_typer_nor_policies_nor_numpy(gpq: Gpq, made: Made) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gpq", "submit", "--", "true"]
    said = subprocess.run(command, env=gpq.environment, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines() if line.startswith("import time:")}
    assert "gpq.options.job_spec" in imported
    dear = {"typer", "rich", "numpy", "scipy", "matplotlib", "gpq.config", "gpq.policies", "gpq.core.model.jobs"}
    assert not imported & dear


def test_units_become_seconds_and_mib(gpq: Gpq, made: Made) -> None:
    found = asked(gpq, made, "--time", "1h30m", "--min-gpu-memory", "40G", "--", "true")
    assert (found.time_limit, found.min_gpu_memory_mib) == (5400.0, 40960)


def test_a_done_file_is_sent_as_typed_for_every_kind_of_job(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").touch()
    for words in (["--", "true"], ["--preemptible", "--", "true"], ["train.py"]):
        assert asked(gpq, made, "--done-file", "out/{index}", *words).done_file == "out/{index}"
    assert asked(gpq, made, "--", "true").done_file == ""


def test_the_directory_keeps_the_name_that_the_shell_uses(gpq: Gpq, made: Made, home: Path) -> None:
    """The real path behind an automounted home or a link may not exist on other servers. gpq ignores a PWD that names
    another directory."""
    real, link = home / "real", home / "link"
    real.mkdir()
    link.symlink_to(real)
    for named, wanted in ((link, link), (home, real), (Path("link"), real), (home / "gone", real)):
        gpq("submit", "--", "true", cwd=real, PWD=str(named))
        request = made.asked[-1]
        assert isinstance(request, requests.Submit)
        assert request.spec.cwd == str(wanted)


def test_a_lease_is_a_time_or_off_or_left_to_the_configuration(gpq: Gpq, made: Made) -> None:
    assert asked(gpq, made, "--requeue-on-lost", "10m", "--", "true").requeue_on_lost == 600.0
    assert asked(gpq, made, "--requeue-on-lost=off", "--", "true").requeue_on_lost == 0.0
    assert asked(gpq, made, "--", "true").requeue_on_lost is None
    for short in ("59s", "31d"):
        said = gpq("submit", "--requeue-on-lost", short, "--", "true")
        assert (said.returncode, "expected 1m to 30d" in said.stderr) == (2, True)


def test_the_interpreter_is_that_of_the_active_environment(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").touch()
    assert asked(gpq, made, "train.py").python == os.path.abspath(sys.executable)
    python = home / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert asked(gpq, made, "train.py", VIRTUAL_ENV=str(home / "venv")).python == str(python)
    assert asked(gpq, made, "train.py", CONDA_PREFIX=str(home / "venv")).python == str(python)
    assert asked(gpq, made, "--python", "venv/bin/python", "train.py").python == str(python)


def test_the_modules_that_a_script_needs_are_read_from_it(gpq: Gpq, made: Made, home: Path) -> None:
    for text, modules in (
        ("import torch\n", ["torch"]),
        ("from gpq_agent import train as gpq\n", ["torch"]),
        ("import torchless\ntry:\n    import torch\nexcept ImportError: pass\n", []),
        ("print('import torch')\n", []),
    ):
        (home / "train.py").write_text(text)
        assert asked(gpq, made, "train.py").modules == modules, text
    assert asked(gpq, made, "--gpus", "2", "train.py").modules == ["torch"], "torch launches several replicas"
    assert asked(gpq, made, "--gpus", "2", "--", "python", "train.py").modules == []


def test_a_note_says_if_gpqs_own_python_lacks_a_module_of_the_script(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    own = requests.SpecMessage(argv=["train.py"], cwd="/", level="script", python=environment.own(), modules=["torch"])
    [said] = remarks.missing(own)
    assert "has no torch: activate the environment that has it" in said
    for other in ({"python_asked": True}, {"python": "/usr/bin/python9"}, {"modules": []}):
        assert remarks.missing(msgspec.structs.replace(own, **other)) == []
    monkeypatch.undo()
    assert remarks.missing(own) == []


def test_the_variables_that_a_setup_does_not_get_are_named(gpq: Gpq, made: Made) -> None:
    said = gpq("submit", "--setup", "make", "--env", "PIP_INDEX=u", "--env", "LD_X=1", "--", "true").stderr
    assert "--setup runs without PIP_INDEX, which only the job gets, where it starts" in said


def test_an_interpreter_may_exist_only_on_the_servers(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").touch()
    assert "no such program" in gpq("submit", "--python", "/there/python", "train.py").stderr
    (home / "config.toml").write_text('[nodes.far]\nconnector = "ssh"\nhost = "far"\n')
    spec = asked(gpq, made, "--python", "/there/python", "--setup", " make ", "train.py")
    assert (spec.python, spec.python_asked, spec.setup) == ("/there/python", True, "make")
    assert not asked(gpq, made, "train.py").python_asked


def test_only_allowed_variables_are_sent_and_secrets_must_be_named(gpq: Gpq, made: Made) -> None:
    shell = {
        "CONDA_PREFIX": "/c",
        "HF_TOKEN": "canary",
        "OMP_NUM_THREADS": "4",
        "EDITOR": "vi",
        "WANDB_API_KEY": "canary",
    }
    found = asked(gpq, made, "--", "true", **shell).env
    assert {"PATH", "CONDA_PREFIX", "OMP_NUM_THREADS"} <= set(found)
    assert not {"HOME", "USER", "SHELL", "HF_TOKEN", "EDITOR", "WANDB_API_KEY", "TERM", "GPQ_HOME"} & set(found)
    found = asked(gpq, made, "--env", "HF_TOKEN", "--env", "X=a b=c", "--", "true", **shell).env
    assert (found["HF_TOKEN"], found["X"]) == ("canary", "a b=c")


def test_the_daemon_chooses_the_grace_unless_the_user_sets_it(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "config.toml").write_text("grace = soon\n")
    assert asked(gpq, made, "--", "true").grace is None
    assert asked(gpq, made, "--grace", "5s", "--preemptible", "--", "true").grace == 5.0


def test_json_and_dry_run_print_the_daemons_answer(gpq: Gpq, made: Made) -> None:
    assert json.loads(gpq("submit", "--json", "--", "true").stdout) == {
        "id": 5, "name": "true", "state": "pending", "warnings": [], "jobs": [], "schema": protocol.SCHEMA,
    }  # fmt: skip
    assert gpq("submit", "--dry-run", "--", "true").stdout == "would be starting on a GPU 0\n  1 GPU is free\n"
    assert json.loads(gpq("submit", "--dry-run", "--json", "--", "true").stdout)["state"] == "starting"


def test_cancel_says_which_jobs_are_gone_and_which_still_run(gpq: Gpq, made: Made) -> None:
    said = gpq("cancel", "1", "2", "3", "--timeout", "7s")
    assert said.returncode == 1
    assert said.stdout == "job 1 cancelled: every process is gone\njob 2 had already ended: nothing to cancel\n"
    assert said.stderr == "note: job 3 still has processes after 7s: `gpq why 3`\n"
    assert requests.Cancel(["1-2"], wait=7.0) in made.asked  # the fake daemon knows two jobs
    assert f"KILL after {CANCEL_GRACE:.0f} s" in " ".join(gpq("cancel", "--help").stdout.split())


@pytest.mark.parametrize(("command", "done"), [("hold", "held"), ("release", "released"), ("requeue", "requeued")])
def test_queue_control_names_changed_and_unchanged_jobs(gpq: Gpq, made: Made, command: str, done: str) -> None:
    said = gpq(command, "1", "2")
    assert (said.returncode, said.stdout, said.stderr) == (0, f"job 1 {done}\n", "note: job 2 has ended\n")


def test_logs_join_the_attempts_with_a_line_between_them(gpq: Gpq, made: Made) -> None:
    said = gpq("logs", "1").stdout
    assert said.startswith("--- attempt 1 on a ---\nfirst\n--- attempt 2 on a ---\nsecond \x1b]52")
    assert gpq("logs", "1", "--attempt", "1").stdout == "--- attempt 1 on a ---\nfirst\n"
    assert gpq("logs", "1", "--attempt", "1", "--node", "0").stdout == "--- attempt 1 on a ---\nfirst\n"
    wrong = gpq("logs", "1", "--node", "3")
    assert (wrong.returncode, wrong.stdout) == (4, "")
    pieces = [json.loads(line) for line in gpq("logs", "1", "--json").stdout.splitlines()]
    assert {piece["attempt"] for piece in pieces} == {1, 2}


def test_an_attempt_on_an_unreachable_server_is_named_and_the_others_are_shown(gpq: Gpq, made: Made) -> None:
    made.silent[1] = "server a does not answer"
    told = "--- attempt 1 on a: its log is not available now: server a does not answer ---\n"
    for options in ((), ("-f",)):
        said = gpq("logs", "1", *options)
        assert said.returncode == 0, said
        assert said.stdout.startswith(f"{told}--- attempt 2 on a ---\nsecond ")
    alone = gpq("logs", "1", "--attempt", "1")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert alone.stderr == "gpq: server a does not answer\nhint: `gpq nodes` shows since when and why\n"
    del made.silent[1]
    made.silent[2] = "server a does not answer"
    last = gpq("logs", "1")
    assert (last.returncode, last.stdout, last.stderr.count("does not answer")) == (
        1,
        "--- attempt 1 on a ---\nfirst\n",
        1,
    )


def test_following_an_unreachable_server_prints_one_note_and_later_the_whole_log(gpq: Gpq, made: Made) -> None:
    made.mute = 4
    said = gpq("logs", "1", "-f", "--attempt", "1")
    assert (said.returncode, said.stdout) == (0, "--- attempt 1 on a ---\nfirst\n")
    assert said.stderr == "note: server a does not answer, waiting for it\n"
    made.mute = 4
    pieces = gpq("logs", "1", "-f", "--attempt", "1", "--json").stdout.splitlines()
    assert [json.loads(piece)["silent"] for piece in pieces] == ["", ""]
    assert made.mute == 0


def test_options_after_the_script_go_to_the_script_with_a_note(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").write_text("")
    late = gpq("submit", "--name", "a", "train.py", "--gpus=2", "--dry-run", "--epochs", "3", "-n", "1")
    assert late.stdout == "job 5 submitted\n"
    said = "are after the script and so go to it: put gpq's options before it"
    assert late.stderr == f"note: --gpus, --dry-run {said}\n"
    assert gpq("submit", "train.py", "--epochs", "3").stderr == ""
    shell = home / "run.sh"
    shell.write_text("#!/bin/sh\n")
    said = "--hold is after the script and so goes to it: put gpq's options before it"
    assert gpq("submit", "run.sh", "--hold").stderr == f"note: {said}\n"


def test_the_note_about_options_after_dashes_names_only_options_that_gpq_would_accept(gpq: Gpq, made: Made) -> None:
    said = gpq("submit", "--", "true", "--hold", "--gpus", "2")
    assert said.stdout == "job 5 submitted\n"
    told = "are after `--` and so go to the command: put gpq's options before `--`"
    assert said.stderr == f"note: --hold, --gpus {told}\n"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_row_of_the_option_table_has_a_reader_and_existing_fields(option: Option) -> None:
    assert option.kind in job_spec.READERS or not option.fields
    assert set(option.fields) <= set(requests.SpecMessage.__struct_fields__)
    assert set(option.fields) - {"after"} <= set(JobRequest.__struct_fields__), (
        "the message and the stored job share them"
    )
    assert option.fields or option.edit == "never"
    assert option.part == "call" or option.name in api_options.READERS


@pytest.mark.parametrize("option", [each for each in GRAMMAR["submit"][1] if each.startswith("--")])
def test_options_that_gpq_refuses_for_a_command_belong_to_the_command(option: str) -> None:
    value = ["1"] if GRAMMAR["submit"][1][option][1] else []
    parsed = submit_request.parse([option, *value, "--", "true"])
    assert parsed is not None
    try:
        job_spec.build(submit_request.settle(parsed).texts)
        refused = False
    except UsageError as error:
        refused = "is only for training scripts" in error.message
    typed = submit_request.parse(["--", "true", option, *value])
    assert typed is not None
    assert bool(submit_request.late(typed)) is not (refused or option == "--python")


@pytest.mark.parametrize("words", [["--gpus", "2", "true"], ["--dry-run", "true"], ["-g", "2"], ["--time=2h", "true"]])
def test_a_command_cannot_begin_with_a_gpq_option(gpq: Gpq, made: Made, words: list[str]) -> None:
    said = gpq("submit", "--", *words)
    assert (said.returncode, said.stdout, made.asked) == (2, "", [])
    option = words[0].partition("=")[0]
    assert said.stderr == (
        f"gpq: {option} is after `--`, where the command begins\nhint: put gpq's options before `--`\n"
    )


def stays(gpq: Gpq, *argv: str, **environ: str) -> list[str]:
    """The variables that the note of a submission names."""
    said = gpq("submit", "--dry-run", *argv, timeout=120, cwd=None, **environ)
    lines = [line for line in said.stderr.splitlines() if "not passed on" in line]
    assert len(lines) <= 1, said.stderr
    assert "canary" not in said.stdout + said.stderr
    return sorted(re.findall(r"--env (\w+)", lines[0])) if lines else []


LOOP = "import gpq_agent.train as gpq\n"


def test_an_unchecked_resizable_script_gets_a_note_about_gpq_check(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").write_text(LOOP)
    (home / "plain.py").write_text("import torch\n")
    said = gpq("submit", "--sweep", "lr=0.1,0.2", "train.py", "--lr", "{lr}")
    assert "gpq has not checked this script yet: `gpq check train.py --lr 0.1` tests" in said.stderr
    for quiet in (["plain.py"], ["--gpus", "2", "train.py"], ["--rigid", "train.py"], ["--", "./train.py"]):
        assert "verdict" not in gpq("submit", *quiet).stderr


FRAMEWORKS = {
    "from transformers import Trainer, TrainingArguments\nTrainer(TrainingArguments())": "gpq.elastic(Trainer)(...)",
    "import transformers\nclass Own(transformers.Trainer):\n    pass\nOwn()": "gpq.elastic(Own)(...)",
    "from trl import SFTTrainer as Tuner\nTuner()": "gpq.elastic(Tuner)(...)",
    "import accelerate\naccelerate.Accelerator()": "gpq.accelerate(accelerate.Accelerator(...))",
    "import lightning.pytorch as pl\npl.Trainer(max_epochs=2)": "pl.Trainer(**gpq.lightning(), ...)",
}
NO_FRAMEWORK = ("from ours import Trainer\nTrainer()\n# transformers", "import transformers\ntransformers.Pipeline(")


@pytest.mark.parametrize("text", FRAMEWORKS)
def test_a_script_of_a_framework_is_told_the_line_to_change(text: str, gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").write_text(text)
    said = gpq("submit", "train.py").stderr
    number = len(text.splitlines())
    assert f"line {number} of train.py: with `import gpq_agent.train as gpq` and `{FRAMEWORKS[text]}` instead" in said


@pytest.mark.parametrize("text", NO_FRAMEWORK)
def test_a_script_without_a_framework_is_told_no_line(text: str, gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").write_text(text)
    assert "gpq_agent.train" not in gpq("submit", "train.py").stderr


def test_a_check_before_the_submission_is_for_scripts(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").write_text("#GPQ --check\n" + LOOP)
    (home / "plain.py").write_text(LOOP)
    for line, problem in (
        (["--check", "--", "true"], "--check is only for training scripts"),
        (["--no-check", "--", "true"], "--no-check is only for training scripts"),
        (["--check", "--no-check", "plain.py"], "--check and --no-check exclude each other"),
        (["train.py"], "not an option of a job"),
    ):
        said = gpq("submit", *line)
        assert (said.returncode, problem in said.stderr) == (2, True), said.stderr
    assert "--check" not in gpq("submit", "--", "true", "--check").stderr
    assert not [request for request in made.asked[:-1] if isinstance(request, requests.Submit)]


def test_a_verdict_is_sent_with_the_job_until_its_script_changes(gpq: Gpq, made: Made, home: Path) -> None:
    script = home / "train.py"
    script.write_text(LOOP)
    rows = [
        verdicts.ShapeView(shape, verdict, None, None, "", None, [], "", "")
        for shape, verdict in (("accumulating", "same"), ("split", "differs"))
    ]
    files = {str(script): hashlib.sha256(LOOP.encode()).hexdigest()}
    at = "2026-11-27T10:00:00Z"
    found = verdicts.Verdict("", [], "abc", files, "", "", "differs", 8, 4, rows, [], [], 0.0, 1.0, at)
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setenv("GPQ_HOME", gpq.environment["GPQ_HOME"])
        verdicts.keep(verdicts.place(str(script), ["--lr", "0.3"]), found)
    said = gpq("submit", "train.py", "--lr", "0.1")
    assert "(split: differs), so it does not use split: see `gpq check --last train.py --lr 0.1`" in said.stderr
    proof = requests.ProofMessage("abc", ["accumulate"], ["split"], "split: differs", "2026-11-27T10:00:00Z")
    assert made.asked[-1].spec.proof == proof  # type: ignore[attr-defined]
    script.write_text(LOOP + "\n")
    said = gpq("submit", "train.py", "--lr", "0.1")
    assert "train.py has changed since the last check" in said.stderr
    assert made.asked[-1].spec.proof is None  # type: ignore[attr-defined]


def test_variables_that_the_job_may_need_but_does_not_get_are_named_once(gpq: Gpq, made: Made, home: Path) -> None:
    plain, logs, reads = home / "p" / "plain.py", home / "q" / "logs.py", home / "r" / "reads.py"
    for path, text in (
        (plain, "import torch\n"),
        (logs, "import tracking\n"),
        (
            reads,
            "import os\nos.environ['DATA_ROOT'], os.environ.get(\"SHORT\")\nos.environ['MADE'] = os.environ['MADE'] or 'x'\n",
        ),
    ):
        path.parent.mkdir()
        path.write_text(text)
    (home / "q" / "tracking.py").write_text("import wandb, boto3\n")
    secrets = {
        "WANDB_API_KEY": "canary", "WANDB_ENTITY": "canary", "AWS_SECRET_ACCESS_KEY": "canary", "NEPTUNE_API_TOKEN": "canary",
        "OTHER_PASSWORD": "canary", "DATA_ROOT": "canary", "MADE": "canary", "WANDB_MODE": "offline", "EMPTY_TOKEN": "",
    }  # fmt: skip

    def of(path: Path, *options: str, **more: str) -> list[str]:
        return stays(gpq, "--cwd", str(path.parent), *options, path.name, **{**secrets, **more})

    assert of(plain) == []
    assert of(logs) == ["AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "WANDB_ENTITY"]
    assert of(logs, "--env", "WANDB_API_KEY", "-e", "AWS_SECRET_ACCESS_KEY=x") == ["WANDB_ENTITY"]
    assert of(reads) == ["DATA_ROOT"], "the script sets the other variable itself"
    assert stays(gpq, "--", "sh", "-c", "curl -u $OTHER_PASSWORD x", **secrets) == ["OTHER_PASSWORD"]
    assert stays(gpq, "--", "sh", "-c", "echo $LR", LR="0.1") == ["LR"]
    assert stays(gpq, "--", "python", str(logs), **secrets) == [
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "WANDB_ENTITY",
    ]


def test_the_note_on_variables_stays_out_of_json_and_can_be_turned_off(gpq: Gpq, made: Made, home: Path) -> None:
    (home / "train.py").write_text("import wandb\n")
    said = gpq("submit", "train.py", "--json", WANDB_API_KEY="canary")
    assert said.stderr.count("WANDB_API_KEY is not passed on") == 1
    typed = gpq("submit", "--json", "train.py", WANDB_API_KEY="canary")
    assert json.loads(typed.stdout)["id"] == 5
    assert "WANDB_API_KEY is not passed on" in typed.stderr
    config = home / "config.toml"
    config.write_text("note_env = false\n" + config.read_text())
    assert "not passed on" not in gpq("submit", "train.py", WANDB_API_KEY="canary").stderr

"""sbatch's options in gpq: which ones gpq translates, ignores with a note or refuses, and which source takes
precedence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpq as api
from gpq.errors import UsageError
from gpq.options import sbatch, script_directives, submit_request, values
from gpq.rpc import protocol, requests
from tests.cli.conftest import Call, Gpq
from tests.cli.served import Made
from tests.support.examples import examples

TYPICAL = """\
#!/bin/bash
#SBATCH --job-name=resnet50        # what squeue shows
#SBATCH -p gpu -A lab042
#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --gres=gpu:a100:2
#SBATCH --time=1-12:30:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --error=logs/%x_%j.err
#SBATCH --mail-type=END,FAIL
##SBATCH --time=1

source ~/venvs/torch/bin/activate
#SBATCH --hold
python train.py "$@"
"""
BOTH = """\
#!/bin/sh
#SBATCH -t 90 -J slurm --gpus-per-node=4
#GPQ --time 2h --tag nightly -e A=lines
#GPQ --gpus 2
#GPQ -D /
true
"""


def settled(folder: Path, text: str, *argv: str, name: str = "job.sh") -> submit_request.ResolvedOptions:
    (folder / name).write_text(text)
    parsed = submit_request.parse([*argv, str(folder / name)])
    assert parsed is not None
    return submit_request.settle(parsed)


@pytest.mark.parametrize(
    "line", ["#GPQ --env AWS_KEY", "#GPQ -e B=1 -e AWS_KEY", "#GPQ --export=AWS_KEY", "#SBATCH --export=ALL,AWS_KEY"]
)
def test_a_variable_of_the_shell_that_a_script_takes_is_named_without_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("AWS_KEY", "hunter2")
    for name in ("job.sh", "train.py"):
        notes = settled(tmp_path, f"#!/bin/sh\n{line}\n", name=name).notes
        assert f"{name} passes AWS_KEY of your shell on to the job" in notes
        assert "hunter2" not in str(notes)
    for argv in (["--env", "AWS_KEY"], ["--export=AWS_KEY"]):
        assert not any("passes AWS_KEY" in note for note in settled(tmp_path, f"#!/bin/sh\n{line}\n", *argv).notes)


def test_a_typical_script_becomes_a_command_with_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = settled(tmp_path, TYPICAL)
    asked = found.texts
    assert asked.words == ["/bin/bash", "./job.sh"]
    assert asked.black_box
    assert (asked.name, asked.gpus, asked.gpu_type, asked.time) == ("resnet50", "2", "a100", "1d12h30m")
    assert found.how == dict.fromkeys(submit_request.HOW, False), "lines after the first command are not options"
    [unused, logs] = found.notes
    for option in ("--partition=gpu", "--account=lab042", "--cpus-per-task=8", "--mem=64G", "--mail-type=END,FAIL",
                   "--output=logs/%x_%j.out", "--error=logs/%x_%j.err"):  # fmt: skip
        assert option in unused
    assert "`gpq logs JOB`" in logs
    words = submit_request.words_of(found)
    assert words[:10] == [
        "gpq", "submit", "--gpus", "2", "--gpu-type", "a100", "--name", "resnet50", "--time", "1d12h30m",
    ]  # fmt: skip
    assert words[-3:] == ["--", "/bin/bash", "./job.sh"]


def test_the_command_line_overrides_gpqs_lines_and_they_override_slurms(tmp_path: Path) -> None:
    asked = settled(tmp_path, BOTH).texts
    assert (asked.time, asked.name, asked.gpus, asked.cwd, asked.tag) == ("2h", "slurm", "2", "/", ["nightly"])
    asked = settled(tmp_path, BOTH, "-t", "5m", "-J", "mine", "--gres=gpu:3", "-e", "A=typed", "--tag", "x").texts
    assert (asked.time, asked.name, asked.gpus, asked.tag) == ("5m", "mine", "3", ["nightly", "x"])
    assert [each for each in asked.env if each.startswith("A=")] == ["A=lines", "A=typed"]
    assert (settled(tmp_path, BOTH, "--gpus", "7").texts.gpus, settled(tmp_path, BOTH, "-G", "8").texts.gpus) == (
        "7",
        "8",
    )


def test_a_name_that_looks_like_a_number_of_tasks_gets_a_note(tmp_path: Path) -> None:
    assert "the command line: -n is --name, so the job is called 4" in settled(tmp_path, TYPICAL, "-n", "4").notes


def test_gpq_lines_in_a_training_script_are_its_options(tmp_path: Path) -> None:
    text = "#!/usr/bin/env python\n#GPQ --gpus 1-8 --time 2h\n'''doc'''\n#GPQ --gpus 9\n"
    asked = settled(tmp_path, text, name="train.py").texts
    assert (asked.gpus, asked.time, asked.black_box, asked.words) == ("1-8", "2h", False, [str(tmp_path / "train.py")])
    asked = settled(tmp_path, "#SBATCH -N2 --gres=gpu:4 -D /\n", name="train.py").texts
    assert (asked.gpus, asked.cwd) == ("8", "/"), "a training script may run on several servers"


def variables(settled: submit_request.ResolvedOptions) -> dict[str, str]:
    return dict(each.split("=", 1) for each in settled.texts.env)


def test_slurm_variables_are_set_only_for_slurm_scripts(tmp_path: Path) -> None:
    found = settled(tmp_path, "#!/bin/sh\n#SBATCH -a 3-9:2%4 -n 1 -c 4 -p gpu\n")
    made = variables(found)
    assert (made["SLURM_JOB_NAME"], made["SLURM_ARRAY_TASK_MIN"], made["SLURM_ARRAY_TASK_MAX"]) == ("job.sh", "3", "9")
    assert (made["SLURM_NTASKS"], made["SLURM_CPUS_PER_TASK"], made["SLURM_JOB_PARTITION"]) == ("1", "4", "gpu")
    assert (made[protocol.LIKE_SLURM], found.texts.array) == ("1", "3-9:2%4")
    assert settled(tmp_path, "#!/bin/sh\n#GPQ -J x\n").texts.env == []


@pytest.mark.parametrize(
    ("lines", "argv", "expected"),
    [
        ("--gres=gpu:1", [], {}),
        ("--ntasks-per-node=1", [], {"NTASKS": "1", "NPROCS": "1", "NTASKS_PER_NODE": "1"}),
        ("-n1 --ntasks-per-node=2", [], {"NTASKS": "1", "NPROCS": "1", "NTASKS_PER_NODE": "2"}),
        ("--ntasks-per-gpu=1 -G1", [], {"NTASKS": "1", "NPROCS": "1", "NTASKS_PER_GPU": "1", "GPUS": "1"}),
        ("--gpus=a100:2 --cpus-per-gpu=4", [], {"GPUS": "a100:2", "CPUS_PER_GPU": "4"}),
        ("--gpus-per-node=2 --mem-per-cpu=1G", [], {"GPUS_PER_NODE": "2", "MEM_PER_CPU": "1024"}),
        ("--mem=32G", [], {"MEM_PER_NODE": "32768"}),
        ("--mem=1048576K --qos=high -A lab", [], {"MEM_PER_NODE": "1024", "JOB_QOS": "high", "JOB_ACCOUNT": "lab"}),
        ("--mem=2000", [], {"MEM_PER_NODE": "2000"}),
        ("--mem=0", [], {}),
        ("-a 1-9:2,20-30:5", [], {"ARRAY_TASK_MIN": "1", "ARRAY_TASK_MAX": "30", "ARRAY_TASK_STEP": "2"}),
        ("-a 7,1%1", [], {"ARRAY_TASK_MIN": "1", "ARRAY_TASK_MAX": "7", "ARRAY_TASK_STEP": "1"}),
        ("-G1", ["--sweep", "x=1..3"], {"GPUS": "1", "ARRAY_TASK_MIN": "0", "ARRAY_TASK_MAX": "2", "ARRAY_TASK_STEP": "1"}),
        ("-p a,b -c 4 -n 4", ["-c8", "--ntasks=1"], {"CPUS_PER_TASK": "8", "NTASKS": "1", "NPROCS": "1"}),
        ("-G2 --gpus-per-node=2", ["--gpus", "4"], {"GPUS": "4"}),
    ],
)  # fmt: skip
def test_each_slurm_variable_is_set_with_the_same_options_as_in_sbatch(
    tmp_path: Path, lines: str, argv: list[str], expected: dict[str, str]
) -> None:
    made = variables(settled(tmp_path, f"#!/bin/sh\n#SBATCH {lines}\n", *argv))
    always = {protocol.LIKE_SLURM, "SLURM_JOB_NAME", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST"}
    assert {name.removeprefix("SLURM_"): value for name, value in made.items() if name not in always} == expected


def test_slurm_job_name_is_the_name_as_it_was_typed(tmp_path: Path) -> None:
    text = "#!/bin/sh\n#SBATCH --job-name='a/b \"c\"'\n"
    found = settled(tmp_path, text)
    assert (found.texts.name, variables(found)["SLURM_JOB_NAME"]) == ("a-b-c", 'a/b "c"')
    assert variables(settled(tmp_path, text, "-J", "x/y"))["SLURM_JOB_NAME"] == "x/y"
    assert variables(settled(tmp_path, text + "#GPQ --name own\n"))["SLURM_JOB_NAME"] == "own"
    assert variables(settled(tmp_path, text + "#GPQ --name own\n", "-n", "typed"))["SLURM_JOB_NAME"] == "typed"


def test_one_note_names_the_slurm_variables_that_gpq_does_not_set(tmp_path: Path) -> None:
    def told(script: str, *argv: str, line: str = "-G1") -> list[str]:
        return settled(tmp_path, f"#!/bin/bash\n#SBATCH {line}\n{script}\n", *argv).notes

    assert told("cd $SLURM_TMPDIR; echo ${SLURM_CLUSTER_NAME:-here} $SLURM_JOB_PARTITION") == [
        "job.sh reads SLURM_CLUSTER_NAME, SLURM_JOB_PARTITION, SLURM_TMPDIR, which gpq does not set:"
        " set it with --env SLURM_CLUSTER_NAME=VALUE"
    ]
    assert told("cd $SLURM_TMPDIR", "--env", "SLURM_TMPDIR=/x") == []
    assert told("export SLURM_TMPDIR=/x\ncd $SLURM_TMPDIR\n: ${SLURM_CONF:=y}; cat $SLURM_CONF\n# $SLURM_GTID") == []
    assert told("echo $SLURM_JOB_ID ${SLURM_ARRAY_TASK_ID:-0} $SLURM_CPUS_PER_TASK") == [], "gpq sets these like Slurm"
    assert told("echo ${SLURM_NTASKS:-1}\n# $SLURM_NTASKS") == []
    assert told("echo ${SLURM_NTASKS}") == [
        "job.sh reads SLURM_NTASKS, which sbatch sets only with --ntasks: gpq sets it to 1"
    ]
    assert told("echo $SLURM_NTASKS", line="-G1 --ntasks=1") == []


def test_a_line_can_also_set_hold_and_wait(tmp_path: Path) -> None:
    found = settled(tmp_path, "#!/bin/sh\n#SBATCH --hold --wait\n")
    assert submit_request.words_of(found)[-5:] == ["--hold", "--wait", "--", "/bin/sh", f"{tmp_path}/job.sh"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("2:30", 150), ("01:00:00", 3600), ("2-0", 172800), ("1-12", 129600), ("0-0:30", 1800),
     ("1-02:03:04", 93784), ("UNLIMITED", None), ("infinite", None), ("0", None)],
)  # fmt: skip
def test_slurms_time_formats_are_read(text: str, seconds: float | None) -> None:
    assert sbatch.seconds(text, "--time") == seconds


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "x-1", "1-", "-5", "00:00:00", "1-2-3"])
def test_an_invalid_slurm_time_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="--time"):
        sbatch.seconds(text, f"--time={text}")


def test_the_command_line_accepts_unambiguous_slurm_times() -> None:
    assert [values.limit(text, "--time") for text in ("00:10:00", "2-0", "1-12:30", "90m")] == [
        600,
        172800,
        131400,
        5400,
    ]
    for text, hint in (("90", "use 90s"), ("1:30", "use 1h30m"), ("1-", "for example")):
        with pytest.raises(UsageError) as raised:
            values.limit(text, "--time")
        assert raised.value.hint.startswith(hint)


def test_durations_are_written_as_they_are_read() -> None:
    for total in (1.0, 59.0, 60.0, 3661.0, 90_000.0, 129_600.0):
        assert values.seconds(values.duration_text(total), "--time") == total


@pytest.mark.parametrize(
    ("options", "gpus", "kind"),
    [("--gres=gpu", "1", ""), ("--gres=gpu:2", "2", ""), ("--gres=gpu:v100:4", "4", "v100"), ("--gres=gres:gpu:2", "2", ""),
     ("-G 3", "3", ""), ("--gpus=a100:2", "2", "a100"), ("--gpus-per-node=h100:8", "8", "h100"), ("--gpus-per-task=2", "2", ""),
     ("--gres=gpu:1,tmpdisk:100", "1", ""), ("--gres=gpu:rtx_3090:1(S:0)", "1", "rtx_3090"), ("--gres gpu:2", "2", ""),
     ("--gpus=2 --gres=gpu:1", "2", "")],
)  # fmt: skip
def test_gpus_are_read_from_every_option_that_requests_them(tmp_path: Path, options: str, gpus: str, kind: str) -> None:
    asked = settled(tmp_path, f"#!/bin/sh\n#SBATCH {options}\n").texts
    assert (asked.gpus, asked.gpu_type) == (gpus, kind)


def test_a_script_that_requests_no_gpu_gets_a_note_that_it_will_have_one(tmp_path: Path) -> None:
    notes = settled(tmp_path, "#!/bin/sh\n#SBATCH --mem=4G\n").notes
    assert any("asks for no GPU, but every gpq job gets" in note for note in notes)
    assert settled(tmp_path, "#!/bin/sh\n#GPQ --tag x\n").notes == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nodes=2", "gpq runs a command on one server"),
        ("-N 2-4", "gpq runs a command on one server"),
        ("-n 4", "4 tasks: gpq starts a command only once"),
        ("--ntasks-per-node=8", "8 tasks"),
        ("--ntasks-per-gpu=1 --gres=gpu:2", "2 tasks"),
        ("--cpus-per-task=many", "expected a number above 0"),
        ("--nodes=many", "expected a number above 0"),
        ("--signal=B:USR1@60", "no signal before the time limit"),
        ("--container=oci", "starts no containers"),
        ("--gres=gpu:a100:1,gpu:v100:1", "GPUs of one type"),
        ("--gres=gpu:a:b:1", "invalid number of GPUs"),
        ("--dependency=singleton", "cannot wait for singleton"),
        ("--dependency=after:3", "cannot wait for after:3"),
        ("--dependency=afterok:1?afterok:2", "cannot wait"),
        ("--time=tomorrow", "invalid time"),
        ("--wrap=ls", "--wrap works only on the command line"),
        ("--job-name=two words", "words is not an option"),
        ("--mem", "needs a value"),
        ("hetjob", "hetjob is not an option"),
        ('--job-name="open', "No closing quotation"),
    ],
)
def test_lines_that_mean_something_else_in_gpq_are_refused(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        settled(tmp_path, f"#!/bin/sh\n#SBATCH {line}\n")
    assert said in raised.value.message
    assert "#SBATCH in job.sh" in raised.value.message
    assert raised.value.hint


def test_a_refused_line_can_be_replaced_with_options(tmp_path: Path) -> None:
    text = "#!/bin/sh\n#SBATCH --signal=B:USR1@60\n"
    asked = settled(tmp_path, text, "--preemptible", "--signal", "USR1", "--grace", "60s").texts
    assert (asked.preemptible, asked.signal) == (True, "USR1")


def test_dependencies_start_times_and_the_environment_are_translated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "x")
    monkeypatch.delenv("ABSENT", raising=False)
    lines = "#SBATCH -d afterok:12:13,afterany:14_2 -b now+2hours --export=ALL,A=1,HERE,ABSENT\n#SBATCH --hold -W\n"
    found = settled(tmp_path, f"#!/bin/sh\n{lines}")
    assert found.texts.after == ["12:ok", "13:ok", "14_2:any"]
    assert found.texts.begin == "+2h"
    assert [each for each in found.texts.env if not each.startswith(("SLURM", "GPQ"))] == ["A=1", "HERE"]
    assert (found.how["hold"], found.how["wait"]) == (True, True)
    assert any("--env NAME" in note for note in found.notes)


def test_unknown_options_are_named_and_short_forms_and_prefixes_work(tmp_path: Path) -> None:
    found = settled(tmp_path, "#!/bin/sh\n#SBATCH --frobnicate 3 --bogus=1 -Z -Jx --cpus-per-t=2 -HQ -c4\n")
    assert found.texts.name == "x"
    assert found.how["hold"]
    [unused, *_] = found.notes
    for option in (
        "--frobnicate (gpq does not know",
        "--bogus (gpq does not know",
        "-Z (gpq does not know",
        "--cpus-per-task=4",
        "--quiet",
    ):
        assert option in unused


WORDS = [
    *(f"--{name}" for name in sorted(sbatch.KNOWN)),
    *(f"-{letter}" for letter in sbatch.SHORT),
    "--x",
    "-Z",
    "#c",
    "'",
]
VALUES = [
    "",
    "1",
    "0",
    "-1",
    "2:30",
    "1-2",
    "gpu",
    "gpu:a:2",
    "ALL",
    "K=V",
    "afterok:1:2",
    "1-5%2",
    "%",
    "é",
    "now+1hour",
    "[",
    "\0",
]
LINES = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from(["=", " ", ""]), st.sampled_from(VALUES)), max_size=4
)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["#!/bin/sh\n", ""]),
    st.sampled_from(["SBATCH", "GPQ"]),
    LINES,
    st.sampled_from(["x.sh", "x.py", "x"]),
)
def test_any_line_is_understood_or_refused(
    tmp_path: Path, head: str, kind: str, line: list[tuple[str, str, str]], name: str
) -> None:
    text = f"{head}#{kind} {' '.join(map(''.join, line))}\n"
    said = ""
    try:
        found = settled(tmp_path, text, name=name)
        submit_request.words_of(found)
        submit_request.make_request(found)
    except UsageError as error:
        said = error.message
    assert "\n" not in said


def test_gpq_lines_are_checked_like_options(tmp_path: Path) -> None:
    for line in ("--gpsu 2", "train.py", "-- true", "--json", "--dry-run", "--priority high"):
        with pytest.raises(UsageError, match=r"#GPQ in job\.sh, line 2"):
            settled(tmp_path, f"#!/bin/sh\n#GPQ {line}\n")


def test_a_script_runs_directly_or_with_its_interpreter(tmp_path: Path) -> None:
    def made(text: str, mode: int, name: str = "job.sh", **how: bool) -> list[str]:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        found = script_directives.read(str(path))
        assert found is not None
        return script_directives.command(found, str(tmp_path), **how)

    assert made("#!/bin/bash -l\n", 0o755) == ["./job.sh"]
    assert made("#!/bin/bash -l -x\n", 0o644) == ["/bin/bash", "-l -x", "./job.sh"]
    assert made("echo\n", 0o755) == ["/bin/sh", "./job.sh"]
    found = script_directives.read(str(tmp_path / "job.sh"))
    assert found is not None
    assert script_directives.command(found, "/") == ["/bin/sh", str(tmp_path / "job.sh").lstrip("/")]
    assert script_directives.command(found, "/usr") == ["/bin/sh", str(tmp_path / "job.sh")]
    assert script_directives.command(found, "/usr", relative=True) == ["/bin/sh", f"..{tmp_path}/job.sh"]
    (tmp_path / "notes").write_text("just words\n")
    assert script_directives.read(str(tmp_path / "notes")) is None
    (tmp_path / "dos.sh").write_text("#!/bin/sh\r\necho\r\n")
    with pytest.raises(UsageError, match="DOS line endings"):
        script_directives.read(str(tmp_path / "dos.sh"))


@pytest.mark.parametrize("command", [["./job.sh"], ["bash", "-e", "job.sh"], ["/bin/sh", "job.sh", "train"]])
@pytest.mark.parametrize(("line", "remarks"), [("#SBATCH --time=1", 2), ("#GPQ --gpus 2", 2), ("# nothing", 1)])
def test_lines_of_a_script_that_a_command_runs_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], line: str, remarks: int
) -> None:
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{line}\nsrun python train.py\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    parsed = submit_request.parse(["--cwd", str(tmp_path), "--", *command])
    assert parsed is not None
    found = submit_request.settle(parsed)
    assert found.texts.words == command
    assert len(found.notes) == remarks
    assert "job.sh calls srun" in found.notes[-1]
    if remarks > 1:
        script = next(word for word in command if word.endswith("job.sh"))
        assert found.notes[0].endswith(f"lines have no effect: `gpq submit {script}` reads them")


def test_a_call_of_srun_gets_a_note_if_srun_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "#!/bin/sh\n#GPQ -g 1\n# not srun\nsrun python train.py\n"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert any("calls srun" in note for note in settled(tmp_path, text).notes)
    assert settled(tmp_path, text.replace("\nsrun", "\npython")).notes == []


def test_sbatch_options_work_on_the_command_line(gpq: Gpq, made: Made, home: Path) -> None:
    def asked(*argv: str) -> requests.SpecMessage:
        said = gpq("submit", *argv)
        assert said.returncode == 0, said.stderr
        request: Any = made.asked[-1]
        return request.spec  # type: ignore[no-any-return]

    spec = asked("-J", "x", "--gres=gpu:2", "-c4", "-D", "/", "--wrap", "echo $A", "-t", "00:30:00", "--export=A=1")
    assert (spec.argv, spec.name, spec.min_gpus) == (["/bin/sh", "-c", "echo $A"], "x", 2)
    assert (spec.cwd, spec.time_limit, spec.env["A"]) == ("/", 1800.0, "1")
    assert "SLURM_JOB_NAME" not in spec.env
    assert asked("-G2", "--dependency=afterok:3", "--", "true").after == ["3:ok"]
    assert asked("-g2", "-n", "mine", "--", "true").min_gpus == 2
    said = gpq("submit", "--mem=32G", "--partition", "gpu", "--", "true")
    assert "gpq ignores --mem=32G, --partition=gpu" in said.stderr
    for argv, message in (
        (["-N", "2", "--", "true"], "one server"), (["--wrap", "ls", "train.py"], "--wrap cannot be combined with a script"),
        (["-J", "x", "--gpsu", "2", "--", "true"], "has no option --gpsu"), (["--mem"], "requires an argument"),
        (["-J", "x", "--priority", "high", "--", "true"], "--priority must be a whole number"),
    ):  # fmt: skip
        said = gpq("submit", *argv)
        assert (said.returncode, message in said.stderr or "--mem" in said.stderr) == (2, True), said.stderr


def test_a_slurm_script_runs_with_its_slurm_variables(live: Gpq, home: Path) -> None:
    (home / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --job-name=trial --array=5-6 --time=5\n"
        "echo $SLURM_JOB_NAME $SLURM_JOB_ID $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT"
        " $SLURM_PROCID $SLURM_GPUS_ON_NODE $SLURM_NNODES $1\n"
    )
    assert "array 1 submitted" in live("submit", "job.sh", "word").stdout
    assert live("wait", "1").returncode == 0
    assert live("logs", "2").stdout == "trial 2 1 5 2 0 1 1 word\n"
    assert live("logs", "3").stdout == "trial 3 1 6 2 0 1 1 word\n"
    (home / "other.sh").write_text("echo [$SLURM_JOB_ID] $GPQ_JOB_ID\n")
    assert live("submit", "--wait", "other.sh").returncode == 0
    assert live("logs", "@").stdout == "[] 4\n"


def test_lines_also_count_in_the_python_interface(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --signal=USR1@60\n")
    with pytest.raises(UsageError, match="no signal before the time limit"):
        api.submit(tmp_path / "job.sh")
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --array=0-3\n")
    with pytest.raises(UsageError, match="asks for an array"):
        api.submit(tmp_path / "job.sh")


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (b"#!/bin/sh\r\n", "has DOS line endings, so a shell cannot run it"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "begins with a byte order mark, which hides its first line"),
    ],
)
def test_a_flaw_of_a_shell_script_is_named_on_both_ways_in(
    call: Call, gpq: Gpq, made: Made, head: bytes, problem: str
) -> None:
    script = gpq.home / "job.sh"
    script.write_bytes(head + b"#SBATCH --gpus=1\ntrue\n")
    script.chmod(0o755)
    refused = call("submit", "job.sh")
    assert (refused.returncode, made.asked) == (2, [])
    assert problem in refused.stderr
    for words in (["./job.sh"], ["bash", "job.sh"], ["env", "A=1", "./job.sh"]):
        assert problem in call("submit", "--", *words).stderr
    subprocess.run(["sh", "-c", refused.stderr.partition("hint: ")[2]], cwd=gpq.home, check=True)
    assert call("submit", "job.sh").returncode == 0
    assert "its #SBATCH and #GPQ lines have no effect" in call("submit", "--", "./job.sh").stderr


def test_a_byte_order_mark_drops_no_line_of_a_python_script(call: Call, gpq: Gpq, made: Made) -> None:
    (gpq.home / "train.py").write_bytes(b"\xef\xbb\xbf#SBATCH --job-name=mine\n#GPQ --time 1h\n")
    assert call("submit", "train.py").returncode == 0
    request = made.asked[-1]
    assert isinstance(request, requests.Submit)
    assert (request.spec.name, request.spec.time_limit) == ("mine", 3600.0)

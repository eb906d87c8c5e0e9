"""`gpq import` reads Slurm scripts as people write them and the queue of a real task-spooler. It changes neither."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpq.cli.jobs import task_spooler
from gpq.errors import NotFound
from gpq.rpc import requests
from tests.cli.conftest import Call, Gpq
from tests.cli.served import Made
from tests.support.waiting import wait_until

DDP = """\
#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
srun python train.py
"""
FINE_TUNE = """\
#!/bin/bash -l
# Fine-tunes one model.
#SBATCH -J finetune_lora
#SBATCH -o slurm-%j.out -e slurm-%j.err
#SBATCH --partition=a100 --qos=normal --account=abc
#SBATCH -t 0-08:00
#SBATCH --mem-per-cpu=4000M --cpus-per-task 6
#SBATCH --gres=gpu:a100:1
#SBATCH --mail-user=ana@example.org

module purge
conda activate lora
python finetune.py --model "$1"
"""
SWEEP = """\
#!/usr/bin/env bash
#SBATCH --array=1-20%5
#SBATCH --gpus=1
#SBATCH --time=30
LR=$(sed -n "${SLURM_ARRAY_TASK_ID}p" lrs.txt)
python train.py --lr $LR
"""
PLAIN = "#!/bin/sh\n./a.out\n"


def test_slurm_scripts_are_translated_and_queued_on_request(live: Gpq, call: Call, home: Path) -> None:
    for name, text in (("ddp.sh", DDP), ("finetune.sbatch", FINE_TUNE), ("sweep.slurm", SWEEP), ("plain.sh", PLAIN)):
        (home / name).write_text(text)
    said = call("import", "slurm", "ddp.sh", "finetune.sbatch", "sweep.slurm", "plain.sh")
    assert said.returncode == 5
    lines = said.stdout.splitlines()
    assert re.sub(r" --env GPQ_LIKE_SLURM=1( --env SLURM\S+)+", " ...", "\n".join(lines)).splitlines() == [
        "finetune.sbatch: gpq submit --gpus 1 --gpu-type a100 --name finetune_lora --time 8h ..."
        " -- /bin/bash -l ./finetune.sbatch",
        "sweep.slurm: gpq submit --gpus 1 --name sweep.slurm --time 30m ... --array 1-20%5 -- /usr/bin/env bash ./sweep.slurm",
        "plain.sh: gpq submit --name plain.sh -- /bin/sh ./plain.sh",
        "nothing is queued yet: add --submit",
    ]
    assert "gpq: ddp.sh: #SBATCH in ddp.sh: --nodes=2: gpq runs a command on one server" in said.stderr
    assert "--qos=normal" in said.stderr
    queued = live("import", "slurm", "plain.sh", "sweep.slurm", "--submit", "--hold").stdout.splitlines()
    assert queued[0] == "plain.sh: job 1 submitted"
    assert queued[1].startswith("sweep.slurm: array 2 submitted: 20 jobs")
    live("cancel", "all")
    found = json.loads(call("import", "slurm", "--json", "sweep.slurm", "ddp.sh", "--submit").stdout)["jobs"]
    assert (found[0]["id"], found[0]["refused"], found[1]["id"]) == (23, "", None)
    assert len(json.loads(call("status", "23", "--json").stdout)["jobs"]) == 20
    assert live("cancel", "23").returncode == 0


SAME = {
    "ddp.py": "#SBATCH -N2 --gres=gpu:a100:4 --ntasks-per-node=4 -c 4 -G8 -J 'my net'\n#GPQ --tag nightly --env A=1\n",
    "finetune.sbatch": FINE_TUNE,
    "sweep.slurm": SWEEP,
    "plain.sh": PLAIN,
    "held.sh": "#!/bin/sh\n#SBATCH --hold --mem=1G -d afterok:3 -b 2999-01-02 --export=ALL,A=x,OMP_NUM_THREADS\n",
    "own.sh": "#!/bin/sh\n#SBATCH -G2 -J slurm -D / --reservation=r -p a,b\n"
    "#GPQ --tag a -e A='x y' -e A=z -n own -g 1 --priority 3\n",
    "grid.sh": "#!/bin/sh\n#SBATCH -n1 --mem-per-gpu=2000K\n"
    "#GPQ --sweep 'x=[1,2],\"a b\"' --retries 2 --done-file {x}/d --notify none\n",
    "frozen.sh": "#!/bin/sh\n#SBATCH -J 'a\\b \"c\"' --ntasks-per-gpu=1\n#GPQ --snapshot --setup 'true' --background\n",
    "signal.sh": "#!/bin/sh\n#SBATCH -t 1-0 --signal=USR1@60\n"
    "#GPQ --preemptible --signal USR1 --grace 60s --resume-args '-r auto'\n",
}


@pytest.mark.parametrize("name", SAME)
def test_the_shown_line_submits_the_same_job_as_import(
    name: str, made: Made, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    work = home / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / name).write_text(SAME[name])
    for options in ([], ["--hold"]):
        shown = call("import", "slurm", *options, name)
        assert shown.returncode == 0, shown
        assert call("import", "slurm", *options, name, "--submit").returncode == 0
        queued = made.asked[-1]
        line = shlex.split(shown.stdout.splitlines()[0].removeprefix(f"{name}: "))
        assert isinstance(queued, requests.Submit)
        assert call(*line[1:]).returncode == 0
        asked = [request for request in made.asked if isinstance(request, requests.Submit)]
        assert asked[-2:] == [queued, queued]


def test_a_script_that_sbatch_would_only_test_is_not_queued(made: Made, call: Call, home: Path) -> None:
    (home / "job.sh").write_text("#!/bin/sh\n#SBATCH --test-only\n")
    said = call("import", "slurm", "job.sh", "--submit")
    assert (said.returncode, made.asked) == (5, [])
    assert "job.sh: it has --test-only" in said.stderr


READERS = {
    "seg.sh": (
        "#SBATCH --job-name='seg/1 a' --gres=gpu:1 --cpus-per-task=8 --mem=32G --array=1-5:2\nset -eu\n"
        'echo "$SLURM_JOB_NAME $SLURM_CPUS_PER_TASK $SLURM_NTASKS $SLURM_MEM_PER_NODE $SLURM_ARRAY_TASK_ID'
        ' $SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP $SLURM_ARRAY_TASK_COUNT ${SLURM_NPROCS-unset}"\n',
        ["seg/1 a 8 1 32768 1 1 5 2 3 unset", "seg/1 a 8 1 32768 3 1 5 2 3 unset", "seg/1 a 8 1 32768 5 1 5 2 3 unset"],
    ),
    "node.sh": (
        "#SBATCH --gpus=1 --cpus-per-gpu=8 --ntasks-per-node=1\nset -u\n"
        'echo "$SLURM_CPUS_ON_NODE $SLURM_JOB_CPUS_PER_NODE $SLURM_CPUS_PER_GPU $SLURM_GPUS $SLURM_NTASKS $SLURM_NPROCS'
        ' $SLURM_NTASKS_PER_NODE $SLURM_TASKS_PER_NODE $SLURM_SUBMIT_DIR"\n',
        ["8 8 8 1 1 1 1 1 {home}"],
    ),
    "bare.sh": (
        "#SBATCH --gres=gpu:1\n"
        'echo "$SLURM_CPUS_ON_NODE ${SLURM_NTASKS:-unset} ${SLURM_CPUS_PER_TASK-unset} ${SLURM_ARRAY_TASK_STEP-unset}'
        ' ${SLURM_TMPDIR-unset} ${SLURM_RESTART_COUNT-unset}"\n',
        ["1 unset unset unset unset unset"],
    ),
}  # what sbatch 22.05 prints for the same lines, except that it leaves SLURM_NTASKS unset in the first


@pytest.mark.parametrize("name", READERS)
def test_a_script_gets_the_variables_of_its_lines_also_with_the_shown_command(
    name: str, queue: Gpq, tmp_path: Path
) -> None:
    text, printed = READERS[name]
    (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
    shown = queue("import", "slurm", name, cwd=tmp_path)
    line = shlex.split(shown.stdout.splitlines()[0].removeprefix(f"{name}: "))
    for argv in (["import", "slurm", name, "--submit"], line[1:], ["submit", name]):
        answer = queue(*argv, cwd=tmp_path)
        assert answer.returncode == 0, answer
        job = answer.stdout.removeprefix(f"{name}: ").split()[1]
        assert queue("wait", job).returncode == 0
        jobs = [f"{job}_{index}" for index in (1, 3, 5)] if len(printed) > 1 else [job]
        logs = [queue("logs", each) for each in jobs]
        assert [each.stderr for each in logs] == [""] * len(logs)
        assert [each.stdout for each in logs] == [f"{each}\n".format(home=tmp_path) for each in printed]
    notes = {
        "seg.sh": "SLURM_NTASKS, which sbatch sets only with --ntasks",
        "bare.sh": "SLURM_TMPDIR, which gpq does not set",
    }
    assert notes.get(name, "") in shown.stderr


# -- task-spooler ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tsp(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A private task-spooler with one slot. One job runs on it and the others wait."""
    program = shutil.which("tsp")
    if program is None:
        pytest.skip("needs task-spooler")
    monkeypatch.setenv("TS_SOCKET", str(home / "ts.sock"))
    monkeypatch.setenv("TMPDIR", str(home))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*words: str, cwd: Path = home, **environ: str) -> str:
        said = subprocess.run(
            [program, *words], env={**os.environ, **environ}, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return said.stdout

    run("-S", "1")
    run("-L", "first", "sleep", "1000")
    # The name of its output file appears a moment after that.
    wait_until(lambda: "running" in run("-l") and "ts-out" in run("-l"), "the first job runs")
    yield run
    run("-k", "0")
    run("-K")


def test_the_queue_is_read_with_exact_words_directories_and_dependencies(tsp: Callable[..., str], home: Path) -> None:
    work = home / "my work"
    work.mkdir()
    tsp("-L", "my label", "sh", "-c", 'echo "a b"; exit 0', cwd=work, OMP_NUM_THREADS="7")
    tsp("-n", "-D", "1", "echo", "it's", "$HOME")
    tsp("-d", "echo", "two\nlines")
    tsp("-N", "2", "-m", "python", "-c", "print(1)")
    tsp("-D", "0", "true")
    before = tsp("-l")
    queue = task_spooler.queue()
    assert [(job.id, job.argv, job.after, job.slots, job.label) for job in queue.waiting] == [
        (1, ["sh", "-c", 'echo "a b"; exit 0'], None, 1, "my label"),
        (2, ["echo", "it's", "$HOME"], 1, 1, ""),
        (3, ["echo", "two\nlines"], 2, 1, ""),
        (4, ["python", "-c", "print(1)"], None, 2, ""),
        (5, ["true"], 0, 1, ""),
    ]
    assert (queue.waiting[0].cwd, queue.waiting[0].env["OMP_NUM_THREADS"]) == (str(work), "7")
    assert queue.running == [0]
    assert tsp("-l") == before


def test_waiting_jobs_are_offered_queued_on_request_and_left_in_task_spooler(
    tsp: Callable[..., str], live: Gpq, home: Path
) -> None:
    live.environ.update(TS_SOCKET=os.environ["TS_SOCKET"], TMPDIR=os.environ["TMPDIR"])
    assert live("import", "ts").stdout == "nothing waits in task-spooler\n"
    tsp("-L", "one", "sh", "-c", "echo $OMP_NUM_THREADS in $PWD", OMP_NUM_THREADS="7")
    tsp("-d", "echo", "a  b", CUDA_VISIBLE_DEVICES="1")
    tsp("-D", "0", "true")
    before = tsp("-l")
    shown = live("import", "ts")
    assert shown.returncode == 5
    line = shown.stdout.splitlines()[0]
    assert line.startswith("1: gpq submit --gpus 1 --name one --env ")
    assert f" --cwd {home} -- sh -c " in line
    assert " --env OMP_NUM_THREADS=7 " in line
    assert "-- echo 'a  b'   # after 1 of this list" in shown.stdout
    assert "CUDA_VISIBLE_DEVICES was set, but" in shown.stderr
    assert "3: it waits for 0, which is running there" in shown.stderr
    assert json.loads(live("status", "--json").stdout)["jobs"] == []
    said = live("import", "ts", "--submit", "--hold")
    assert said.stdout.splitlines()[:2] == ["1: job 1 submitted", "2: job 2 submitted"]
    assert "for id in 1 2; do TS_SOCKET=" in said.stdout
    assert "would run twice" in said.stderr
    assert tsp("-l") == before
    rows = json.loads(live("status", "--json").stdout)["jobs"]
    assert [(row["state"], row["after"]) for row in rows] == [("held", []), ("held", ["1:ok"])]
    live("release", "all")
    assert live("wait", "1-2").returncode == 0
    assert live("logs", "1").stdout == f"7 in {home}\n"
    assert live("logs", "2").stdout == "a  b\n"


def test_a_job_without_a_process_is_offered_only_if_its_words_are_clear(
    tsp: Callable[..., str], monkeypatch: pytest.MonkeyPatch, live: Gpq
) -> None:
    tsp("echo", "plain", "words")
    tsp("sh", "-c", "echo 'a b'")
    monkeypatch.setattr(task_spooler, "_clients", lambda path: [])
    plain, quoted = task_spooler.queue().waiting
    assert (plain.argv, plain.text, quoted.argv, quoted.text) == (None, "echo plain words", None, "sh -c echo 'a b'")
    program = (
        "import sys; from gpq.cli import fast_path; from gpq.cli.jobs import task_spooler;"
        "task_spooler._clients = lambda path: [];"
        "sys.exit(fast_path.run(['import', 'ts', '--json']))"
    )
    env = {**live.environment, "TS_SOCKET": os.environ["TS_SOCKET"], "TMPDIR": os.environ["TMPDIR"]}
    said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    first, second = json.loads(said.stdout)["jobs"]
    assert first["argv"][-3:] == ["echo", "plain", "words"]
    assert "its directory is unknown" in first["notes"][0]
    assert "cannot tell how" in second["refused"]


def test_import_starts_no_task_spooler(gpq: Gpq, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("tsp") is None:
        pytest.skip("needs task-spooler")
    monkeypatch.setenv("TS_SOCKET", str(home / "none.sock"))
    with pytest.raises(NotFound, match="task-spooler does not run at"):
        task_spooler.queue()
    assert not (home / "none.sock").exists()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home / "none.sock"))
    with pytest.raises(NotFound, match="Connection refused"):
        task_spooler.queue()
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(NotFound, match="task-spooler is not installed here"):
        task_spooler.queue()


@pytest.mark.parametrize(
    ("words", "label", "command"),
    [
        (["-L", "x", "-N", "2", "-mf", "echo", "-n"], "x", ["echo", "-n"]),
        (["-Lx", "-D3", "echo"], "x", ["echo"]),
        (["--", "-odd"], "", ["-odd"]),
        (["-nL", "y", "true"], "y", ["true"]),
        (["-S", "1"], "", ["1"]),
        ([], "", []),
    ],
)
def test_options_of_tsp_are_separated_from_the_command(words: list[str], label: str, command: list[str]) -> None:
    assert task_spooler._command(words) == (label, command)

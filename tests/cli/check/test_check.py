"""`gpq check` on real scripts. A correct script gets the same results, a planted habit differs and is named, and
nothing remains afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import ROOT, Gpq
from tests.habits import planted
from tests.support import schemas
from tests.support.waiting import wait_until

ACCUMULATING, SPLIT, TWO, BOTH, RESUMED = (
    "accumulating", "split", "two replicas", "two replicas, accumulating", "stopped and resumed on another number"
)  # fmt: skip
EVERY = {ACCUMULATING, SPLIT, TWO, BOTH, RESUMED}
SCRIPT = """
import warnings
import gpq_agent.train as gpq
import torch
from torch import nn
from torch.utils.data import TensorDataset

warnings.filterwarnings("error", message="Converting a tensor with requires_grad")
generator = torch.Generator().manual_seed(5)
inputs = torch.randn(240, 6, generator=generator)
data = TensorDataset(inputs, (inputs @ torch.randn(6, 3, generator=generator)).argmax(1))
job = gpq.init()
loader = job.loader(data, batch_size=13, max_batch_size=52)
net = nn.Sequential(nn.Linear(6, 16), {layer}, nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))
model = job.wrap(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, _ = job.prepare(model, optimizer)
passes = 0
for epoch in {epochs}:
    for x, y in loader:
        passes += 1
        {before}
        loss = nn.functional.cross_entropy(model(x), y)
        {loss}
        loss.backward()
        {after}
        optimizer.step()
        optimizer.zero_grad()
        job.log(loss=loss)
"""


@pytest.fixture(autouse=True)
def scratch(gpq: Gpq, tmp_path: Path) -> Path:
    """The folder for the logs that gpq keeps after a failure."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    gpq.environ["TMPDIR"] = str(folder)
    return folder


def script(folder: Path, name: str = "train.py", **habit: str) -> Path:
    """A training loop with one planted habit. Each habit has its own place in the loop."""
    path = folder / name
    path.write_text(
        SCRIPT.format(
            **{"epochs": "job.epochs(9)", "layer": "nn.Identity()", "before": "", "loss": "", "after": "", **habit}
        )
    )
    return path


def checked(gpq: Gpq, *argv: str, code: int) -> dict[str, Any]:
    said = gpq("check", "--json", *argv, timeout=280)
    assert said.returncode == code, said
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def contents(folder: Path) -> dict[str, tuple[float, bytes]]:
    """Every file in the folder, with its content and modification time."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


@pytest.fixture
def pids() -> Iterator[Path]:
    """`gpq check` leaves /dev as it is, so scripts can write there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["shape"]: row for row in found["shapes"]}


@pytest.mark.parametrize("name", ["digits", "chargpt"])
def test_the_examples_train_the_same_in_every_shape(gpq: Gpq, scratch: Path, name: str) -> None:
    found = checked(gpq, "--timeout", "4m", str(ROOT / "examples" / name / "train.py"), code=0)
    assert {shape: row["verdict"] for shape, row in rows(found).items()} == dict.fromkeys(EVERY, "same")
    assert max(row["largest"] for row in found["shapes"]) < 1e-4
    assert (found["verdict"], found["steps"], found["habits"]) == ("same", 8, [])
    assert not list(scratch.glob("gpq-check-*"))


@pytest.mark.parametrize(
    ("code", "habit", "shapes"),
    [
        ("scaled-loss", {"loss": "loss = loss * (13 / len(x))"}, EVERY),
        ("by-pass", {"loss": "loss = loss.sqrt()"}, EVERY),
        ("random", {"before": "x = x + torch.tensor(__import__('numpy').random.randn(*x.shape)).float()"}, EVERY),
        # The library may learn to detect this one by itself and report it.
        ("own-rate", {"after": "optimizer.param_groups[0]['lr'] = 0.01 * 0.9**passes"}, {ACCUMULATING, SPLIT, BOTH, RESUMED}),
        ("own-epochs", {"epochs": "range(9)"}, {RESUMED}),
        # No seed reaches the system's own generator.
        ("not-reproducible", {"before": "x = x[:, __import__('random').SystemRandom().sample(range(6), 6)]"}, EVERY),
    ],
)  # fmt: skip
def test_a_planted_habit_is_found_and_named(
    gpq: Gpq, tmp_path: Path, code: str, habit: dict[str, str], shapes: set[str]
) -> None:
    """The library can repair none of these habits. It can only report them."""
    path = script(tmp_path, **habit)
    said = gpq("check", "--json", "--timeout", "4m", str(path), "--anything", "1", timeout=280)
    found = json.loads(said.stdout)
    assert {shape for shape, row in rows(found).items() if row["verdict"] != "same"} >= shapes, found
    named = {row["habit"]["code"] for row in found["shapes"] if row["shape"] in shapes}
    assert named == {code}
    told = {row["verdict"] for row in found["shapes"]}
    assert told <= {"same", "differs", "told"}
    assert said.returncode == (1 if "differs" in told else 0)
    if "differs" in told:
        assert all(row["step"] is not None and row["what"] for row in found["shapes"] if row["verdict"] == "differs")

    # gpq keeps the verdict for this version of the script and these arguments, and mentions it at submission.
    last = gpq("check", "--last", str(path), "--anything", "1")
    assert last.returncode == said.returncode
    assert ("gpq would change what this script trains" in last.stdout) == ("differs" in told)
    assert found["shapes"][0]["shape"] in last.stdout
    other = gpq("check", "--last", str(path))
    assert (other.returncode, "there is no saved verdict" in other.stderr) == (4, True)
    path.write_text(path.read_text() + "\n")
    assert gpq("check", "--last", str(path), "--anything", "1").returncode == 4


@pytest.mark.parametrize("name", ["lbfgs", "sam-class"])
def test_a_habit_that_the_library_reports_is_named_in_the_shapes_it_forbids(
    gpq: Gpq, tmp_path: Path, name: str
) -> None:
    """Two of many. `benchmarks/planted.py` checks them all."""
    found = checked(gpq, "--timeout", "4m", str(planted.write(name, tmp_path)), code=0)
    assert planted.faults(name, found) == []


def test_a_submission_repeats_what_the_last_check_found(live: Gpq, tmp_path: Path) -> None:
    path = script(tmp_path, loss="loss = loss * (13 / len(x))")
    assert checked(live, "--steps", "4", "--timeout", "4m", str(path), code=1)["verdict"] == "differs"
    said = live("submit", "--hold", str(path))
    assert f"gpq check --last {path}" in said.stderr
    assert "accumulating: differs" in said.stderr
    [job] = json.loads(live("submit", "--hold", "--json", str(path)).stdout)["jobs"]
    shown = json.loads(live("show", "--json", str(job)).stdout)["spec"]["proof"]
    assert "accumulate" in shown["lost"]
    assert "gpq check safe: split / not safe: accumulate, resize (accumulating: differs /" in " ".join(
        live("show", str(job)).stdout.split()
    )
    assert (
        f"gpq has not checked this script yet: `gpq check {path} --more`"
        in live("submit", "--hold", str(path), "--more").stderr
    )
    assert "gpq check" not in live("submit", "--hold", "--", "true").stderr


def test_a_verdict_reaches_a_job_of_the_checked_script(live: Gpq, tmp_path: Path) -> None:
    path = script(tmp_path, epochs="job.epochs(1)")
    path.write_text(f"import beside\n{path.read_text()}")
    (tmp_path / "beside.py").write_text("HERE = True\n")
    said = live("submit", "--check", "--json", str(path), timeout=280)
    assert "gpq check: gpq does not change what this script trains." in said.stderr
    [job] = json.loads(said.stdout)["jobs"]
    assert json.loads(live("show", "--json", str(job)).stdout)["spec"]["proof"]["lost"] == []
    assert live("wait", str(job), timeout=120).returncode == 0
    assert "gpq check found" not in live("logs", str(job)).stdout
    assert live("check", "--last", str(path)).returncode == 0
    _check_first(live)
    for option in (["--check"], []):
        assert "gpq check" not in live("submit", *option, "--hold", str(path)).stderr, "the verdict is known"


def _check_first(gpq: Gpq) -> None:
    config = gpq.home / "config.toml"
    config.write_text(f'check = "first"\n{config.read_text()}')


def test_a_script_that_fails_in_its_check_is_not_queued(live: Gpq, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sys\nassert sys.argv[1:] == ['--lr', '0.2'], sys.argv\n")
    said = live("submit", "--check", "--sweep", "lr=0.1,0.2", str(path), "--lr", "{lr}")
    assert (said.returncode, said.stdout) == (1, "")
    assert "'--lr', '0.1'" in said.stderr, "it is the first job that is checked"
    assert json.loads(live("status", "--json", "--all").stdout)["jobs"] == []


def test_the_configuration_can_ask_for_a_check_before_the_first_start(live: Gpq, tmp_path: Path) -> None:
    path, plain = tmp_path / "train.py", tmp_path / "plain.py"
    path.write_text("import gpq_agent.train\nraise RuntimeError('planted')\n")
    plain.write_text("raise RuntimeError('planted')\n")
    _check_first(live)
    said = live("submit", "--hold", str(path))
    assert (said.returncode, said.stdout) == (1, "")
    assert "RuntimeError: planted" in said.stderr
    assert said.stderr.endswith(" (--no-check submits it without a check)\n")
    for words in (["--no-check", str(path)], [str(plain)], ["--", sys.executable, str(path)], ["--dry-run", str(path)]):
        said = live("submit", "--hold", *words)
        assert (said.returncode, "planted" in said.stderr) == (0, False), said
    assert len(json.loads(live("status", "--json", "--all").stdout)["jobs"]) == 3


def test_a_handwritten_loop_is_checked_in_the_shapes_it_can_get(gpq: Gpq, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("""
import os, torch
import gpq_agent.train as gpq
job = gpq.init()
model = job.wrap(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
if job.resume_path:
    kept = torch.load(os.path.join(job.resume_path, "all.pt"))
    getattr(model, "module", model).load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
for step in range(job.start_step, 500):
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    model(batch[job.rank :: job.replicas]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if job.should_stop():
        if job.rank == 0:
            kept = {"model": getattr(model, "module", model).state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(kept, os.path.join(job.save_path, "all.pt"))
        job.exit_preempted(step + 1)
""")
    found = checked(gpq, "--timeout", "4m", str(path), code=0)
    assert {shape: row["verdict"] for shape, row in rows(found).items()} == {TWO: "same", RESUMED: "same"}
    path.write_text(path.read_text().replace('    optimizer.load_state_dict(kept["optimizer"])\n', ""))
    found = checked(gpq, "--timeout", "4m", str(path), code=1)
    assert {shape: row["verdict"] for shape, row in rows(found).items()} == {TWO: "same", RESUMED: "differs"}


def test_a_script_that_cannot_be_checked_gets_one_clear_line(gpq: Gpq, tmp_path: Path, scratch: Path) -> None:
    broken = script(tmp_path, "broken.py", before="raise RuntimeError('planted', epoch)")
    said = gpq("check", str(broken), timeout=280)
    assert (said.returncode, said.stdout) == (1, "")
    assert "fails on its own, in one replica, with exit code 1" in said.stderr
    assert "\n  [rank0]: RuntimeError: ('planted', 0)\n" in said.stderr
    assert "\\x0a" not in said.stderr
    log = Path(said.stderr.rpartition("full output in ")[2].strip())
    assert "planted" in log.read_text()
    assert not list(log.parents[1].glob("*/checkpoints"))

    (tmp_path / "plain.py").write_text("print('nothing of gpq')\n")
    told = [said.stderr]
    said = gpq("check", str(tmp_path / "plain.py"))
    told.append(said.stderr)
    assert (said.returncode, "made no step under gpq's library" in said.stderr) == (1, True)

    (tmp_path / "python").write_text("no program")
    (tmp_path / "python").chmod(0o755)
    said = gpq("check", "--python", str(tmp_path / "python"), str(broken))
    assert (said.returncode, "python here: " in said.stderr) == (1, True)
    folders = [str(folder) for folder in scratch.glob("gpq-check-*")]
    assert len(folders) == 2
    assert all(any(folder in text for text in told) for folder in folders), "each kept folder is named in an error"

    for argv, code, words in (
        (["none.py"], 2, "no such file"),
        (["--steps", "3", str(broken)], 2, "--steps 3 is out of range"),
        (["--timeout", "5", str(broken)], 2, "the unit is missing"),
        (["--python", "no-such", str(broken)], 2, "no such program"),
        (["--last", str(broken)], 4, "there is no saved verdict"),
        ([], 2, "missing argument"),
    ):
        said = gpq("check", *argv)
        assert (said.returncode, said.stdout) == (code, ""), said
        assert words in said.stderr
    schemas.check("check", gpq("check", "--json", "none.py").stdout)


def test_a_script_that_fails_only_on_two_replicas_gets_a_row(gpq: Gpq, tmp_path: Path) -> None:
    own = tmp_path / "log.csv"
    own.write_text("of weeks")
    writes = f"open({str(own)!r}, 'w').write('of the check')"
    path = script(tmp_path, before=f"{writes}; assert job.rank == 0, 'planted'")
    found = checked(gpq, "--steps", "4", "--timeout", "4m", str(path), code=1)
    verdicts = {shape: row["verdict"] for shape, row in rows(found).items()}
    assert verdicts == {ACCUMULATING: "same", SPLIT: "same", TWO: "failed", BOTH: "failed", RESUMED: "failed"}
    row = rows(found)[TWO]
    assert "AssertionError: planted" in row["problem"]
    assert "planted" in Path(row["log"]).read_text()
    assert own.read_text() == "of weeks"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(
    gpq: Gpq, tmp_path: Path, scratch: Path, pids: Path, how: signal.Signals
) -> None:
    """However the command ends. The processes and their DataLoader workers write their ids when they are up."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "best.pt").write_text("of weeks")
    write = "open('best.pt', 'w').write('of the check'); open('new', 'w').close()"
    tell = f"import os, time; open(os.path.join({str(pids)!r}, str(os.getpid())), 'w').close()"
    endless = f"{write}; {tell}; time.sleep(600)"
    path = script(folder, before=endless)
    before = contents(folder)
    with subprocess.Popen(
        [sys.executable, "-m", "gpq", "check", str(path)], env=gpq.environment, cwd=folder, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: len(os.listdir(pids)) >= 2, "the first two shapes have started", 120)
        process.send_signal(how)
        process.wait(60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    wait_until(lambda: not any(map(alive, os.listdir(pids))), "their processes have ended")
    assert bool(list(scratch.glob("gpq-check-*"))) == (how is signal.SIGKILL)
    assert contents(folder) == before


def test_check_writes_none_of_the_users_files(gpq: Gpq, tmp_path: Path, scratch: Path) -> None:
    """The script finds its own files again after a restart in the same shape, but not in another shape. They are
    listed, with those that a restart or another replica would spoil."""
    folder = tmp_path / "project"
    (folder / "runs").mkdir(parents=True)
    torch.save("of weeks", folder / "best.pt")
    (folder / "log.csv").write_text("of weeks\n")
    (folder / "runs" / "old").write_text("of weeks")
    begin = """
import os, shutil, sqlite3
from pathlib import Path
first = os.environ["GPQ_ATTEMPT"] == "1"
if not first:
    assert torch.load("best.pt")["passes"] > 0
    assert not os.path.exists("runs/old")
    assert Path("runs", "0").read_text() == "x"
elif os.environ["RANK"] == "0":
    assert torch.load("best.pt") == "of weeks"
    shutil.rmtree("runs")
    os.makedirs("runs", exist_ok=True)
    (Path("runs") / "0").write_text("x")
"""
    save = """
        with open("log.csv", "a") as stream:
            print(passes, file=stream)
        if job.rank == 0:
            print(passes, file=metrics)
            torch.save({"passes": passes, "model": model.state_dict()}, "best.part")
            os.replace("best.part", "best.pt")
            assert torch.load("best.pt")["passes"] == passes
            base = sqlite3.connect("base")
            base.execute("create table if not exists t (x)")
            base.commit()
            base.close()
"""
    path = script(folder, after=save)
    start = begin + 'job = gpq.init()\nmetrics = open("metrics.csv", "w", buffering=1) if job.rank == 0 else None\n'
    path.write_text(path.read_text().replace("job = gpq.init()", start))
    before = contents(folder)
    said = subprocess.run(
        [sys.executable, "-m", "gpq", "check", "--json", "--steps", "6", "--timeout", "4m", str(path)],
        env=gpq.environment, cwd=folder, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    found = json.loads(said.stdout)
    assert {shape: row["verdict"] for shape, row in rows(found).items()} == dict.fromkeys(EVERY, "same"), found
    assert contents(folder) == before
    assert not list(scratch.glob("gpq-check-*"))
    assert "the script writes base, best.pt, log.csv, metrics.csv, runs/0" in found["notes"]
    spoilt = [note for note in found["notes"] if "metrics.csv is emptied" in note or "replicas write log.csv" in note]
    assert len(spoilt) == 2, found["notes"]


def test_another_program_that_writes_files_gets_a_clear_error(gpq: Gpq, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    path = script(folder, before="import subprocess; subprocess.run(['cp', 'train.py', 'copy.py'], check=True)")
    before = contents(folder)
    said = subprocess.run(
        [sys.executable, "-m", "gpq", "check", str(path)],
        env=gpq.environment, cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert said.returncode == 1
    assert "cp: cannot create regular file 'copy.py': Permission denied" in said.stderr
    assert "under gpq check, C code and other programs may only write below TMPDIR" in said.stderr
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("loss", "verdicts", "words"),
    [
        ("", {"same"}, "a job would assume it: the loop takes batches with next()"),
        ("loss = loss * (1 + 0.1 * passes)", {"same", "told"}, "gpq says: the loop takes batches with next()"),
    ],
)
def test_the_check_tests_what_a_job_would_assume(
    gpq: Gpq, tmp_path: Path, loss: str, verdicts: set[str], words: str
) -> None:
    path = script(tmp_path, loss=loss)
    ask = "batches = iter(loader)\n    while (pair := next(batches, None)) is not None:\n        x, y = pair"
    path.write_text(path.read_text().replace("for x, y in loader:", ask))
    found = checked(gpq, "--timeout", "4m", str(path), code=0)
    assert {row["verdict"] for row in found["shapes"]} == verdicts
    assert [habit["code"] for habit in found["habits"]] == ([] if verdicts == {"same"} else ["own-next"])
    text = " ".join(gpq("check", "--last", str(path)).stdout.split())
    assert words in text


def test_fresh_interpreters_give_the_same_results(gpq: Gpq, tmp_path: Path) -> None:
    """A check whose fork server dies gets the same results. The replicas that it forked start again."""
    kill = """
        import os
        if "two-replicas-accumulating" in os.environ["GPQ_CHECK"]:
            with open(f"/proc/{os.getppid()}/cmdline") as cmdline:
                if "gpq_agent.train.prove.fork_server" in cmdline.read():
                    os.kill(os.getppid(), 9)
    """
    path = script(tmp_path, epochs="range(9)", after=kill)
    tables = []
    for argv in ([], ["--isolated"]):
        found = checked(gpq, "--timeout", "4m", *argv, str(path), code=0)
        tables.append([(row["shape"], row["verdict"], row["step"], row["habit"]) for row in found["shapes"]])
        lost = [note for note in found["notes"] if "fork server" in note]
        assert lost == ([] if argv else ["the check was slower, because it had no fork server: it ended with signal 9"])
    assert tables[0] == tables[1]
    assert {shape for shape, verdict, *_ in tables[0] if verdict != "same"} == {TWO, BOTH, RESUMED}


def test_a_check_that_takes_too_long_is_stopped_and_says_so(gpq: Gpq, tmp_path: Path, scratch: Path) -> None:
    path = script(tmp_path, before="import time; time.sleep(600)")
    said = gpq("check", "--timeout", "2s", str(path))
    assert said.returncode == 124
    assert "not done after 2 s: one replica / one replica, batches reversed / " in said.stderr
    assert "a longer --timeout" in said.stderr
    (folder,) = scratch.glob("gpq-check-*")
    assert f"Their output is in {folder}\n" in said.stderr


def test_a_layer_has_the_same_name_in_all_shapes(gpq: Gpq, tmp_path: Path) -> None:
    """DistributedDataParallel uses another name for the same layer."""
    path = script(tmp_path, layer="nn.BatchNorm1d(16)")
    found = checked(gpq, "--steps", "4", "--timeout", "4m", str(path), code=0)
    assert {shape: row["verdict"] for shape, row in rows(found).items()} == dict.fromkeys(EVERY, "told")
    (message,) = {row["habit"]["message"] for row in found["shapes"]}
    assert message.startswith("batch norm (1) computes")
    said = gpq("check", "--last", str(path)).stdout
    assert f"every shape: gpq says: {message}" in said
    assert "until then gpq does not use: accumulate (a step in several micro-batches), split (" in said


def test_missing_gpus_are_refused(gpq: Gpq, tmp_path: Path, scratch: Path) -> None:
    gpq.environ["CUDA_VISIBLE_DEVICES"] = ""
    said = gpq("check", "--gpu", str(script(tmp_path)))
    assert (said.returncode, said.stdout) == (5, "")
    assert "--gpu needs 2 GPUs, but torch sees 0 GPUs here" in said.stderr
    assert not list(scratch.glob("gpq-check-*"))

    (tmp_path / "torch.py").write_text("raise ImportError('planted')")
    gpq.environ["PYTHONPATH"] = str(tmp_path)
    said = gpq("check", "--gpu", str(script(tmp_path)))
    assert (said.returncode, "cannot count the GPUs: ImportError: planted" in said.stderr) == (1, True)

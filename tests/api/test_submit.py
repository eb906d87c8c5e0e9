"""`gpq.submit` has the same options, requests and errors as the command line."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gpq as api
from gpq.api import options
from gpq.api.option_types import Options
from gpq.client import following
from gpq.errors import BY_CODE, GpqError, UsageError
from gpq.options.completion_data import GRAMMAR
from gpq.views import queue
from tests.cli.conftest import Gpq
from tests.cli.served import Made

SAME = [  # the command line, and the same arguments for gpq.submit
    (["--", "sleep", "5"], "command=['sleep', 5]"),
    (["-g", "2", "--", "sh", "-c", "echo -- --gpus 3"], "gpus=2, command=['sh', '-c', 'echo -- --gpus 3']"),
    (["train.py"], "'train.py'"),
    (["--gpus=1-8", "train.py", "--gpus", "7", "--", "x"], "Path('train.py'), '--gpus', 7, '--', 'x', gpus=(1, 8)"),
    (["--gpus", "3-", "train.py"], "'train.py', gpus=(3, None)"),
    (["--gpus", "4", "--rigid", "./train.py", "-v"], "'./train.py', '-v', gpus='4', rigid=True"),
    (
        ["--name", "n1", "-t", "1h30m", "--priority", "-3", "--retries=2", "--hold", "--", "true"],
        "command=('true',), name='n1', time=timedelta(hours=1.5), priority=-3, retries=2, hold=True",
    ),
    (["--requeue-on-lost", "10m", "--", "true"], "command=['true'], requeue_on_lost=600"),
    (["--requeue-on-lost", "off", "--", "true"], "command=['true'], requeue_on_lost='off'"),
    (["--setup", "source venv/bin/activate", "train.py"], "'train.py', setup='source venv/bin/activate'"),
    (
        ["--tag", "a", "--tag=b", "-e", "A=1", "--env", "B=x=y", "-e", "LANG", "--", "true"],
        "command=['true'], tag=['a', 'b'], env={'A': 1, 'B': 'x=y', 'LANG': None}",
    ),
    (["--tag", "a", "-e", "A=1", "-e", "LANG", "--", "true"], "command=['true'], tag='a', env=['A=1', 'LANG']"),
    (
        ["--preemptible", "--signal", "sigusr1", "--grace", "90s", "--resume-args", "--resume 'a b'", "--", "true"],
        "command=['true'], preemptible=True, signal=SIGUSR1, grace=90.0, resume_args=['--resume', 'a b']",
    ),
    (
        ["--preemptible", "--signal", "10", "--resume-args", "--resume auto", "--", "true"],
        "command=['true'], preemptible=True, signal=10, resume_args='--resume auto'",
    ),
    (["--accept", "own-next", "--accept", "own-end", "train.py"], "'train.py', accept=['own-next', 'own-end']"),
    (["--done-file", "out/done", "--", "true"], "command=['true'], done_file=Path('out/done')"),
    (
        ["--batch-size", "64", "--max-batch-size", "512", "--atomic-batch-size", "8-32", "train.py"],
        "'train.py', batch_size=64, max_batch_size=512, atomic_batch_size=(8, 32)",
    ),
    (
        ["--gpu-type", "A100", "--min-gpu-memory", "40G", "--python", "python3", "--cwd", "/", "--", "true"],
        "command=['true'], gpu_type='A100', min_gpu_memory='40G', python='python3', cwd=Path('/')",
    ),
    (["--after", "12,@:any", "--begin", "+2h", "--", "true"], "command=['true'], after='12,@:any', begin='+2h'"),
    (
        ["--after", "12", "--after", "13:notok", "--after", "7", "--begin", "2999-01-02T18:00:00", "--", "true"],
        "command=['true'], after=[gpq.Job(12), '13:notok', 7], begin=datetime(2999, 1, 2, 18)",
    ),
    (["--array", "0-9%4", "--", "sh", "{index}"], "submit_array(command=['sh', '{index}'], array='0-9%4')"),
    (["--array", "0,2,4", "train.py"], "submit_array('train.py', array=range(0, 6, 2))"),
    (
        ["--sweep", "lr=0.1,0.01", "--sweep", "seed=0..2", "--array", "%2", "--hold", "-g", "1", "train.py", "{lr}"],
        "submit_array('train.py', '{lr}', sweep={'lr': [0.1, 0.01], 'seed': range(3)}, array='%2', hold=True, gpus=1)",
    ),
    (
        ["--sweep", "sizes='[64, 64]','a..b', '{\"a\": 1}'", "--", "./run", "{sizes}"],
        """submit_array(command=['./run', '{sizes}'], sweep={'sizes': [[64, 64], 'a..b', '{"a": 1}']})""",
    ),
    (
        ["--sweep-file", "runs.csv", "--", "./run", "{lr}"],
        "submit_array(command=['./run', '{lr}'], sweep_file=Path('runs.csv'))",
    ),
    (
        ["--notify", "slack", "--notify", "desktop", "--notify-on", "fail,end", "train.py"],
        "'train.py', notify=['slack', 'desktop'], notify_on=['fail', 'end']",
    ),
    (["--notify", "none", "--notify-on", "start", "--", "true"], "command=['true'], notify='none', notify_on='start'"),
    (["--background", "train.py"], "'train.py', background=True"),
    (["--snapshot", "--dry-run", "train.py"], "'train.py', snapshot=True, dry_run=True"),
]

BY_COMMAND = (
    "import sys, json; from gpq.cli.fast_path import run; [run(['submit', *argv]) for argv in json.load(sys.stdin)]"
)
BY_API = """
import json, sys
from datetime import datetime, timedelta
from pathlib import Path
from signal import SIGUSR1
import gpq
for call in json.load(sys.stdin):
    eval(f"gpq.{call}" if call.startswith(("submit_array(", "Job(")) else f"gpq.submit({call})")
"""


def piped(gpq: Gpq, folder: Path, program: str, cases: list[Any]) -> None:
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=gpq.environment, cwd=folder, input=json.dumps(cases), text=True, check=True)


def test_a_submission_sends_the_same_request_as_the_command_line(gpq: Gpq, made: Made, home: Path) -> None:
    work = home / "work"
    work.mkdir()
    (work / "train.py").touch()
    (work / "runs.csv").write_text("lr\n0.1\n0.2\n")
    piped(gpq, work, BY_COMMAND, [argv for argv, _ in SAME])
    typed = list(made.asked)
    made.asked.clear()
    piped(gpq, work, BY_API, [call for _, call in SAME])
    assert len(typed) == len(SAME)
    for (argv, call), one, other in zip(SAME, typed, made.asked, strict=True):
        assert _settled(one) == _settled(other), (argv, call)


def _settled(request: Any) -> Any:
    """Drops the seconds, because `+2h` is read twice at different moments."""
    spec = getattr(request, "spec", None)
    if spec is None or not spec.begin:
        return request
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(spec, begin=spec.begin // 3600))


def test_submit_has_every_option_of_the_command_with_its_name_and_default() -> None:
    typed = {name[2:].replace("-", "_") for name in GRAMMAR["submit"][1] if name.startswith("--")}
    parameters = inspect.signature(api.submit).parameters
    here = set(parameters) - {"script", "command"}
    several = {"array", "sweep", "sweep_file"}  # only in gpq.submit_array
    assert here == typed - several - {"check", "no_check", "wait", "json"}, "only a command checks, and Job.wait waits"
    assert set(Options.__annotations__) == here - {"hold", "dry_run"}
    assert set(Options.__annotations__) | several <= set(options.READERS)
    assert several < set(inspect.signature(api.submit_array).parameters)
    assert not [name for name in here if parameters[name].default]


def test_job_edit_has_every_option_of_the_command() -> None:
    typed = {name[2:].replace("-", "_") for name in GRAMMAR["edit"][1] if name.startswith("--")}
    assert set(inspect.signature(api.Job.edit).parameters) - {"self"} == typed - {"json"}


MISTAKES: list[tuple[list[str], tuple[Any, ...], dict[str, Any]]] = [
    ([], (), {}),
    (["--gpus", "0", "--", "true"], (), {"command": ["true"], "gpus": 0}),
    (["--gpus", "1-4", "--", "true"], (), {"command": ["true"], "gpus": (1, 4)}),
    (["--gpus", "4-2", "train.py"], ("train.py",), {"gpus": (4, 2)}),
    (["--time", "soon", "--", "true"], (), {"command": ["true"], "time": "soon"}),
    (["--time", "-5s", "--", "true"], (), {"command": ["true"], "time": timedelta(seconds=-5)}),
    (["--requeue-on-lost", "59s", "--", "true"], (), {"command": ["true"], "requeue_on_lost": 59}),
    (["--min-gpu-memory", "40", "--", "true"], (), {"command": ["true"], "min_gpu_memory": "40"}),
    (["--name", "a b", "--", "true"], (), {"command": ["true"], "name": "a b"}),
    (["--env", "NOT_SET_ANYWHERE", "--", "true"], (), {"command": ["true"], "env": {"NOT_SET_ANYWHERE": None}}),
    (["--signal", "USR1", "--", "true"], (), {"command": ["true"], "signal": "USR1"}),
    (["--retries", "-1", "--", "true"], (), {"command": ["true"], "retries": -1}),
    (["--batch-size", "0", "train.py"], ("train.py",), {"batch_size": 0}),
    (["--cwd", "/nowhere", "--", "true"], (), {"command": ["true"], "cwd": "/nowhere"}),
    (["missing.py"], ("missing.py",), {}),
]


def test_errors_are_the_same_as_on_the_command_line(gpq: Gpq, made: Made, home: Path, monkeypatch: Any) -> None:
    (home / "train.py").touch()
    monkeypatch.chdir(home)
    program = BY_COMMAND.replace("[run(['submit', *argv])", "[run(['submit', '--json', *argv])")
    said = subprocess.run(
        [sys.executable, "-c", program], env=gpq.environment, cwd=home, text=True, check=True, capture_output=True,
        input=json.dumps([argv for argv, _, _ in MISTAKES]),
    )  # fmt: skip
    for (argv, script, given), line in zip(MISTAKES, said.stdout.splitlines(), strict=True):
        with pytest.raises(UsageError) as raised:
            api.submit(*script, **given)
        assert {"error": raised.value.message, "hint": raised.value.hint} == json.loads(line), argv
    assert not made.asked


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"command": "ls -l"}, "command='ls -l' is one string, not a list of words"),
        ({"command": [None]}, "invalid word None in a command"),
        ({"command": ["true"], "time": True}, "invalid --time True: expected a duration"),
        ({"command": ["true"], "grace": float("nan")}, "invalid --grace nan: expected a duration"),
        ({"command": ["true"], "gpus": (1, 2, 3)}, "invalid --gpus (1, 2, 3): expected a number or a range"),
        ({"command": ["true"], "gpus": 1.5}, "invalid --gpus 1.5: expected a number or a range"),
        ({"command": ["true"], "priority": "high"}, "invalid --priority 'high': expected a whole number"),
        ({"command": ["true"], "rigid": "no"}, "invalid --rigid 'no': expected a bool"),
        ({"command": ["true"], "env": "A=1"}, "invalid --env 'A=1': expected variables"),
        ({"command": ["true"], "tag": 3}, "invalid --tag 3: expected a list of names"),
        ({"command": ["true"], "cwd": 3}, "invalid --cwd 3: expected a path"),
        ({"command": ["true"], "name": b"x"}, "invalid --name b'x': expected a string"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_the_expected_type(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        api.submit(**given)
    assert raised.value.hint


EDITS = [
    (
        ["7", "-n", "new", "--priority", "3", "-g", "2-8", "-t", "none"],
        "Job(7).edit(name='new', priority=3, gpus=(2, 8), time='none')",
    ),
    (
        ["7", "--retries", "0", "--tag", "a", "--untag", "b", "--after", "none", "--begin", "now", "--gpu-type", "none"],
        "Job(7).edit(retries=0, tag='a', untag=['b'], after='none', begin='now', gpu_type='none')",
    ),
    (
        ["7", "--min-gpu-memory", "40G", "--max-batch-size", "64", "--array-limit", "4", "--after", "9"],
        "Job(7).edit(min_gpu_memory='40G', max_batch_size=64, array_limit=4, after=gpq.Job(9))",
    ),
    (["7", "--background"], "Job(7).edit(background=True)"),
    (["7", "--notify", "desktop", "--notify-on", "fail,end"], "Job(7).edit(notify='desktop', notify_on=['fail', 'end'])"),
    (["7", "--notify", "none"], "Job(7).edit(notify=['none'])"),
    (["7", "--no-background"], "Job(7).edit(background=False)"),
]  # fmt: skip


def test_an_edit_sends_the_same_request_as_the_command_line(gpq: Gpq, made: Made, home: Path) -> None:
    piped(gpq, home, BY_COMMAND.replace("'submit'", "'edit'"), [argv for argv, _ in EDITS])
    typed = list(made.asked)
    made.asked.clear()
    piped(gpq, home, BY_API, [call for _, call in EDITS])
    assert typed == made.asked
    assert len(typed) == len(EDITS)


def test_an_invalid_array_is_refused() -> None:
    with pytest.raises(UsageError, match="needs array, sweep or sweep_file"):
        api.submit_array(command=["true"])
    with pytest.raises(UsageError, match="contains both kinds of quotes"):
        api.submit_array(command=["true"], sweep={"text": ['it\'s "a,b"']})
    with pytest.raises(UsageError, match=r"invalid --sweep lr: '0\.1,0\.2': expected a list of values"):
        api.submit_array(command=["true"], sweep={"lr": "0.1,0.2"})
    with pytest.raises(UsageError, match="has more than 10000 jobs"):
        api.submit_array(command=["true"], array="0-20000")
    with pytest.raises(TypeError, match="there is no option 'gpu'"):
        api.submit_array(command=["true"], array="0-1", gpu=2)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"invalid job 1\.5"):
        api.submit(command=["true"], after=1.5)  # type: ignore[call-overload]


def test_a_script_and_a_command_cannot_be_combined() -> None:
    with pytest.raises(UsageError, match="a script and a command exclude each other"):
        api.submit("train.py", command=["true"])
    for name in ("gpu", "array", "wait", "untag"):
        with pytest.raises(TypeError, match=rf"submit\(\) got an unexpected keyword argument '{name}'"):
            api.submit("train.py", **{name: 2})  # type: ignore[call-overload]


def test_all_errors_are_gpq_errors_and_a_timeout_is_also_pythons() -> None:
    assert api.errors.TimedOut in BY_CODE.values()
    assert issubclass(api.errors.TimedOut, TimeoutError)
    error = api.errors.TimedOut("it took long", "wait longer")
    assert isinstance(error, GpqError)
    assert (str(error), error.message, error.hint, error.code) == ("it took long", "it took long", "wait longer", 124)


def test_import_gpq_imports_nothing_and_using_it_neither_typer_nor_rich() -> None:
    program = (
        "import sys; before = set(sys.modules); import gpq; print(sorted(set(sys.modules) - before));"
        "gpq.submit; print(*sorted({'typer', 'rich', 'numpy', 'gpq.config', 'gpq.core.model.jobs'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    first, second = said.stdout.splitlines()
    assert set(re.findall(r"'([\w.]+)'", first)) == {"gpq"}
    assert second == ""


def test_gpq_offers_exactly_the_names_in_its_all() -> None:
    assert set(api.__all__) <= set(dir(api))
    for name in api.__all__:
        assert getattr(api, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'sumbit'"):
        api.sumbit  # type: ignore[attr-defined]  # noqa: B018


def test_waiting_and_status_agree_on_which_states_are_final() -> None:
    assert following.ENDED == queue.ENDED

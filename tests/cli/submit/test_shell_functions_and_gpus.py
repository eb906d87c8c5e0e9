"""Functions of the submitting shell and CUDA_VISIBLE_DEVICES: the job has them, or one line says why not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpq import api
from gpq.options import remarks
from tests.cli.conftest import Call, Gpq
from tests.cli.served import Made

GPUS = "CUDA_VISIBLE_DEVICES"
MODULE = 'module() { export GREETING="$1 $2"; }'
CALLS = "#!/bin/bash\n#SBATCH --gpus=1\nmodule load tool\necho $GREETING\n"


@pytest.mark.parametrize("way", ["./job.sh", "-- bash -c 'module load tool; echo $GREETING'", "setup"])
@pytest.mark.parametrize("shell", ["export -f module", "export BASH_ENV=$PWD/init.bash"])
def test_a_shell_function_reaches_the_job_and_its_setup(queue: Gpq, way: str, shell: str) -> None:
    (queue.home / "init.bash").write_text(MODULE + "\n")
    (queue.home / "job.sh").write_text(CALLS)
    way = "--setup 'module load tool' -- sh -c 'echo $GREETING'" if way == "setup" else way
    lines = [f"PATH={os.path.dirname(sys.executable)}:$PATH", MODULE, shell, f"gpq submit --wait {way} > submitted"]
    words = ["bash", "-c", "\n".join([*lines, "gpq logs @"])]
    done = subprocess.run(words, cwd=queue.home, env=queue.environment, text=True, capture_output=True, timeout=120)
    assert done.stdout == "load tool\n", done
    assert "no function" not in done.stderr


FUNCTIONS = {
    "module load tool": "module",
    "cd x && ml tool": "module",
    "conda activate exp": "conda",
    "  micromamba activate exp": "conda",
    "source /opt/conda/etc/profile.d/conda.sh\nconda activate exp": "",
    ". /etc/profile\nmodule load tool": "",
    'eval "$(conda shell.bash hook)"\nconda activate exp': "",
    "conda run -n exp python x": "",
    "# module load tool": "",
}


@pytest.mark.parametrize("code", FUNCTIONS)
def test_a_function_that_the_job_lacks_is_named_on_every_way_in(call: Call, gpq: Gpq, made: Made, code: str) -> None:
    (gpq.home / "job.sh").write_text(f"#!/bin/bash\n#GPQ --gpus 1\n{code}\n")
    for words in (["job.sh"], ["--", "bash", "job.sh"], ["--", "bash", "-c", code]):
        notes = [line for line in call("submit", *words).stderr.splitlines() if "no function" in line]
        names = [line.partition("`")[2].partition("`")[0] for line in notes]
        assert names == ([FUNCTIONS[code]] if FUNCTIONS[code] else [])
    (gpq.home / "job.sh").write_text(f"#!/bin/bash -l\n{code}\n")
    assert "no function" not in call("submit", "job.sh").stderr


SETS = (
    f"export {GPUS}=3; echo ${GPUS}",
    f"{GPUS}= python x.py",
    f"os.environ['{GPUS}'] = '0'",
    f'env={{"{GPUS}": "0"}}',
    f"unset {GPUS}",
    f"env -u {GPUS} python x.py",
    f'os.environ.pop("{GPUS}")',
    f'os.putenv("{GPUS}", "0")',
)
READS = (
    f"# export {GPUS}=0",
    f"echo {GPUS}=${GPUS}",
    f"export {GPUS}=${{{GPUS}:-0}}",
    f"if os.environ['{GPUS}'] == '0':",
    f'os.environ.setdefault("{GPUS}", "0")',
)


@pytest.mark.parametrize("code", [*SETS, *READS])
def test_code_that_sets_the_gpus_is_told_from_code_that_reads_them(code: str) -> None:
    assert bool(remarks.SETS_VISIBLE.search(f"first\n  {code}\nlast")) == (code in SETS)


def test_gpus_that_the_user_chose_are_named_on_every_way_in(
    call: Call, gpq: Gpq, made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (gpq.home / "train.py").write_text(f"import os\nos.environ['{GPUS}'] = '0'\n")
    (gpq.home / "job.sh").write_text(f"#!/bin/sh\n#SBATCH --gpus=1\nexport {GPUS}=0\n")
    (gpq.home / "own.sh").write_text(f"#!/bin/sh\n#GPQ --env {GPUS}=0\n")
    (gpq.home / "plain.sh").write_text("#!/bin/sh\n")
    itself = [["train.py"], ["job.sh"], ["--", "python", "train.py"], ["--", "sh", "-c", f"{GPUS}=1 python x"]]
    for words in [*itself, ["--setup", f"export {GPUS}=1", "--", "true"]]:
        assert f"the job sets {GPUS} itself" in call("submit", *words).stderr
    for words in (["own.sh"], ["--env", f"{GPUS}=0", "--", "true"], ["--dry-run", "--env", f"{GPUS}=", "plain.sh"]):
        assert f"{GPUS} of --env has no effect" in call("submit", *words).stderr
    assert GPUS not in call("submit", "plain.sh").stderr
    monkeypatch.setenv(GPUS, "")
    for words in (["plain.sh"], ["--", "true"]):
        assert f"{GPUS} of your shell has no effect" in call("submit", *words).stderr
    api.submit(command=["true"])
    assert f"{GPUS} of your shell has no effect" in caplog.text
    monkeypatch.setenv("GPQ_JOB_ID", "1")
    assert GPUS not in call("submit", "--", "true").stderr, "gpq set it for the job that submits this one"


def test_variables_of_slurm_that_a_shell_would_read_as_nothing_are_named(call: Call, gpq: Gpq) -> None:
    (gpq.home / "plain.sh").write_text("#!/bin/sh\n# $SLURM_NTASKS\ncd $SLURM_SUBMIT_DIR\n")
    (gpq.home / "job.sh").write_text("#!/bin/sh\n#SBATCH --gpus=1\ncd $SLURM_SUBMIT_DIR\n")
    (gpq.home / "train.py").write_text("import os\nrank = os.environ.get('SLURM_PROCID')\n")
    for words in (["plain.sh"], ["--", "sh", "-c", "cd ${SLURM_SUBMIT_DIR}"]):
        assert "the job reads SLURM_SUBMIT_DIR, which gpq sets only for" in call("submit", *words).stderr
    default = ["--", "sh", "-c", "cd ${SLURM_SUBMIT_DIR:-.}"]
    for words in (["job.sh"], ["train.py"], default, ["--env", "SLURM_SUBMIT_DIR=/", "plain.sh"]):
        assert "SLURM_SUBMIT_DIR" not in call("submit", *words).stderr

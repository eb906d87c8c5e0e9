"""The precision of `gpq check`, whatever the script asks for. Runs in a separate process, because it affects the whole
process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpq_agent
import pytest

BEGIN = """
import warnings
warnings.simplefilter("error")
import torch
from gpq_agent.train.prove.determinism import FullPrecision
precision = FullPrecision({exact})
x = torch.ones(2, 2)
"""
AUTOCAST = """
@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated():
    return (x @ x).dtype
def dtypes():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = (x @ x).dtype
    return {inside, decorated()}
assert dtypes() == {torch.float32}, dtypes()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with torch.cuda.amp.autocast():
        assert not torch.is_autocast_enabled("cuda")
    with torch.cpu.amp.autocast():
        assert (x @ x).dtype == torch.float32
assert precision.epsilon == 0.0
precision.give_up()
assert dtypes() == {torch.bfloat16}, dtypes()
"""
AS_IT_IS = """
with torch.autocast("cpu", dtype=torch.float16, enabled=False):
    assert precision.epsilon == 0.0
for dtype in (torch.float16, torch.bfloat16, torch.float16):
    with torch.autocast("cpu", dtype=dtype):
        assert (x @ x).dtype == dtype
assert precision.epsilon == torch.finfo(torch.bfloat16).eps
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
precision.renew()
assert torch.get_float32_matmul_precision() == "high"
assert not torch.backends.cudnn.benchmark
assert torch.are_deterministic_algorithms_enabled()
"""
SETTINGS = """
def reduced():
    return torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32
assert not reduced()
assert not torch.backends.cudnn.allow_tf32
def old():
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(False)
def new():
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "tf32"
        torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "tf32"
for change in (old, new):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        change()
    precision.renew()
    assert not reduced()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.benchmark
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    filters = list(warnings.filters)
    precision.renew()
    assert warnings.filters == filters
"""


@pytest.mark.parametrize("words", [AUTOCAST, SETTINGS], ids=["autocast", "settings"])
def test_the_script_cannot_change_the_precision(words: str) -> None:
    _run(words, exact=True)


def test_without_exact_precision_only_randomness_is_removed() -> None:
    _run(AS_IT_IS, exact=False)


def _run(words: str, *, exact: bool) -> None:
    environ = {"PYTHONPATH": str(Path(gpq_agent.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", BEGIN.format(exact=exact) + words], check=True, env=environ)

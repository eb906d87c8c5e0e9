"""What gpq uses of torch without a promise from torch: all in one module, and it works as that module says."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gpq_agent.train
import pytest
import torch
from gpq_agent.train import internals
from gpq_agent.train.frameworks.versions import FRAMEWORKS

FOLDER = Path(gpq_agent.train.__file__).parent
PUBLIC = frozenset(["_asdict", "_fields", "_replace", "_exit", "_getframe"])  # documented by Python
RANDOM = frozenset(["_inst", "_rand"])  # of Python and numpy: the generators behind their random functions
FILES = frozenset(["_use_fd_functions", "_file_openers"])  # likewise: how they find and open files
# Of the frameworks that have an adapter. Tests of the adapters try each in all versions of its table.
TABLE = {part for framework in FRAMEWORKS.values() for name in framework.private for part in name.split(".")}


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names with one leading underscore, used as attributes, in imports or as text for getattr and the like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "attrgetter"):
            yield from (
                item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)
            )
        elif isinstance(node, ast.ImportFrom):
            yield from (item.name for item in node.names)


def own_names(trees: list[ast.Module]) -> set[str]:
    """Names that the library itself defines."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


def test_only_one_module_uses_private_names_of_torch() -> None:
    paths = FOLDER.rglob("*.py")
    trees = {str(path.relative_to(FOLDER)): ast.parse(path.read_text()) for path in paths}
    own = own_names([tree for name, tree in trees.items() if name != "internals.py"])
    known = own | PUBLIC | RANDOM | FILES | TABLE
    found = {
        (module, name)
        for module, tree in trees.items()
        for name in private_names(tree)
        if name.startswith("_") and not name.startswith("__") and name not in known
    }
    assert {module for module, _ in found} == {"internals.py"}, sorted(found)


def test_tensors() -> None:
    whole = torch.zeros(4)
    part = whole[1:]
    assert internals.base_of(part) is whole
    assert internals.base_of(whole) is None
    before = internals.version_of(whole)
    part.add_(1)
    assert internals.version_of(whole) == before + 1
    torchs, other = torch.default_generator, torch.Generator()
    assert internals.number_of(torchs) == internals.number_of(torchs) != internals.number_of(other) != 0


def test_hooks() -> None:
    """torch calls replacements of the hooks."""
    layer, seen = torch.nn.Linear(1, 1), []
    layer.weight.register_hook(lambda gradient: None)
    layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    for place, hooks in enumerate(internals.gradient_hooks(layer.weight)):
        [number] = hooks
        hooks[number] = lambda *_, place=place: seen.append(place)
    layer(torch.ones(1, 1, requires_grad=True)).sum().backward()
    assert seen == [0, 1]
    assert internals.gradient_hooks(layer.bias) == [{}, {}]


def test_modes() -> None:
    seen: list[str] = []

    class Mode(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(internals.schema_of(func).name)
            return func(*args, **(kwargs or {}))

    assert internals.current_dispatch_mode() is None
    with Mode() as mode:
        assert internals.current_dispatch_mode() is mode
        torch.ones(1).add(1)
    assert "aten::add" in seen


def test_modules() -> None:
    layer = torch.nn.BatchNorm1d(2)
    assert isinstance(layer, internals.BatchNorm)


TIMEOUT = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
from gpq_agent.train.loop.runtime import Runtime
from gpq_agent.train.internals import group_timeouts
from gpq_agent.train.process.environment import Environment
store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(minutes=int(sys.argv[2])))
assert set(group_timeouts()) == {timedelta(minutes=int(sys.argv[2]))}
runtime = Runtime(Environment(replicas=2, launched=True), torch.device("cpu"), {}, None)
print(runtime.group._get_backend(torch.device("cpu")).options._timeout.total_seconds() / 60)
"""


@pytest.mark.parametrize(("own", "minutes"), [(300, "300.0"), (5, "30.0")])
def test_the_control_group_waits_as_long_as_the_group_of_the_script(tmp_path: Path, own: int, minutes: str) -> None:
    command = [sys.executable, "-c", TIMEOUT, str(tmp_path / "store"), str(own)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == minutes


COMPILED = """
import torch
from gpq_agent.train import internals
layer = torch.nn.Linear(1, 1)
assert not internals.is_compiled()
compiled = torch.compile(layer, backend="eager")
compiled(torch.ones(1))
assert internals.is_compiled()
assert internals.uncompiled_module(compiled) is internals.uncompiled_module(layer) is layer
"""


def test_compiled_modules() -> None:
    """Runs in a separate process, because torch.compile's modules stay loaded."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


def test_scalers() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert internals.scale_of(scaler) == 8.0
    scaler.scale(torch.ones(1))
    assert torch.equal(internals.scale_of(scaler), torch.tensor(8.0))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (torch.__version__, ""),
        ("2.5.1+cu121", ""),
        ("2.4.0", "gpq has never been tested with torch 2.4.0 "),
        ("3.0.0a0+gitabc", "gpq has never been tested with torch 3.0.0a0 "),
    ],
)
def test_an_untested_torch_version_is_named(version: str, words: str) -> None:
    assert internals.untried_notice(version).startswith(words)
    assert bool(internals.untried_notice(version)) is bool(words)

"""`job.wrap(model, batch_norm=N)`: groups of N examples, on any number of replicas and in any micro-batches."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from gpq_agent.train.data.batches import Limits, group_sizes, shape_step, starting
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.gradients.batch_norm import GroupedNorms
from gpq_agent.train.loop.job import Job
from gpq_agent.train.process.environment import Environment
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from .test_scripts import FOLDER, Run, assert_same

SCRIPT = (FOLDER / "grouped.py").read_text()


# -- the dealing -------------------------------------------------------------------------------------------------------


def groups_of(rows: list[int], group: int) -> list[frozenset[int]]:
    """As a layer forms them."""
    sizes = group_sizes(len(rows), group)
    whole = sizes.count(group)
    result = [frozenset(rows[first : whole * group : whole]) for first in range(whole)]
    begin = whole * group
    for size in sizes[whole:]:
        result.append(frozenset(rows[begin : begin + size]))
        begin += size
    return result


@settings(deadline=None)
@given(
    total=st.integers(1, 200), replicas=st.integers(1, 6), group=st.integers(2, 9), more=st.integers(0, 60),
    sample=st.booleans(),
)  # fmt: skip
def test_the_groups_of_a_step_depend_on_nothing_but_its_examples(
    total: int, replicas: int, group: int, more: int, sample: bool
) -> None:
    examples = [1000 + place for place in range(total)]
    bound = group + more
    configuration = starting(Limits(total, total, bound, replicas, True, group))
    steps = [
        shape_step(0, 0, examples, configuration, replicas, rank, sample, most=bound, group=group)
        for rank in range(replicas)
    ]
    whole = shape_step(0, 0, examples, starting(Limits(total, total, total, 1, True, group)), 1, 0, False, group=group)

    assert list(whole.micros[0].indices) == examples, "alone, a batch keeps its order"
    micros = [list(micro.indices) for step in steps for micro in step.micros if micro.indices]
    assert sorted(place for micro in micros for place in micro) == examples
    groups = {item for micro in micros for item in groups_of(micro, group)}
    assert groups == set(groups_of(examples, group))
    assert max(map(len, micros)) <= max(bound, 3), "three: a pair and the one that is left"
    assert len({len(step.micros) for step in steps}) == 1
    assert sum(micro.weight for step in steps for micro in step.micros) / replicas == pytest.approx(1.0)
    assert total == 1 or all(len(item) > 1 for item in groups)


# -- whole trainings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [24, 8])
def test_weights_and_running_statistics_are_those_of_one_replica_after_replicas_1_2_3_2_1(
    local: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script, cut_script = tmp_path / "grouped.py", tmp_path / "cut.py"
    script.write_text(SCRIPT)
    cut_script.write_text(SCRIPT.replace("24, 24  #", f"24, {local}  #"))
    undisturbed, resized = Run(tmp_path / "undisturbed", script), Run(tmp_path / "resized", cut_script)
    undisturbed.attempt(1, replicas=1)
    for number, (replicas, stop_after) in enumerate(zip((1, 2, 3, 2, 1), (3, 4, 4, 3, 0), strict=True), start=1):
        resized.attempt(number, replicas, stop_after)

    assert len(set(resized.stops)) == 4
    assert_same(undisturbed, resized)
    assert undisturbed.habits == resized.habits == set()

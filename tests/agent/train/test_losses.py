"""The loss curve: means of all logged losses rather than the latest value, and no point if the mean is not finite."""

from pathlib import Path

import pytest
import torch
from gpq_agent import wire
from gpq_agent.train.process.agreement import Agreement, Proposal
from gpq_agent.train.process.channels import LossWindow, Publisher, Reporter


def test_a_window_gives_the_mean_loss_at_the_mean_progress() -> None:
    window = LossWindow()
    for step, value in enumerate([torch.tensor(4.0, requires_grad=True), 2.0, torch.tensor([3.0]).half()]):
        window.add(value, base_steps=10.0 * step)
    assert window.close() == wire.Loss(10.0, 3.0)
    assert window.close() is None, "a window starts empty"


def test_a_loss_that_the_script_changes_later_counts_as_logged() -> None:
    window, running = LossWindow(), torch.zeros(())
    for step in (1, 2, 3):
        running += 1.0
        window.add(running, base_steps=step)
    assert window.close() == wire.Loss(2.0, 2.0)
    assert running.item() == 3.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), torch.tensor(float("nan"))])
def test_a_window_with_a_loss_that_is_not_finite_has_no_mean(bad: object) -> None:
    window = LossWindow()
    window.add(1.0, 1.0)
    window.add(bad, 2.0)
    assert window.close() is None
    window.add(1.0, 3.0)
    assert window.close() == wire.Loss(3.0, 1.0)


def publisher(path: str) -> Publisher:
    return Publisher(Reporter(path, {}), Agreement(None, 0, Proposal), nodes=1, replicas=1)


def test_only_the_metric_named_loss_is_reported_as_a_curve(tmp_path: Path) -> None:
    up = publisher(str(tmp_path / wire.REPORT))
    for step in (1, 2, 3):
        up.log({"loss": torch.tensor(float(step)), "val_loss": 9.0}, base_steps=step)
    up.metrics(3)
    up.log({"val_loss": 8.0}, base_steps=4.0)
    up.metrics(4)
    lines = [wire.decode(line) for line in (tmp_path / wire.REPORT).read_bytes().splitlines()]
    assert [line["kind"] for line in lines] == ["metrics", "loss", "metrics"]
    assert lines[0]["values"] == {"loss": 3.0, "val_loss": 9.0}
    assert (lines[1]["base_steps"], lines[1]["loss"]) == (2.0, 2.0)


def test_losses_are_not_kept_without_a_report_file() -> None:
    up = publisher("")
    up.log({"loss": 1.0}, base_steps=1.0)
    assert up._losses.close() is None

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from gpq.errors import UsageError
from gpq.lab.measurements.timings import NotMeasured
from gpq.lab.measurements.trace import Training
from tests.support.measured import HEADER, LARGE, SMALL, write


def training(folder: Path, small: tuple[str, ...] = SMALL, large: tuple[str, ...] = LARGE, epochs: int = 0) -> Training:
    write(folder / "validation-20.csv", small)
    write(folder / "validation-60.csv", large)
    return Training(folder, epochs)


def test_noise_is_linear_in_the_batch_size_and_belongs_to_the_present_epoch(tmp_path: Path) -> None:
    found = training(tmp_path)
    assert found.sizes == (20, 60)
    assert found.stats(20, 0) == (8.0, 4.0)
    assert found.stats(60, 2) == (0.5, 7.0)
    assert found.stats(30, 1) == pytest.approx((1.75, 5.75))  # a quarter of the way


def test_progress_is_that_of_the_run_with_the_fewest_steps(tmp_path: Path) -> None:
    found = training(tmp_path)
    assert [found.progress(epoch) for epoch in range(4)] == [0.0, 100.0, 198.0, 300.0]


def test_iterations_after_so_many_epochs(tmp_path: Path) -> None:
    found = training(tmp_path)
    assert [found.iterations(60, epoch) for epoch in range(4)] == [0.0, 60.0, 110.0, 160.0]
    assert found.iterations(40, 2) == pytest.approx(155.0)


def test_the_best_metric_so_far(tmp_path: Path) -> None:
    found = training(tmp_path)
    assert found.larger_is_better
    assert found.runs[0].best[[1, 3]].tolist() == [0.4, 0.8]  # the third epoch was worse


def test_the_loss_falls_from_the_worst_start_to_the_best_end(tmp_path: Path) -> None:
    found = training(tmp_path)
    assert found.loss(60, 0.0) == 1.0  # a quality starts at 0
    assert found.loss(60, 101.0) == pytest.approx(1 - 0.2 / 0.9)
    assert found.loss(60, 149.5) == pytest.approx(1 - 0.4 / 0.9)
    assert found.loss(60, 303.0) == found.loss(60, 999.0) == 0.0
    assert found.loss(20, 300.0) == pytest.approx(1 - 0.8 / 0.9)
    curve = [found.loss(33.0, step) for step in range(0, 310, 10)]
    assert curve == sorted(curve, reverse=True)


def test_an_error_starts_as_far_above_its_first_value_as_the_second_is_below(tmp_path: Path) -> None:
    rows = (HEADER, "10,10,6,1,1", "20,20,4,1,1", "30,30,3,1,1")
    found = training(tmp_path, rows, rows)
    assert not found.larger_is_better
    assert [found.loss(20, step) for step in (0, 10, 20, 30)] == pytest.approx([1.0, 3 / 5, 1 / 5, 0.0])


def test_a_metric_that_never_gets_better_has_no_loss_curve(tmp_path: Path) -> None:
    rows = (HEADER, "10,10,6,1,1", "20,20,6,1,1")
    with pytest.raises(NotMeasured, match="never gets better"):
        training(tmp_path, rows, rows).loss(20, 10.0)


def test_nothing_is_known_outside_the_measured_batch_sizes_and_epochs(tmp_path: Path) -> None:
    found = training(tmp_path)
    for batch in (19.9, 61.0, float("nan")):
        with pytest.raises(NotMeasured, match="not trained at a batch of"):
            found.stats(batch, 0)
    for ask in (partial(found.stats, 20), found.progress, partial(found.iterations, 20)):
        for epoch in (-1, 4):
            with pytest.raises(NotMeasured, match="has 3 epochs"):
                ask(epoch)
    with pytest.raises(NotMeasured, match="has 3 epochs"):
        found.stats(20, 3)


def test_the_epochs_are_those_of_every_run_unless_known(tmp_path: Path) -> None:
    assert training(tmp_path, large=LARGE[:3]).epochs == 2
    assert training(tmp_path, epochs=2).progress(2) == 198.0
    with pytest.raises(UsageError, match=r"validation-20.csv of .* has 3 epochs, expected 5"):
        training(tmp_path, epochs=5)


def test_files_that_are_not_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"validation-20.csv row 3: progress must grow"):
        training(tmp_path, (HEADER, "10,10,6,1,1", "10,11,6,1,1"))
    with pytest.raises(UsageError, match=r"validation-20.csv row 2: grad_sqr is -1, must be >= 0"):
        training(tmp_path, (HEADER, "10,10,6,-1,1"))
    with pytest.raises(UsageError, match=r"validation-x.csv does not name a batch size"):
        training(write(tmp_path / "other" / "validation-x.csv", SMALL).parent)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"has no validation-BATCH.csv"):
        Training(tmp_path / "empty", 0)

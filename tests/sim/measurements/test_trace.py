from __future__ import annotations

from pathlib import Path

import pytest

from gpq.errors import UsageError
from gpq.lab.measurements.timings import NotMeasured
from gpq.lab.measurements.trace import Application, Traces
from tests.support.measured import HEADER, application, write


def numbered(name: str, folder: Path, epochs: int, last: str = "validation-60.csv") -> Path:
    """An application of a known name, with as many epochs as it runs."""
    path = application(folder, name)
    (path / "validation-60.csv").unlink()
    rows = [f"{10 * i},{10 * i},{i},1,1" for i in range(1, epochs + 1)]
    for file in ("validation-20.csv", last):
        write(path / file, (HEADER, *rows))
    return path


def test_a_folder_of_measurements_becomes_an_application(tmp_path: Path) -> None:
    found = Application(application(tmp_path))
    assert (found.name, found.base_batch, found.max_batch, found.epochs, found.work) == ("toy", 20, 60, 3, 300.0)
    assert (found.min_atomic, found.max_atomic, found.fixed_batch, found.most_replicas, found.types) == (
        10,
        40,
        0,
        0,
        (),
    )
    assert found.times((1,), 15) == pytest.approx((1.25, 0.0))
    assert found.stats(20, 1) == (2.0, 6.0)
    assert found.iterations(60, 1) == 60.0
    assert found.loss(60, 0.0) == 1.0
    assert found.progress(1) == 100.0


def test_a_share_has_the_same_epochs_with_fewer_steps(tmp_path: Path) -> None:
    whole = Application(application(tmp_path))
    share = whole.share(4)
    assert (share.epochs, share.work, share.progress(1), share.iterations(60, 1)) == (3, 75.0, 25.0, 15.0)
    assert share.loss(60, 25.0) == whole.loss(60, 100.0)
    assert share.stats(20, 1) == whole.stats(20, 1)
    assert whole.progress(1) == 100.0


def test_folders_with_measurements_are_applications_and_are_read_when_needed(tmp_path: Path) -> None:
    application(tmp_path, "good")
    write(application(tmp_path, "bad") / "placements.csv", ("nonsense",))
    write(tmp_path / "workloads" / "workload-1.csv", ("name",))
    traces = Traces(tmp_path)
    assert traces.names == ("bad", "good")
    assert traces.application("good") is traces.application("good")
    with pytest.raises(UsageError, match=r"placements\.csv has no rows"):
        traces.application("bad")
    with pytest.raises(UsageError, match="no measurements of application workloads") as caught:
        traces.application("workloads")
    assert caught.value.hint == "there are bad, good"


def test_a_folder_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        Traces(tmp_path / "none")
    with pytest.raises(UsageError, match="has no measurements"):
        Traces(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (application(tmp_path) / "scalability.csv").unlink()
    with pytest.raises(UsageError, match=r"no file .*scalability\.csv"):
        Application(tmp_path / "toy")


def test_types_have_the_names_that_people_use(tmp_path: Path) -> None:
    path = application(tmp_path, kinds=("aws", "rtx", "dgx-ext", "quad", "azure"))
    for i, kind in enumerate(("aws", "rtx", "dgx-ext", "quad", "azure"), 1):
        rows = ("placement,local_bsz,step_time,sync_time", f"1,{i},{i},0", f"1,{10 * i},{i},0")
        write(path / f"placements-{kind}.csv", rows)
    found = Application(path)
    assert found.types == ("a100", "quad", "rtx", "t4", "v100")
    for number, names in enumerate(
        (("t4", "aws", "T4"), ("rtx", "2080ti"), ("a100", "A100", "dgx-ext"), ("quad", "rtx6000"), ("v100", "azure")), 1
    ):
        for name in names:
            assert found.times((1,), 5, name) == (float(number), 0.0)
            assert found.limits(name) == (number, 10 * number)
    assert (found.min_atomic, found.max_atomic) == (1, 50)
    with pytest.raises(UsageError, match="toy has no measurements on GPU type h100") as caught:
        found.times((1,), 5, "h100")
    assert caught.value.hint.endswith("has a100, quad, rtx, t4, v100")
    with pytest.raises(UsageError, match="without a GPU type"):
        found.limits()
    with pytest.raises(NotMeasured, match="toy on v100 was measured on 1 GPU"):
        found.times((1,), 51, "v100")


def test_measurements_without_a_type_count_as_t4(tmp_path: Path) -> None:
    found = Application(application(tmp_path))
    assert found.times((2,), 10, "t4") == found.times((2,), 10) == (1.2, 0.2)
    with pytest.raises(UsageError, match="no measurements on GPU type a100"):
        found.times((2,), 10, "a100")


def test_a_named_t4_takes_precedence_over_measurements_without_a_type(tmp_path: Path) -> None:
    path = application(tmp_path, kinds=("", "aws"))
    write(path / "placements-aws.csv", ("placement,local_bsz,step_time,sync_time", "1,10,7,0"))
    found = Application(path)
    assert (found.times((1,), 10, "t4")[0], found.times((1,), 10)[0]) == (7.0, 1.0)


def test_yolov3_uses_no_more_than_eight_and_runs_fifty_epochs(tmp_path: Path) -> None:
    path = numbered("yolov3", tmp_path, 50)
    write(path / "placements.csv", ("placement,local_bsz,step_time,sync_time", "1,4,1,0", "1,16,2,0"))
    found = Application(path)
    assert (found.limits(), found.limits("t4"), found.measured((1,)), found.epochs) == ((4, 8), (4, 8), (4, 8), 50)
    assert found.times((1,), 16) == (2.0, 0.0)


def test_deepspeech2_uses_no_more_than_57_on_rtx(tmp_path: Path) -> None:
    path = numbered("deepspeech2", tmp_path, 80)
    rows = ("placement,local_bsz,step_time,sync_time", "1,10,1,0", "1,80,2,0")
    for kind in ("rtx", "aws"):
        write(path / f"placements-{kind}.csv", rows)
        write(path / f"scalability-{kind}.csv", ("num_nodes,num_replicas,local_bsz,step_time,sync_time", "1,1,10,1,0"))
    found = Application(path)
    assert (found.limits("2080ti"), found.limits("t4")) == ((10, 57), (10, 80))


def test_ncf_has_one_batch_and_one_gpu(tmp_path: Path) -> None:
    found = Application(numbered("ncf", tmp_path, 10, "validation-32768.csv"))
    assert (found.fixed_batch, found.most_replicas, found.epochs) == (32768, 1, 10)
    with pytest.raises(UsageError, match="ncf runs at a batch size of 32768, but was measured up to 60"):
        Application(numbered("ncf", tmp_path / "short", 10))


def test_a_known_application_with_missing_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"validation-20.csv of cifar10 has 99 epochs, expected 100"):
        Application(numbered("cifar10", tmp_path, 99))

"""The last minutes of GPUs, as `gpq top` keeps them."""

import io

import msgspec
import pytest

from gpq.rpc import node_answers
from gpq.views.utilisation import PIECE, PIECES, Past, spark
from tests.cli import served


@pytest.fixture(autouse=True)
def unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


def busy(percent: int | None) -> list[node_answers.NodeView]:
    [node, _] = served.nodes()
    devices = [msgspec.structs.replace(device, utilisation=percent, used_mib=40960) for device in node.devices]
    return [msgspec.structs.replace(node, devices=devices)]


def test_an_interval_is_the_mean_of_its_samples_and_only_the_last_are_kept() -> None:
    past = Past()
    for second in range(round(PIECE * 3)):
        past.note(busy(60 if second % 2 else 80), [], float(second))
    assert past.utilisation("a", "GPU-0") == "▆▆▆".rjust(10)
    assert past.memory("a", "GPU-0") == "▅▅▅".rjust(5)
    assert past.server("a") == "▆▆▆".rjust(10)
    for piece in range(100):
        past.note(busy(100), [], 100 + piece * PIECE)
    assert past.utilisation("a", "GPU-0", 100) == ("█" * PIECES).rjust(100)


def test_unmeasured_and_removed_gpus_have_no_past() -> None:
    past = Past()
    past.note(busy(None), [served.job(1), served.job(2)], 0.0)
    assert past.utilisation("a", "GPU-0") == " " * 10
    assert past.owners == {1: "alice"}
    past.note([], [], 1000.0)
    assert past.memory("a", "GPU-0") == " " * 5
    assert past.owners == {}
    assert past.server("a") == " " * 10


def test_an_owner_is_known_by_job_or_process_even_if_a_filter_hides_the_job() -> None:
    past = Past()
    past.note(served.nodes(), [], 0.0)
    assert past.owners == {1: "alice"}
    past.note(served.nodes(), [served.job(1, user="ana")], 1.0)
    past.note(served.nodes(), [], 2.0)
    assert past.owners == {1: "ana"}


def test_a_spark_fits_and_needs_no_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark([0.0, 0.5, 1.0, 7.0], 3) == "▅██"
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert spark([0.0, 1.0], 4) == "  _#"

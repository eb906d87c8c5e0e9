"""Simulated runs on the screen: they fit every width, JSON and CSV have everything, and the figure is the same each
time."""

from __future__ import annotations

import csv
import io
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from rich.console import Console

from gpq.core.model.accounts import Saving
from gpq.errors import UsageError
from gpq.lab import comparison, plot
from gpq.lab.simulator.compare import Block
from gpq.lab.simulator.outcomes import JobOutcome, Outcome, Summary
from gpq.policies.registry import POLICIES
from tests.cli.served import EVIL
from tests.support.measured import write

TO_GO = ("TOOK", "ROUND MAX", "ROUND", "JOBS", "GAIN H", "GOODPUT", "GPU H", "RESTARTS", "MEDIAN", "RHO P95", "RHO>1", "MAKESPAN",
         "P99", "SEED", "RHO MAX", "CLUSTER")  # fmt: skip


def job(name: str, at: float, took: float, gpus: int = 2, rho: float | None = 0.9) -> JobOutcome:
    sizes = ((at + 10, gpus), (at + 20, 1))
    return JobOutcome(name, "tiny", "ana", at, at + 10, at + took, 1, took * gpus, rho, sizes, Saving(600.0, 480.0))


def outcome(policy: str = "goodput", workload: str = "w", seed: int = 0, slower: float = 1.0) -> Outcome:
    jobs = (job("a", 0.0, 100.0 * slower), job("b", 50.0, 300.0 * slower, rho=1.3), job("c", 60.0, 200.0, rho=None))
    return Outcome(policy, workload, seed, 8, jobs, (0.001, 0.003, 0.002), 3.5, 1.25)


def blocks(*clusters: str) -> list[Block]:
    runs = [
        outcome(policy, workload, seed, slower)
        for policy, slower in (("goodput", 1.0), ("fifo", 2.0))
        for workload in ("v", "w")
        for seed in (0, 1)
    ]
    return [Block(cluster, tuple(runs)) for cluster in clusters]


def drawn(found: list[Block], width: int, *, colour: bool = False) -> list[str]:
    stream = io.StringIO()
    system = "standard" if colour else None
    console = Console(file=stream, width=width, force_terminal=colour, color_system=system)  # type: ignore[arg-type]
    console.print(comparison.picture(found, width))
    return stream.getvalue().splitlines()


def titles(lines: list[str]) -> list[str]:
    return re.split(r" {2,}", lines[0].strip())


def test_columns_are_dropped_in_order_and_no_line_is_wider_than_the_terminal() -> None:
    runs = (outcome(seed=0), outcome("fifo", seed=1))  # few, since there are many widths
    found = [Block(cluster, runs) for cluster in ("1x4", "2x4")]
    full = titles(drawn(found, 300))
    assert set(TO_GO) <= set(full)
    gone: list[str] = []
    for width in range(220, 20, -3):
        lines = drawn(found, width)
        assert max(map(len, lines)) <= width
        gone += [title for title in full if title not in titles(lines) and title not in gone]
    assert tuple(gone[: len(TO_GO)]) == TO_GO


def test_means_follow_if_a_policy_has_several_runs() -> None:
    lines = drawn(blocks("1x4"), 200)
    assert sum(line.startswith("POLICY") for line in lines) == 2
    assert any("4 runs" in line for line in lines)
    assert "CLUSTER" not in lines[0]
    one = drawn([Block("1x4", (outcome(), outcome("fifo")))], 200)
    assert sum(line.startswith("POLICY") for line in one) == 1
    assert "SEED" not in one[0]


def test_omitted_columns_are_named_in_one_line() -> None:
    full = set(titles(drawn(blocks("1x4", "2x4"), 300)))
    for width in (60, 80, 100, 120, 300):
        lines = drawn(blocks("1x4", "2x4"), width)
        shown = set(titles(lines))
        said = " ".join(" ".join(lines).split()).partition("left out at width")[2]
        gone = said.partition(": ")[2].partition(" (")[0].split(", ") if said else []
        assert set(filter(None, gone)) == full - shown
        assert said.startswith(f" {width}: ") or not gone


def test_the_legend_names_only_visible_columns() -> None:
    for width in range(40, 200, 7):
        lines = drawn(blocks("1x4"), width)
        said = " ".join(" ".join(lines).split()).partition("means over")[2]
        legend = said.partition("(")[2].partition(": the worst)")[0]
        table = titles(lines[max(index for index, line in enumerate(lines) if line.startswith("POLICY")) :])
        assert ("ROUND MAX" in legend, "RHO MAX" in legend) == ("ROUND MAX" in table, "RHO MAX" in table), width


def test_figures_have_units() -> None:
    [head, row] = drawn([Block("1x4", (outcome(),))], 200)
    cells = dict(zip(titles([head]), re.split(r" {2,}", row.strip()), strict=True))
    assert cells == {
        "POLICY": "goodput", "WORKLOAD": "w", "JOBS": "3", "MEAN": "3m20s", "MEDIAN": "3m20s", "P99": "4m58s",
        "MAKESPAN": "5m50s", "RHO P95": "1.28", "RHO MAX": "1.30", "RHO>1": "50%", "RESTARTS": "1.0", "GAIN H": "0.400 of 0.500",
        "GPU H": "0.333", "GOODPUT": "3.50x", "ROUND": "2.00ms", "ROUND MAX": "3.00ms", "TOOK": "1.2s",
    }  # fmt: skip


def test_the_smallest_mean_of_a_workload_is_green() -> None:
    lines = drawn([Block("1x4", (outcome(), outcome("fifo", slower=2.0)))], 200, colour=True)
    assert "\x1b[32m" in lines[1]
    assert "\x1b[32m" not in lines[2]


def test_names_are_escaped() -> None:
    text = "\n".join(drawn([Block("1x4", (outcome(workload=EVIL), outcome("fifo", workload="v")))], 300))
    assert "\x1b" not in text
    assert "\\x1b" in text


def test_json_has_every_figure_of_every_run_and_the_means() -> None:
    found = comparison.document(blocks("1x4", "2x4"))
    assert found["schema"] == 1
    assert len(found["runs"]) == 16
    names = {field.name for field in fields(Summary)}
    assert all(set(run) == {"cluster", *names} for run in found["runs"])
    assert [(mean["cluster"], mean["policy"], mean["runs"]) for mean in found["means"]] == [
        ("1x4", "goodput", 4), ("1x4", "fifo", 4), ("2x4", "goodput", 4), ("2x4", "fifo", 4),
    ]  # fmt: skip
    assert found["means"][1]["avg_jct"] == pytest.approx(sum(run["avg_jct"] for run in found["runs"][4:8]) / 4)


def test_csv_agrees_with_json() -> None:
    found = blocks("1x4", "2x4")
    rows = list(csv.DictReader(io.StringIO(comparison.csv_text(found))))
    runs = comparison.document(found)["runs"]
    assert [{key: str(value) for key, value in run.items()} for run in runs] == rows


def test_gpus_over_time_cover_each_job_until_its_end() -> None:
    moments, held = plot.gpus_over_time([job("a", 0.0, 100.0), job("b", 50.0, 300.0, gpus=4)])
    assert moments.tolist() == [10.0, 20.0, 60.0, 70.0, 100.0, 350.0]
    assert held.tolist() == [[2, 1, 1, 1, 0, 0], [0, 0, 4, 1, 1, 0]]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_same_runs_give_the_same_figure(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        plot.draw(blocks("1x4", "2x4"), str(tmp_path / f"{name}.{ending}"))
    first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b"))
    assert first == second
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    plot.draw(blocks("1x4"), str(tmp_path / f"c.{ending}"))
    assert (tmp_path / f"c.{ending}").read_bytes() != first


@pytest.mark.parametrize(("path", "said"), [("x.pdf", "cannot draw .pdf"), ("x", "without an extension"),
                                            ("/nowhere/x.svg", "/nowhere/x.svg: cannot write there")])  # fmt: skip
def test_an_impossible_figure_is_refused_before_anything_runs(path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plot.check(path)


def test_without_matplotlib_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    write(tmp_path / "matplotlib" / "__init__.py", ["raise AttributeError('_ARRAY_API not found')"])
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"needs matplotlib, .* AttributeError: _ARRAY_API not found") as caught:
        plot.check(str(tmp_path / "x.svg"))
    assert caught.value.hint == "pip install 'goodput-queue[plot]'"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="needs matplotlib, which cannot be imported: ModuleNotFoundError"):
        plot.check(str(tmp_path / "x.svg"))


def test_many_policies_are_distinguishable_and_all_are_in_the_legend(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = list(POLICIES)
    runs = [outcome(name, slower=1.0 + index / 7) for index, name in enumerate(names)]
    path = tmp_path / "many.svg"
    plot.draw([Block("16x4", tuple(runs)), Block("8x8", tuple(runs))], str(path))
    text = path.read_text()
    labels = [f"{name}, {cluster}" for cluster in ("16x4", "8x8") for name in names]
    assert all(f"<!-- {label} -->" in text for label in labels)
    looks = plot._looks(len(labels))
    assert len(set(looks)) == len(labels) == 2 * len(names)
    plot.draw([Block("16x4", tuple(runs[:2]))], str(tmp_path / "few.svg"))
    high, low = (float(re.search(r'height="([0-9.]+)pt"', (tmp_path / f"{name}.svg").read_text())[1])  # type: ignore[index]
                 for name in ("many", "few"))  # fmt: skip
    assert high > low

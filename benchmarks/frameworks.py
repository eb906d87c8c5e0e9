"""What a resize does to a training by a framework: with the framework's own resume, and under gpq.

    python benchmarks/frameworks.py [accelerate] [transformers] [lightning]    # all without a name
    python benchmarks/frameworks.py --overhead                                 # time of a step

1,200 examples, two epochs, 2 -> 1 -> 3 -> 2 processes, each stopped in mid-epoch. Each half is
compared with the same script undisturbed on two processes: examples missed and doubled, optimizer
steps and their learning rates, and the largest difference of a weight. Examples are counted by
their weight in the gradients that an optimizer applied. gpq's half must lose nothing and differ by
at most 1e-5.

`--overhead` runs the script on one process with and without gpq in turn. The ratio of the medians
of their steps must be at most 1.02.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import runpy
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
AGENT = Path(os.environ.get("AGENT", ROOT / "agent"))
sys.path[:0] = [str(ROOT), str(AGENT)]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the replicas
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Otherwise a step pays for the pages of gradients that it frees, and less so under gpq.
os.environ |= {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "1073741824"}

import torch  # noqa: E402
from gpq_agent import wire  # noqa: E402

from tests.support.ports import free_port  # noqa: E402

FRAMEWORKS = {
    "accelerate": "accelerate",
    "transformers": "transformers.trainer",
    "lightning": "lightning.pytorch",
}
REPLICAS = (2, 1, 3, 2)
STOPS = (40, 70, 60, 0)  # after this many steps of the attempt
EXAMPLES, EPOCHS = 1200, 2
BAR, OVERHEAD_BAR = 1e-5, 1.02
WARMUP = 50  # steps that --overhead leaves out
DEADLINE = 300.0  # seconds
FORKSERVER = multiprocessing.get_context("forkserver")


class Job:
    """A script, with gpq or without, and its attempts."""

    def __init__(self, folder: Path, framework: str, *, gpq: bool, **settings: int) -> None:
        self.out, self.gpq, self.settings = folder, gpq, settings
        self.script = str(ROOT / "benchmarks/framework_scripts" / f"{framework}_script.py")
        (folder / "checkpoints").mkdir(parents=True)
        self.steps: list[dict[str, Any]] = []  # of all attempts, by the first replica

    def attempt(self, number: int, replicas: int, stop_after: int = 0) -> Job:
        """Run one attempt to its end, or until a stop after this many steps."""
        run_dir = self.out / f"attempt-{number}"
        run_dir.mkdir()
        settings = {"out": str(self.out), "gpq": self.gpq, "attempt": number, **self.settings}
        if not self.gpq:
            settings["stop_after"] = stop_after
        port = str(free_port())
        processes = []
        for rank in range(replicas):
            environment = {"SETTINGS": json.dumps(settings)}
            if self.gpq:
                environment |= {
                    wire.ENV_RUN_DIR: str(run_dir),
                    wire.ENV_CHECKPOINT_DIR: str(self.out / "checkpoints"),
                    wire.ENV_ATTEMPT: str(number),
                    wire.ENV_RESUME: str(int(number > 1)),
                }
            if replicas > 1:
                environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                environment |= {"WORLD_SIZE": str(replicas), "LOCAL_WORLD_SIZE": str(replicas)}
                environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            order_after = stop_after if self.gpq and rank == 0 else 0
            arguments = (environment, self.script, order_after, f"{run_dir}/log.{rank}")
            processes.append(FORKSERVER.Process(target=replica, args=arguments))
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(DEADLINE)
            codes = [process.exitcode for process in processes]
            if any(codes):
                log = (run_dir / "log.0").read_text()
                raise SystemExit(f"{log}\n{self.script}, attempt {number}: exit codes {codes}")
        finally:
            for process in processes:
                process.kill()
        lines = (self.out / f"steps.{number}.0").read_text().splitlines()
        self.steps += map(json.loads, lines)
        return self

    @property
    def rates(self) -> list[float]:
        return [step["rate"] for step in self.steps]

    def visits(self) -> Counter[tuple[int, int]]:
        """How often an optimizer applied an example in an epoch."""
        return Counter((step["epoch"], example) for step in self.steps for example in step["seen"])

    def weights(self) -> dict[str, torch.Tensor]:
        weights: dict[str, torch.Tensor] = torch.load(self.out / "weights.pt", weights_only=True)
        return weights


def replica(environment: Mapping[str, str], script: str, order_after: int, log: str) -> None:
    """Main function of a forked process: run the script as if started."""
    output = os.open(log, os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)
    sys.argv = [script, os.environ["SETTINGS"]]
    if order_after:
        order_to_stop(environment, order_after)
    runpy.run_path(script, run_name="__main__")


def order_to_stop(environment: Mapping[str, str], after: int) -> None:
    """Write gpq's order to stop after this many steps of an optimizer."""
    from gpq_agent.train.loop import boundary
    from torch.optim.optimizer import register_optimizer_step_post_hook

    vars(boundary).update(AGREE_SECONDS=0.0)  # obey at the next step
    control = wire.Control(attempt=int(environment[wire.ENV_ATTEMPT]), seq=1, stop=True)
    path = os.path.join(environment[wire.ENV_RUN_DIR], wire.CONTROL)
    steps = 0

    def stepped(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == after:
            wire.write_json(path, control._asdict())

    register_optimizer_step_post_hook(stepped)


def resizes(framework: str) -> list[dict[str, Any]]:
    """A row for the framework's own resume, and one for gpq's."""
    rows = []
    rates: list[float] = []  # of the framework undisturbed
    for gpq in (False, True):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            undisturbed = Job(folder / "undisturbed", framework, gpq=gpq).attempt(1, REPLICAS[0])
            rates = rates or undisturbed.rates
            resized = Job(folder / "resized", framework, gpq=gpq)
            for number, (replicas, stop) in enumerate(zip(REPLICAS, STOPS, strict=True), start=1):
                resized.attempt(number, replicas, stop)
            rows.append(
                {"framework": framework, "gpq": gpq, **compare(resized, undisturbed, rates)}
            )
    return rows


def compare(resized: Job, undisturbed: Job, rates: Sequence[float]) -> dict[str, Any]:
    """Figures of a row. `rates`: what the framework alone has without a stop."""
    visits = resized.visits()
    wanted = [(epoch, example) for epoch in range(EPOCHS) for example in range(EXAMPLES)]
    expected = undisturbed.weights()
    weights = resized.weights()
    same = sum(abs(a - b) <= 1e-9 for a, b in zip(resized.rates, rates, strict=False))
    return {
        "missed": sum(not visits[visit] for visit in wanted),
        "doubled": sum(count - 1 for count in visits.values() if count),
        "steps": len(resized.rates),
        "steps_undisturbed": len(rates),
        "rates": max(len(resized.rates), len(rates)) - same,
        "difference": max(float((weights[key] - expected[key]).abs().max()) for key in expected),
    }


def show(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, in Markdown."""
    lines = [
        "| script | resumed by | missed | doubled | steps | other rates | weights differ by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        way = "gpq" if row["gpq"] else "the framework"
        lines.append(
            f"| {row['framework']} | {way} | {row['missed']} | {row['doubled']} |"
            f" {row['steps']} of {row['steps_undisturbed']} | {row['rates']} |"
            f" {row['difference']:.1e} |"
        )
    return "\n".join(lines)


def is_exact(row: Mapping[str, Any]) -> bool:
    is_complete = row["missed"] == row["doubled"] == row["rates"] == 0
    return is_complete and row["difference"] <= BAR


def overhead(framework: str, pairs: int, width: int) -> float:
    """Median time of a step under gpq, divided by that without. Prints it with that of CPU time,
    which other processes of the machine disturb less."""
    times: dict[tuple[str, bool], list[float]] = {}
    for pair in range(pairs):
        for gpq in (pair % 2 == 0, pair % 2 == 1):
            with tempfile.TemporaryDirectory() as name:
                job = Job(Path(name) / "job", framework, gpq=gpq, width=width, epochs=1)
                steps = job.attempt(1, 1).steps[WARMUP:]
            for clock in ("time", "cpu"):
                taken = [b[clock] - a[clock] for a, b in itertools.pairwise(steps)]
                times.setdefault((clock, gpq), []).extend(taken)
    medians = {key: statistics.median(values) for key, values in times.items()}
    wall, cpu = (medians[clock, True] / medians[clock, False] for clock in ("time", "cpu"))
    plain, with_gpq = 1e3 * medians["time", False], 1e3 * medians["time", True]
    figures = f"a step {plain:.2f} ms, under gpq {with_gpq:.2f} ms"
    print(f"{framework}: {figures}, {wall - 1:+.1%}, CPU time {cpu - 1:+.1%}", flush=True)
    return wall


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("frameworks", nargs="*", choices=[[], *FRAMEWORKS], metavar="FRAMEWORK")
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--pairs", type=int, default=4, help="runs of each kind for --overhead")
    parser.add_argument("--width", type=int, default=1024, help="of the layers for --overhead")
    options = parser.parse_args()
    frameworks = options.frameworks or list(FRAMEWORKS)
    modules = [FRAMEWORKS[framework] for framework in frameworks]
    FORKSERVER.set_forkserver_preload(["__main__", "torch", "torch._dynamo", *modules])
    if options.overhead:
        ratios = [overhead(name, options.pairs, options.width) for name in frameworks]
        return 0 if max(ratios) <= OVERHEAD_BAR else 1
    rows = [row for framework in frameworks for row in resizes(framework)]
    print(show(rows))
    return 0 if all(is_exact(row) for row in rows if row["gpq"]) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The same kinds and workloads for `gpq simulate`.

Each kind is trained to its end at every batch size, by AdaScale, without gpq's daemon and without
sleeping. Step times come from the model. A command is an application that takes one second a step
on any GPUs.
"""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from zlib import crc32

import torch
from gpq_agent.train.gradients.noise_scale import NoiseScale
from torch import nn

from benchmarks.lab.kinds import KINDS, Kind
from benchmarks.lab.run import INTERVAL, RESTART, SERVERS, SLOTS
from benchmarks.lab.train import POOL, accuracy, examples, network, sgd
from benchmarks.lab.workloads import COMMAND, WORKLOADS

SEED = 1  # of the data and the model that stand for all jobs of a kind
ROWS = 20  # of a trace: equal parts of the training
PARTS = 4  # micro-gradients of a step
GROWTH = 1.5  # from one micro-batch of the step times to the next
COMMAND_BATCHES = (1, 32, 1024)
LAST_FILE = "scalability.csv"  # of the measurements of an application
VALIDATION = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
STEP_TIMES = ("local_bsz", "step_time", "sync_time")


def train(kind: Kind, batch: int, seed: int = SEED) -> list[tuple[float, ...]]:
    """Rows of VALIDATION. `grad_var`: at the base batch size."""
    training, held_out = examples(kind, seed)
    torch.manual_seed(seed)
    model = network(kind)
    parameters = list(model.parameters())
    optimizer = sgd(kind, model)
    noise = NoiseScale(kind.base, 0)
    progress, step, rows = 0.0, 0, []
    for row in range(1, ROWS + 1):
        end, sums, first = kind.epochs * kind.steps * row / ROWS, [0.0, 0.0], step
        while step == first or progress < end:
            places = torch.randint(POOL, (batch,))
            micros = []
            for part in places.chunk(PARTS):
                loss = nn.functional.cross_entropy(
                    model(training.inputs[part]), training.labels[part]
                )
                micros.append(nn.utils.parameters_to_vector(torch.autograd.grad(loss, parameters)))
            gradients = torch.stack(micros)
            mean = gradients.mean(0)
            local = float(gradients.square().sum(1).mean())
            noise.observe(local, float(mean.square().sum()), batch=batch / PARTS, count=PARTS)
            gain = noise.gain(batch)
            ends = itertools.accumulate(parameter.numel() for parameter in parameters)
            for parameter, place in zip(parameters, ends, strict=True):
                flat = mean[place - parameter.numel() : place]
                parameter.grad = flat.view_as(parameter)
            optimizer.param_groups[0]["lr"] = kind.lr * gain
            optimizer.step()
            progress, step = progress + gain, step + 1
            sums = [sums[0] + noise.sqr, sums[1] + noise.var / kind.base]
        count = step - first
        score = accuracy(model, held_out)
        rows.append((end, step, score, sums[0] / count, sums[1] / count))
    return rows


def batches(kind: Kind) -> list[int]:
    return [kind.base << power for power in range((kind.most // kind.base).bit_length())]


def write_kind(folder: Path, kind: Kind) -> str:
    """The measurements of a kind. Returns its accuracies by batch size, in words."""
    words = []
    for batch in batches(kind):
        rows = train(kind, batch)
        _write(folder / f"validation-{batch}.csv", VALIDATION, rows)
        words.append(f"{rows[-1][2]:.3f} in {rows[-1][1]} steps of {batch}")
    steps, sizes = kind.model, []
    size = 1.0
    while size < kind.local:
        sizes.append(round(size))
        size *= GROWTH
    times = {}
    for servers in range(1, SERVERS + 1):
        for counts in itertools.product(range(1, SLOTS + 1), repeat=servers):
            # As the simulator sees it: servers in a ring, the fewest GPUs first.
            ring = min(counts[place:] + counts[:place] for place in range(servers))
            times[ring] = [
                (m, step := steps.step(servers, sum(counts), m), step - steps.grad(m))
                for m in sorted({*sizes, kind.local})
            ]
    _write_times(folder, times)
    return ", ".join(words)


def write_command(folder: Path, seconds: float) -> None:
    rows = [
        (seconds * row / ROWS, seconds * row / ROWS, row, 1.0, 1.0) for row in range(1, ROWS + 1)
    ]
    _write(folder / f"validation-{COMMAND_BATCHES[-1]}.csv", VALIDATION, rows)
    shapes = itertools.product(range(1, SLOTS + 1), range(1, SERVERS + 1))
    rings = [(count,) * servers for count, servers in shapes]
    _write_times(folder, {ring: [(size, 1.0, 0.0) for size in COMMAND_BATCHES] for ring in rings})


def write_workload(name: str, traces: Path) -> Path:
    """With the measurements that are missing: a minute for each kind."""
    rows = []
    for job in WORKLOADS[name]:
        application, batch = f"{COMMAND}-{job.seconds:g}", COMMAND_BATCHES[-1]
        if job.kind == COMMAND:
            write_command(traces / application, job.seconds)
        else:
            kind = KINDS[job.kind]
            application = f"{job.kind}-{crc32(repr(kind).encode()):08x}"
            if not (traces / application / LAST_FILE).exists():
                print(f"{job.kind}: {write_kind(traces / application, kind)}", flush=True)
            batch = best_batch(traces / application, kind, job.gpus)
        category = "rigid" if job.fixed else "adaptive"
        rows.append((job.name, job.at, application, job.gpus, batch, category))
    file = traces / f"{name}.csv"
    _write(file, ("name", "time", "application", "num_replicas", "batch_size", "category"), rows)
    return file


def best_batch(folder: Path, kind: Kind, gpus: int) -> int:
    """The best on as many GPUs half-way through the training. In the simulator a job of fixed size
    keeps it, while the daemon would find it by itself."""
    with open(folder / f"validation-{kind.base}.csv") as stream:
        row = list(csv.DictReader(stream))[ROWS // 2]
    sqr, var = float(row["grad_sqr"]), float(row["grad_var"])

    def goodput(batch: int) -> float:
        micros = -(-batch // (kind.local * gpus))
        m = batch / gpus / micros
        seconds = (micros - 1) * kind.model.grad(m) + kind.model.step(-(-gpus // SLOTS), gpus, m)
        return (var + sqr) / (var * kind.base / batch + sqr) / seconds

    return max(range(kind.base, kind.most + 1, max(kind.base // 8, 1)), key=goodput)


def simulate(workload: str, policies: Sequence[str], traces: Path) -> dict[str, dict[str, float]]:
    """By policy, the row of `gpq simulate --json`."""
    file = write_workload(workload, traces)
    words = (
        f"simulate {file} --traces {traces} --nodes {SERVERS}x{SLOTS} --policy {','.join(policies)}"
    )
    words += f" --interval {INTERVAL} --restart {RESTART} --events --priors --known-length --json"
    argv = [sys.executable, "-m", "gpq", *words.split()]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    return {row["policy"]: row for row in json.loads(done.stdout)["runs"]}


def _write_times(folder: Path, times: dict[tuple[int, ...], list[tuple[float, ...]]]) -> None:
    rows = [("".join(map(str, ring)), *row) for ring, many in times.items() for row in many]
    _write(folder / "placements.csv", ("placement", *STEP_TIMES), rows)
    whole = {len(ring): many for ring, many in times.items() if set(ring) == {SLOTS}}
    rows = [(servers, servers * SLOTS, *row) for servers, many in whole.items() for row in many]
    _write(folder / LAST_FILE, ("num_nodes", "num_replicas", *STEP_TIMES), rows)


def _write(file: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([columns, *rows])

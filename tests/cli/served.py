"""A daemon's socket in this process, answering with real message types from made data; what it was asked is kept.

For what the command line prints of things that take hours or GPUs to bring about. What needs only a daemon runs one.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpq.daemon.server import Peer, Server
from gpq.errors import NotFound
from gpq.rpc import messages as m

NOW = "2026-03-01T12:00:00.000Z"
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202egpj.exe\x9b1m"  # OSC 52, erase, bidi override, C1 CSI


def job(number: int, state: str = "running", **changes: object) -> m.JobView:
    """A row like those of a busy queue."""
    running = state == "running"
    row = m.JobView(
        id=number, name=f"train-{number}", user="alice", state=state, reason="" if running else "waits for 2 GPUs: 8 in use",
        level="adaptive", gpus=2 if running else 0, placement=[m.PartView("a", ["GPU-0", "GPU-1"], [0, 1])] if running else [],
        total_batch=256 if running else 0, atomic_batch=64, accum_steps=1, goodput=123.4 if running else None,
        throughput=201.0 if running else None, efficiency=0.61 if running else None, speedup=1.25 if running else None,
        rho=0.8 if running else None, progress=0.42 if running else None, eta_seconds=3725.0 if running else None,
        age_seconds=5400.0, run_seconds=5000.0, submitted_at=NOW, started_at=NOW if running else None, ended_at=None, attempt=1,
        restarts=1, resizes=1, batch_changes=3, exit_status=None, command="train.py --epochs 10",
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def nodes() -> list[m.NodeView]:
    """Two servers: one with GPUs in use, one a foreign process and a lost GPU."""
    mine = m.ProcessView(100, "alice", "python", 20000, 1)
    foreign = m.ProcessView(200, "bob", "jupyter", 3000, None)

    def gpu(index: int, state: str, reason: str, held: int | None, running: list[m.ProcessView]) -> m.DeviceView:
        return m.DeviceView(
            f"GPU-{index}",
            index,
            "cuda",
            "NVIDIA A100-SXM4-80GB",
            81920,
            20480,
            97 if held else 0,
            state,
            reason,
            held,
            running,
        )

    return [
        m.NodeView("a", "up", "", 64, 515000, 1.2, [gpu(0, "ok", "", 1, [mine]), gpu(1, "ok", "", 1, [mine])]),
        m.NodeView(
            "b", "unreachable", "no answer", 32, 257000, 75.0,
            [gpu(0, "foreign", "", None, [foreign]), gpu(1, "lost", "it fell off the bus", None, [])],
        ),
    ]  # fmt: skip


def events() -> list[m.EventView]:
    return [
        m.EventView(NOW, "Launched", 1, 2, "2 GPUs instead of 1: goodput 123 instead of 71, a restart costs 12 s"),
        m.EventView(NOW, "Retuned", 1, 1, "total batch 256 instead of 128: 14% more goodput"),
    ]


def spec() -> m.SpecMessage:
    return m.SpecMessage(
        argv=["/home/alice/train.py", "--epochs", "10"], cwd="/home/alice", level="script", name="train-1"
    )


def curve() -> list[m.CurvePoint]:
    return [m.CurvePoint(1, 71.0, 128, 1.0), m.CurvePoint(2, 123.4, 256, 1.74, True), m.CurvePoint(4, 180.0, 512, 2.54)]


def detail(row: m.JobView) -> m.JobDetail:
    return m.JobDetail(
        job=row, spec=spec(),
        attempts=[
            m.AttemptView(1, [m.PartView("a", ["GPU-0"], [0])], NOW, NOW, "stopped (resize)", "starts with 1 GPU"),
            m.AttemptView(2, row.placement, NOW, None, "", "2 GPUs instead of 1"),
        ],
        curve=curve(), noise_scale=812.0, model={"alpha_grad": 0.01, "beta_grad": 0.002}, rows=7, metrics={"loss": 0.125},
        checkpoints=4, restart_seconds=12.0, gpu_seconds=7200.0, notices=[], history=events(), learning_rate_rule="adascale",
        ranks=[
            m.RankView(0, "a", "GPU-0", 0, 0.0812, 0.0901, 0.1503, 0.39, 0.02),
            m.RankView(1, "a", "GPU-1", 1, 0.1466, 0.1702, 0.1503, 0.01, 0.31, True, 57, "computing", "rank 1 is slow"),
        ],
        fair_share=1.6, losses=[m.LossView(120.0 * step, 2.31 * 0.97**step) for step in range(1, 101)],
    )  # fmt: skip


def explanation(row: m.JobView) -> m.Explanation:
    return m.Explanation(
        row.id, row.state, "2 GPUs pay best", ["4 would give 1.46x"], ["it grows when others leave"], NOW, curve()
    )


def top() -> m.TopView:
    return m.TopView(
        nodes=nodes(), jobs=[job(1), job(2, "pending")], users=[m.UserShare("alice", 2, 2, 1.0, 0.5, 1.25, 0.8, 7200.0)],
        changes=events(), policy="goodput", round_seconds=0.004, round_age=12.0, cluster_goodput=123.4, now=NOW,
    )  # fmt: skip


class Made:
    """Answers requests from `rows`; keeps them in `asked`."""

    def __init__(self, rows: list[m.JobView]) -> None:
        self.rows = rows
        self.asked: list[m.Request] = []
        self.silent: dict[int, str] = {}  # attempts whose server cannot be asked
        self.mute = 0  # requests for a log that find the only server silent
        self.logs = {1: b"first\n", 2: b"second " + EVIL.encode() + b"\x1b[31mred\x1b[0m\n"}

    def __call__(self, request: m.Request, peer: Peer) -> msgspec.Struct:
        self.asked.append(request)
        match request:
            case m.Status(jobs=[*named]) if any(str(row.id) in named for row in self.rows):
                rows = [row for row in self.rows if str(row.id) in named]
                return m.JobList(rows, len(self.rows), now=NOW)
            case m.Status():
                return m.JobList(self.rows, len(self.rows), hidden=7, now=NOW)
            case m.Wait():
                return m.JobList(self.rows, len(self.rows), now=NOW)
            case m.Show():
                return detail(self._one(request.job))
            case m.Why():
                row = self._one(request.job)
                return m.Explanation(
                    row.id, row.state, "2 GPUs pay best", ["4 would give 1.46x"], ["more users leave"], NOW, curve()
                )
            case m.Nodes():
                return m.NodeList(nodes())
            case m.Top():
                return top()
            case m.Complete():
                words = [(str(row.id), f"{row.name} {row.state}") for row in self.rows]
                return m.Words([word for word in words if word[0].startswith(request.prefix)])
            case m.Logs():
                number = request.attempt or 1
                if self.mute:
                    self.mute -= 1
                    said = "node a does not answer"
                    return m.LogChunk(1, "a", "", request.offset, False, [1], ["a"], "running", said)
                if number in self.silent:
                    said = self.silent[number]
                    return m.LogChunk(number, "a", "", request.offset, False, [1, 2], ["a"], "completed", said)
                data = self.logs[number][request.offset : request.offset + 5]
                text = base64.b64encode(data).decode()
                return m.LogChunk(number, "a", text, request.offset + len(data), not data, [1, 2], ["a"], "completed")
            case m.Submit(dry_run=True):
                return m.DryRun("starting", [m.PartView("a", ["GPU-0"], [0])], ["1 GPU is free"])
            case m.Submit(array=m.ArrayMessage()):
                count = len(request.array.indices)
                return m.Submitted(5, request.spec.name, "pending", jobs=list(range(6, 6 + count)))
            case m.Submit():
                return m.Submitted(5, request.spec.name, "pending")
            case m.Cancel():
                return m.CancelResult([1], [2], [3])
            case m.Hold() | m.Edit() | m.Release() | m.Requeue():
                return m.Changed([1], ["job 2 has ended"])
        raise AssertionError(f"{request} is not expected")

    def _one(self, selector: str) -> m.JobView:
        for row in self.rows:
            if selector in (str(row.id), row.name):
                return row
        raise NotFound(f"there is no job {selector}", "`gpq status` lists what there is")


@contextmanager
def serving(home: Path, rows: list[m.JobView]) -> Iterator[Made]:
    """A socket in `home` until the end of the block."""
    made = Made(rows)
    server = Server(str(home / "gpq.sock"), made)
    server.start()
    try:
        yield made
    finally:
        server.close()

"""A daemon's socket in this process, answering with real message types from made data; what it was asked is kept.

For what the command line prints of things that take hours or GPUs to bring about. What needs only a daemon runs one.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpq.control.answers import query_language
from gpq.daemon.service.server import Peer, Server
from gpq.errors import NotFound
from gpq.rpc import messages as m
from gpq.views.queue import ENDED

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


def top() -> m.TopLook:
    return m.TopLook(
        nodes=nodes(), jobs=[job(1), job(2, "pending")], users=[m.UserShare("alice", 2, 2, 1.0, 0.5, 1.25, 0.8, 7200.0)],
        changes=events(), policy="goodput", round_seconds=0.004, round_age=12.0, cluster_goodput=123.4, now=NOW,
        states={"running": 1, "pending": 1},
    )  # fmt: skip


def ended(number: int, state: str = "completed", **changes: object) -> m.EndedView:
    """A row of history."""
    row = m.EndedView(
        id=number, name=f"train-{number}", user="alice", state=state, exit_status=0 if state == "completed" else 1,
        reason="" if state == "completed" else "exit 1: out of memory", submitted_at=NOW, ended_at="2026-03-01T14:02:00.000Z",
        wait_seconds=95.0, run_seconds=6500.0, gpus=2.5, gpu_hours=4.51, goodput_hours=3.1, restarts=2,
        restart_gpu_hours=0.061, failed_gpu_hours=0.0, rho=0.87, command="train.py --epochs 10",
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def history() -> m.HistoryList:
    old = ended(
        1, "cancelled", exit_status=143, reason="", wait_seconds=None, goodput_hours=None, restart_gpu_hours=None,
        failed_gpu_hours=None, rho=None, restarts=0,
    )  # fmt: skip
    return m.HistoryList([old, ended(2, "failed", rho=None, user="bob"), ended(3)], 39, [], NOW)


def report_row(key: str, **changes: object) -> m.ReportRow:
    row = m.ReportRow(
        key=key, user="", name="", jobs=12, completed=9, failed=2, cancelled=1, timeout=0, gpu_hours=51.2, goodput_hours=30.1,
        known_gpu_hours=45.0, efficiency=30.1 / 45.0, share=0.64, fair_share=0.5, waits=12, wait_median_seconds=95.0,
        wait_p95_seconds=4000.0, restarts=7, restart_gpu_hours=0.42, failed_gpu_hours=1.3, rhos=9, rho_median=0.91, rho_max=1.8,
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def report(by: str = "user", user: str = "alice") -> m.ReportView:
    """Two users over three days."""
    other = report_row(
        "bob" if by == "user" else "2", jobs=1, gpu_hours=28.8, goodput_hours=None, known_gpu_hours=0.0, efficiency=None,
        share=0.36, waits=1, restarts=0, restart_gpu_hours=0.0, failed_gpu_hours=0.0, rhos=0, rho_median=None, rho_max=None,
    )  # fmt: skip
    first = report_row(user if by == "user" else "1")
    if by != "user":
        first, other = (msgspec.structs.replace(row, share=None, fair_share=None) for row in (first, other))
    if by == "job":
        first = msgspec.structs.replace(first, user=user, name="train")
        other = msgspec.structs.replace(other, user="bob")
    pieces = [
        m.Piece(
            f"2026-03-0{day}T00:00:00.000Z", f"2026-03-0{day + 1}T00:00:00.000Z",
            [m.UserPiece("bob", 9.6, 0.0, 13.3), m.UserPiece(user, 17.0 + day, 10.0, 13.3 + day)],
        )
        for day in (1, 2, 3)
    ]  # fmt: skip
    bars = [m.RhoBar(0.0, 0.5, 1), m.RhoBar(0.5, 1.0, 5), m.RhoBar(1.0, 2.0, 3), m.RhoBar(2.0, None, 0)]
    total = report_row("", jobs=13, gpu_hours=80.0, share=None, fair_share=None, waits=13)
    return m.ReportView(
        "2026-03-01T00:00:00.000Z", "2026-03-04T00:00:00.000Z", by, [first, other], total, pieces, bars, NOW
    )


class Made:
    """Answers requests from `rows`; keeps them in `asked`."""

    def __init__(self, rows: list[m.JobView], *, names: bool = False) -> None:
        self.rows = rows
        self.names = names  # among the words of completion
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
            case m.History():
                return history()
            case m.Report():
                return report(request.by)
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
                rows = query_language.parse(request.query).answer(self.rows)
                states = Counter(row.state for row in self.rows if row.state not in ENDED)
                named = [row for row in rows if self._named(row, request.jobs)]
                return msgspec.structs.replace(top(), jobs=named, states=states)
            case m.Complete():
                words = [(str(row.id), f"{row.name} {row.state}") for row in self.rows]
                words += [(row.name, f"{row.id} {row.state}") for row in self.rows if self.names]
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

    def _named(self, row: m.JobView, selectors: list[str]) -> bool:
        return not selectors or str(row.id) in selectors or row.name in selectors

    def _one(self, selector: str) -> m.JobView:
        for row in self.rows:
            if selector in (str(row.id), row.name):
                return row
        raise NotFound(f"there is no job {selector}", "`gpq status` lists what there is")


@contextmanager
def serving(home: Path, rows: list[m.JobView], *, names: bool = False) -> Iterator[Made]:
    """A socket in `home` until the end of the block."""
    made = Made(rows, names=names)
    server = Server(str(home / "gpq.sock"), made)
    server.start()
    try:
        yield made
    finally:
        server.close()

"""A daemon's socket in this process. It answers with real message types from invented data, and it keeps the requests.

Use it to test output that would take hours or GPUs to produce. If a test only needs a daemon, it runs a real one.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpq.control import query_language
from gpq.core.model.accounts import UserShare
from gpq.daemon.server import Server
from gpq.errors import NotFound
from gpq.ports import Peer
from gpq.rpc import account_answers, daemon_answers, job_answers, node_answers, requests
from gpq.views.queue import ENDED

NOW = "2026-03-01T12:00:00.000Z"
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202egpj.exe\x9b1m"  # OSC 52, erase, bidi override, C1 CSI


def job(number: int, state: str = "running", **changes: object) -> job_answers.JobView:
    """A row as in a busy queue."""
    running = state == "running"
    row = job_answers.JobView(
        id=number, name=f"train-{number}", user="alice", state=state, reason="" if running else "waits for 2 GPUs: 8 in use",
        level="adaptive", gpus=2 if running else 0,
        placement=[job_answers.PartView("a", ["GPU-0", "GPU-1"], [0, 1])] if running else [],
        total_batch=256 if running else 0, atomic_batch=64, accum_steps=1, goodput=123.4 if running else None,
        throughput=201.0 if running else None, efficiency=0.61 if running else None, speedup=1.25 if running else None,
        rho=0.8 if running else None, progress=0.42 if running else None, eta_seconds=3725.0 if running else None,
        age_seconds=5400.0, run_seconds=5000.0, submitted_at=NOW, started_at=NOW if running else None, ended_at=None, attempt=1,
        restarts=1, resizes=1, batch_changes=3, exit_status=None, command="train.py --epochs 10",
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def nodes() -> list[node_answers.NodeView]:
    """Two servers: one with GPUs in use, one a foreign process and a lost GPU."""
    mine = node_answers.ProcessView(100, "alice", "python", 20000, 1)
    foreign = node_answers.ProcessView(200, "bob", "jupyter", 3000, None)

    def gpu(
        index: int, state: str, reason: str, held: int | None, running: list[node_answers.ProcessView]
    ) -> node_answers.DeviceView:
        return node_answers.DeviceView(
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
        node_answers.NodeView("a", "up", "", 64, 515000, 1.2, [gpu(0, "ok", "", 1, [mine]), gpu(1, "ok", "", 1, [mine])]),
        node_answers.NodeView(
            "b", "unreachable", "no answer", 32, 257000, 75.0,
            [gpu(0, "foreign", "", None, [foreign]), gpu(1, "lost", "it fell off the bus", None, [])],
        ),
    ]  # fmt: skip


def events() -> list[job_answers.EventView]:
    return [
        job_answers.EventView(
            NOW, "Launched", 1, 2, "2 GPUs instead of 1: goodput 123 instead of 71, a restart costs 12 s"
        ),
        job_answers.EventView(NOW, "Retuned", 1, 1, "total batch 256 instead of 128: 14% more goodput"),
    ]


def spec() -> requests.SpecMessage:
    return requests.SpecMessage(
        argv=["/home/alice/train.py", "--epochs", "10"], cwd="/home/alice", level="script", name="train-1"
    )


def curve() -> list[job_answers.CurvePoint]:
    return [
        job_answers.CurvePoint(1, 71.0, 128, 1.0),
        job_answers.CurvePoint(2, 123.4, 256, 1.74, True),
        job_answers.CurvePoint(4, 180.0, 512, 2.54),
    ]


def detail(row: job_answers.JobView) -> job_answers.JobDetail:
    return job_answers.JobDetail(
        job=row, spec=spec(),
        attempts=[
            job_answers.AttemptView(1, [job_answers.PartView("a", ["GPU-0"], [0])], NOW, NOW,
                "stopped (resize)", "starts with 1 GPU"),
            job_answers.AttemptView(2, row.placement, NOW, None, "", "2 GPUs instead of 1"),
        ],
        curve=curve(), noise_scale=812.0, model={"alpha_grad": 0.01, "beta_grad": 0.002}, rows=7, metrics={"loss": 0.125},
        checkpoints=4, restart_seconds=12.0, gpu_seconds=7200.0, notices=[], history=events(), learning_rate_rule="adascale",
        adapter="accelerate",
        ranks=[
            job_answers.RankView(0, "a", "GPU-0", 0, 0.0812, 0.0901, 0.1503, 0.39, 0.02),
            job_answers.RankView(1, "a", "GPU-1", 1, 0.1466, 0.1702, 0.1503, 0.01, 0.31, True, 57, "computing", "rank 1 is slow"),
        ],
        restart_times=[job_answers.RestartView(2, True, 0.62, 0.1, 1.25, 0.4, 1, 2, 1.84, 1.71)],
        fair_share=1.6, losses=[job_answers.LossView(120.0 * step, 2.31 * 0.97**step) for step in range(1, 101)],
    )  # fmt: skip


def explanation(row: job_answers.JobView) -> job_answers.Explanation:
    return job_answers.Explanation(
        row.id, row.state, "2 GPUs pay best", ["4 would give 1.46x"], ["it grows when others leave"], NOW, curve()
    )


def top() -> daemon_answers.TopLook:
    return daemon_answers.TopLook(
        nodes=nodes(), jobs=[job(1), job(2, "pending")],
        users=[UserShare("alice", 2, 2, 1.0, 0.5, 1.25, 0.8, 7200.0)],
        changes=events(), policy="goodput", round_seconds=0.004, round_age=12.0, cluster_goodput=123.4, now=NOW,
        states={"running": 1, "pending": 1}, promised_hours=1.5, gained_hours=1.23,
    )  # fmt: skip


def ended(number: int, state: str = "completed", **changes: object) -> account_answers.EndedView:
    """A row of the history."""
    row = account_answers.EndedView(
        id=number, name=f"train-{number}", user="alice", state=state, exit_status=0 if state == "completed" else 1,
        reason="" if state == "completed" else "exit 1: out of memory", submitted_at=NOW, ended_at="2026-03-01T14:02:00.000Z",
        wait_seconds=95.0, run_seconds=6500.0, gpus=2.5, gpu_hours=4.51, goodput_hours=3.1, restarts=2,
        restart_gpu_hours=0.061, failed_gpu_hours=0.0, rho=0.87, command="train.py --epochs 10",
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def history() -> account_answers.HistoryList:
    old = ended(
        1, "cancelled", exit_status=143, reason="", wait_seconds=None, goodput_hours=None, restart_gpu_hours=None,
        failed_gpu_hours=None, rho=None, restarts=0,
    )  # fmt: skip
    return account_answers.HistoryList([old, ended(2, "failed", rho=None, user="bob"), ended(3)], 39, [], NOW)


def report_row(key: str, **changes: object) -> account_answers.ReportRow:
    row = account_answers.ReportRow(
        key=key, user="", name="", jobs=12, completed=9, failed=2, cancelled=1, timeout=0, gpu_hours=51.2, goodput_hours=30.1,
        known_gpu_hours=45.0, efficiency=30.1 / 45.0, share=0.64, fair_share=0.5, waits=12, wait_median_seconds=95.0,
        wait_p95_seconds=4000.0, restarts=7, warm_restarts=5, promised_hours=1.5, gained_hours=1.23,
        restart_gpu_hours=0.42, failed_gpu_hours=1.3, rhos=9, rho_median=0.91, rho_max=1.8,
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def report(by: str = "user", user: str = "alice") -> account_answers.ReportView:
    """Two users over three days."""
    other = report_row(
        "bob" if by == "user" else "2", jobs=1, gpu_hours=28.8, goodput_hours=None, known_gpu_hours=0.0, efficiency=None,
        share=0.36, waits=1, restarts=0, warm_restarts=0, promised_hours=0.0, gained_hours=0.0,
        restart_gpu_hours=0.0, failed_gpu_hours=0.0, rhos=0, rho_median=None, rho_max=None,
    )  # fmt: skip
    first = report_row(user if by == "user" else "1")
    if by != "user":
        first, other = (msgspec.structs.replace(row, share=None, fair_share=None) for row in (first, other))
    if by == "job":
        first = msgspec.structs.replace(first, user=user, name="train")
        other = msgspec.structs.replace(other, user="bob")
    pieces = [
        account_answers.Piece(
            f"2026-03-0{day}T00:00:00.000Z", f"2026-03-0{day + 1}T00:00:00.000Z",
            [account_answers.UserPiece("bob", 9.6, 0.0, 13.3), account_answers.UserPiece(user, 17.0 + day, 10.0, 13.3 + day)],
        )
        for day in (1, 2, 3)
    ]  # fmt: skip
    bars = [
        account_answers.RhoBar(0.0, 0.5, 1),
        account_answers.RhoBar(0.5, 1.0, 5),
        account_answers.RhoBar(1.0, 2.0, 3),
        account_answers.RhoBar(2.0, None, 0),
    ]
    total = report_row("", jobs=13, gpu_hours=80.0, share=None, fair_share=None, waits=13)
    return account_answers.ReportView(
        "2026-03-01T00:00:00.000Z", "2026-03-04T00:00:00.000Z", by, [first, other], total, pieces, bars, NOW
    )


class Made:
    """Answers requests from `rows` and keeps them in `asked`."""

    def __init__(self, rows: list[job_answers.JobView], *, names: bool = False) -> None:
        self.rows = rows
        self.names = names  # offer names in completion
        self.asked: list[requests.Request] = []
        self.silent: dict[int, str] = {}  # attempts on servers that do not answer
        self.mute = 0  # number of log requests that find the only server silent
        self.logs = {1: b"first\n", 2: b"second " + EVIL.encode() + b"\x1b[31mred\x1b[0m\n"}

    def __call__(self, request: requests.Request, peer: Peer) -> msgspec.Struct:
        self.asked.append(request)
        match request:
            case requests.Status(jobs=[*named]) if any(str(row.id) in named for row in self.rows):
                rows = [row for row in self.rows if str(row.id) in named]
                return job_answers.JobList(rows, len(self.rows), now=NOW)
            case requests.Status():
                return job_answers.JobList(self.rows, len(self.rows), hidden=7, now=NOW)
            case requests.Wait():
                return job_answers.JobList(self.rows, len(self.rows), now=NOW)
            case requests.History():
                return history()
            case requests.Report():
                return report(request.by)
            case requests.Show():
                return detail(self._one(request.job))
            case requests.Why():
                row = self._one(request.job)
                return job_answers.Explanation(
                    row.id, row.state, "2 GPUs pay best", ["4 would give 1.46x"], ["more users leave"], NOW, curve()
                )
            case requests.Nodes():
                return node_answers.NodeList(nodes())
            case requests.Top():
                rows = query_language.parse(request.query).answer(self.rows)
                states = Counter(row.state for row in self.rows if row.state not in ENDED)
                named = [row for row in rows if self._named(row, request.jobs)]
                return msgspec.structs.replace(top(), jobs=named, states=states)
            case requests.Complete():
                words = [(str(row.id), f"{row.name} {row.state}") for row in self.rows]
                words += [(row.name, f"{row.id} {row.state}") for row in self.rows if self.names]
                return daemon_answers.Words([word for word in words if word[0].startswith(request.prefix)])
            case requests.Logs():
                number = request.attempt or 1
                if self.mute:
                    self.mute -= 1
                    said = "server a does not answer"
                    return job_answers.LogChunk(1, "a", "", request.offset, False, [1], ["a"], "running", said)
                if number in self.silent:
                    said = self.silent[number]
                    return job_answers.LogChunk(
                        number, "a", "", request.offset, False, [1, 2], ["a"], "completed", said
                    )
                data = self.logs[number][request.offset : request.offset + 5]
                text = base64.b64encode(data).decode()
                return job_answers.LogChunk(
                    number, "a", text, request.offset + len(data), not data, [1, 2], ["a"], "completed"
                )
            case requests.Submit(dry_run=True):
                return job_answers.DryRun("starting", [job_answers.PartView("a", ["GPU-0"], [0])], ["1 GPU is free"])
            case requests.Submit(array=requests.ArrayMessage()):
                count = len(request.array.indices)
                return job_answers.Submitted(5, request.spec.name, "pending", jobs=list(range(6, 6 + count)))
            case requests.Submit():
                return job_answers.Submitted(5, request.spec.name, "pending")
            case requests.Select():
                rows = [row for row in self.rows if str(row.id) in request.jobs]
                ended = [row.id for row in rows if row.state in ENDED]
                return job_answers.Selection([row for row in rows if row.state not in ENDED], ended)
            case requests.Cancel():
                return job_answers.CancelResult([1], [2], [3])
            case requests.Hold() | requests.Edit() | requests.Release() | requests.Requeue():
                return job_answers.Changed([1], ["job 2 has ended"])
            case requests.Clean():
                return node_answers.Cleaned(2, NOW, removed=not request.dry_run)
        raise AssertionError(f"{request} is not expected")

    def _named(self, row: job_answers.JobView, selectors: list[str]) -> bool:
        return not selectors or str(row.id) in selectors or row.name in selectors

    def _one(self, selector: str) -> job_answers.JobView:
        for row in self.rows:
            if selector in (str(row.id), row.name):
                return row
        raise NotFound(f"there is no job {selector}", "`gpq status` lists the jobs")


@contextmanager
def serving(home: Path, rows: list[job_answers.JobView], *, names: bool = False) -> Iterator[Made]:
    """A socket in `home` that exists until the end of the block."""
    made = Made(rows, names=names)
    server = Server(str(home / "gpq.sock"), made)
    server.start()
    try:
        yield made
    finally:
        server.close()

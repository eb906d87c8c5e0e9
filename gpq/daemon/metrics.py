"""The newest committed snapshot as Prometheus metrics, and the HTTP server that answers scrapes.
Imported only if metrics are served.

The number of series is bounded: by state, user, server and device. Jobs have series only while
they hold GPUs. A job's label is `job_id`, because Prometheus adds its own label `job`.
"""

from __future__ import annotations

import io
import logging
import math
import re
import socket
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

import gpq
from gpq.control import counters as counting
from gpq.control.counters import Counters
from gpq.control.reader import Reader
from gpq.core.feasibility.reservations import current, devices_of
from gpq.core.model.accounts import UserShare
from gpq.core.model.jobs import HOLDS_DEVICES, TERMINAL, JobState
from gpq.core.model.nodes import DeviceState
from gpq.outward import Address
from gpq.rpc.job_answers import JobView
from gpq.rpc.node_answers import DeviceView, NodeView

LIVE = [state for state in JobState if state not in TERMINAL]
LONGEST_LABEL = 128  # characters
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
MIB = float(1 << 20)
ILL = tuple(str(state) for state in DeviceState if state is not DeviceState.OK)
STANDINGS = ("held", "free", *ILL, "drained", "reserved", "unknown")
MOST_OPEN = 32  # connections, so that a crowd takes no files and threads that rounds need
AGAIN = 10.0  # seconds until the next try to listen
# A web page can give its own name the address 127.0.0.1, and would read the metrics through the
# browser of a user. A scraper on this machine uses the address, or "localhost".
NO_NAME = re.compile(r"(?:localhost|[\d.]+|\[[\da-f:.]+\])(?::\d+)?", re.IGNORECASE)
# values of the labels, and the figure. Leaves out None, which means unknown
Row = tuple[tuple[str, ...], float | None]
log = logging.getLogger(__name__)


class Scrape(NamedTuple):
    """The data of one scrape: the snapshot, and the counters up to it."""

    reader: Reader
    tally: Counters


def registry(look: Callable[[], Scrape], policy: str) -> CollectorRegistry:
    """All metrics of the daemon, including those of its own process."""
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(Cluster(look, policy))
    ProcessCollector(namespace="gpq", registry=collectors)
    return collectors


class Cluster(Collector):
    """Collected by one thread at a time."""

    def __init__(self, look: Callable[[], Scrape], policy: str) -> None:
        self._look = look
        self._policy = policy
        # as last served: a counter must never fall, even if the end of a job arrives late
        self._gpu_seconds: dict[str, float] = {}

    def collect(self) -> Iterable[Metric]:
        look = self._look()
        nodes = look.reader.nodes()
        yield from _jobs(look)
        yield from _running(look.reader)
        users = [((row.user,), row) for row in look.reader.users()]
        yield from gauges("gpq_user", ["user"], users, OF_USER)
        yield from gpus(look.reader, nodes)
        yield from gauges("gpq_node", ["node"], [((node.name,), node) for node in nodes], OF_NODE)
        yield from self._counters(look)
        yield gauge(
            "gpq_build_info",
            "Always 1. The labels give the version and the policy.",
            ["version", "policy", "python"],
            [((gpq.__version__, self._policy, ".".join(map(str, sys.version_info[:3]))), 1.0)],
        )

    def _counters(self, look: Scrape) -> Iterator[Metric]:
        tally, reader, users = look.tally, look.reader, _known_users(look)
        yield histogram("gpq_round_duration_seconds", "Time to decide a round.", tally.rounds)
        yield histogram(
            "gpq_commit_duration_seconds", "Time to write to the database.", tally.commits
        )
        yield histogram(
            "gpq_job_wait_seconds", "Time from submission to the first launch.", tally.waits
        )
        if reader.round is not None:
            yield gauge(
                "gpq_last_round_timestamp_seconds",
                "Time of the last round.",
                [],
                [((), reader.round.at)],
            )
        ended_rows: list[Row] = [
            ((user, state), tally.ended.get((user, state), 0))
            for user in users
            for state in sorted(map(str, TERMINAL))
        ]
        yield counter(
            "gpq_jobs_ended",
            "Jobs that have ended since the daemon started.",
            ["user", "state"],
            ended_rows,
        )
        for name, documentation, counts in (
            ("gpq_restarts", "Launches of jobs after the first.", tally.restarts),
            (
                "gpq_restart_seconds",
                "Time from the order to stop to the first step after it.",
                tally.restart_seconds,
            ),
            (
                "gpq_gpu_seconds",
                "GPU time of live and ended jobs.",
                self._gpu_seconds_by_user(look),
            ),
        ):
            rows: list[Row] = [((user,), counts.get(user, 0)) for user in users]
            yield counter(name, documentation, ["user"], rows)

    def _gpu_seconds_by_user(self, look: Scrape) -> Mapping[str, float]:
        totals = dict(look.tally.gpu_seconds)
        for job in look.reader.snapshot.jobs.values():
            totals[job.spec.user] = totals.get(job.spec.user, 0.0) + job.service_at(look.reader.now)
        for user, seconds in totals.items():
            self._gpu_seconds[user] = max(seconds, self._gpu_seconds.get(user, 0.0))
        return self._gpu_seconds


def _known_users(look: Scrape) -> list[str]:
    """Users who have had a live job since the daemon started. Their series begin at 0 and stay."""
    live = {job.spec.user for job in look.reader.snapshot.jobs.values()}
    return sorted(live | {user for user, _ in look.tally.ended})


def _jobs(look: Scrape) -> Iterator[Metric]:
    """The queue by state and user, including zeros."""
    jobs = look.reader.snapshot.jobs.values()
    counts = Counter((str(job.state), job.spec.user) for job in jobs)
    users = _known_users(look)
    yield gauge("gpq_jobs", "Live jobs.", ["state", "user"], [
        ((str(state), user), counts[str(state), user]) for state in LIVE for user in users
    ])  # fmt: skip
    oldest = dict.fromkeys(users, look.reader.now)
    for job in jobs:
        if job.state is JobState.PENDING:
            oldest[job.spec.user] = min(oldest[job.spec.user], job.submitted_at)
    yield gauge(
        "gpq_oldest_pending_job_age_seconds",
        "Age of the oldest pending job, or 0 if there is none.",
        ["user"],
        [((user,), max(look.reader.now - since, 0.0)) for user, since in oldest.items()],
    )


View = TypeVar("View")
Figures = tuple[tuple[str, str, Callable[[View], float | None]], ...]  # name, documentation, figure
OF_JOB: Figures[JobView] = (
    ("goodput_examples_per_second", "Throughput times statistical efficiency.",
     lambda job: job.goodput),
    ("throughput_examples_per_second", "Examples per second.", lambda job: job.throughput),
    ("efficiency_ratio", "Statistical efficiency: goodput over throughput.",
     lambda job: job.efficiency),
    ("speedup_ratio", "Goodput relative to that on the fair share, or on its fewest GPUs if more.",
     lambda job: job.speedup),
    ("finish_time_fairness_ratio", "Rho. At most 1 is fair.", lambda job: job.rho),
    ("progress_ratio", "Progress over its declared length.", lambda job: job.progress),
    ("remaining_seconds", "Expected time to its end.", lambda job: job.eta_seconds),
    ("batch_examples", "Batch size in use.", lambda job: job.total_batch or None),
    ("silent_seconds", "Time since its servers last answered.",
     lambda job: job.unknown_seconds or 0.0),
    ("hung_seconds", "Time without a step.", lambda job: job.hung_seconds or 0.0),
)  # fmt: skip
OF_USER: Figures[UserShare] = (
    ("gpus", "GPUs that the user's jobs hold.", lambda row: float(row.gpus)),
    ("share_ratio", "The user's part of the GPUs in use.", lambda row: row.share),
    ("fair_share_ratio", "The user's fair share, as a part of all GPUs.",
     lambda row: row.fair_share),
    ("speedup_ratio", "Mean speedup of the user's jobs.", lambda row: row.speedup),
    ("finish_time_fairness_ratio", "Worst finish-time fairness (rho) of the user's jobs.",
     lambda row: row.rho),
)  # fmt: skip
OF_DEVICE: Figures[DeviceView] = (
    ("utilisation_ratio", "Part of the time in which the GPU was busy.",
     lambda device: None if device.utilisation is None else device.utilisation / 100.0),
    ("memory_bytes", "Memory of the GPU.", lambda device: device.memory_mib * MIB or None),
    ("memory_used_bytes", "Memory in use by any process.",
     lambda device: device.used_mib * MIB if device.memory_mib else None),
)  # fmt: skip
OF_NODE: Figures[NodeView] = (
    ("up", "1 while the server answers.", lambda node: float(node.answers)),
    ("drained", "1 while gpq starts nothing new there.", lambda node: float(node.drained)),
    ("knowledge_age_seconds", "Time since the daemon last heard from the server.",
     lambda node: node.seen_seconds),
)  # fmt: skip


def _running(reader: Reader) -> Iterator[Metric]:
    """Metrics of jobs that hold GPUs, so there are never more than GPUs."""
    jobs = [job for _, job in sorted(reader.snapshot.jobs.items()) if job.state in HOLDS_DEVICES]
    rows = reader.jobs(jobs)
    yield gauge(
        "gpq_job_info",
        "Always 1. The labels describe a job that holds GPUs.",
        ["job_id", "name", "user", "level"],
        [((str(job.id), job.name, job.user, job.level), 1.0) for job in rows],
    )
    yield gauge("gpq_job_gpus", "GPUs that the job holds on a server.", ["job_id", "node"], [
        ((str(job.id), part.node), len(part.devices)) for job in rows for part in job.placement
    ])  # fmt: skip
    yield from gauges("gpq_job", ["job_id"], [((str(job.id),), job) for job in rows], OF_JOB)


def gpus(reader: Reader, nodes: list[NodeView]) -> Iterator[Metric]:
    devices = [(node, device) for node in nodes for device in node.devices]
    reserved_gpus = {
        (str(reservation.node), str(device))
        for reservation in current(reader.snapshot, reader.now)
        if reservation.start <= reader.now
        for device in devices_of(reservation, reader.snapshot.nodes.get(reservation.node))
    }
    counts = Counter((node.name, standing(node, device, reserved_gpus)) for node, device in devices)
    yield gauge(
        "gpq_gpus",
        "GPUs or CPU slots of a server by state.",
        ["node", "state"],
        [((node.name, state), counts[node.name, state]) for node in nodes for state in STANDINGS],
    )
    yield gauge("gpq_gpu_info", "Always 1, about a GPU.", ["node", "gpu", "uuid", "type"], [
        ((node.name, str(device.index), device.id, device.type), 1.0) for node, device in devices
    ])  # fmt: skip
    answering_devices = [
        ((node.name, str(device.index)), device) for node, device in devices if node.answers
    ]
    yield from gauges("gpq_gpu", ["node", "gpu"], answering_devices, OF_DEVICE)


def standing(node: NodeView, device: DeviceView, reserved_gpus: set[tuple[str, str]]) -> str:
    """One word for the state of a GPU. The strongest obstacle wins."""
    if device.job is not None:
        return "held"
    if not node.answers:
        return "unknown"
    if device.state != "ok":
        return device.state
    if node.drained:
        return "drained"
    return "reserved" if (node.name, device.id) in reserved_gpus else "free"


def gauges(
    prefix: str,
    labels: list[str],
    views: Sequence[tuple[tuple[str, ...], View]],
    figures: Figures[View],
) -> Iterator[Metric]:
    """A gauge for each of the figures. `views`: with the values of their labels."""
    for name, documentation, value_of in figures:
        rows = [(values, value_of(view)) for values, view in views]
        yield gauge(f"{prefix}_{name}", documentation, labels, rows)


def gauge(name: str, documentation: str, labels: list[str], rows: Iterable[Row]) -> Metric:
    return _fill(GaugeMetricFamily(name, documentation, labels=labels), rows)


def counter(name: str, documentation: str, labels: list[str], rows: Iterable[Row]) -> Metric:
    """`name`: without `_total`, which is added."""
    return _fill(CounterMetricFamily(name, documentation, labels=labels), rows)


def _fill(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for values, figure in rows:
        if figure is not None and math.isfinite(figure):
            family.add_metric([label(value) for value in values], figure)
    return family


def histogram(name: str, documentation: str, figures: counting.Histogram) -> Metric:
    buckets = [
        ("+Inf" if math.isinf(bound) else repr(bound), float(count))
        for bound, count in figures.cumulated
    ]
    return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=figures.total)


def label(text: str) -> str:
    """A text from jobs or servers as a label: without control characters, and not too long."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)[:LONGEST_LABEL]


# -- over HTTP -------------------------------------------------------------------------------------


class Exporter:
    """Serves metrics with the server of prometheus-client, in a thread for each request. If the
    address is in use, gpq reports it and tries again.

    Call `start`, then `close`. Any thread may call `state`.
    """

    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        self._address = address
        self._registry = registry
        self._closing = threading.Event()
        self._server: _Server | None = None
        self._problem = ""

    def state(self) -> tuple[str, str]:
        """(the URL, why it is not served)."""
        return self._address.url, self._problem

    def start(self) -> None:
        """Tries to listen at once, so that `state` is right for the next request."""
        self._open()
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _run(self) -> None:
        while self._server is None:
            if self._closing.wait(AGAIN):
                return
            self._open()
        self._server.serve_forever()

    def _open(self) -> None:
        try:
            self._server = _Server(self._address, self._registry)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            problem = f"cannot listen on {self._address.host}:{self._address.port}: {reason}"
            if problem != self._problem:
                log.warning("cannot serve metrics: %s. Trying again every %.0f s", problem, AGAIN)
            self._problem = problem
        else:
            self._problem = ""
            log.info("serving metrics at %s", self._address.url)


class _Server(ThreadingWSGIServer):
    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), _Request)
        self._places = threading.Semaphore(MOST_OPEN)
        metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        lock = threading.Lock()

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if address.private and not NO_NAME.fullmatch(environ.get("HTTP_HOST", "localhost")):
                start_response("403 Forbidden", [("Content-Type", "text/plain")])
                return [b"use the address, not a name\n"]
            with lock:  # a crowd takes one thread's time from the rounds, not that of each
                try:
                    return metrics(environ, start_response)
                except Exception:
                    log.exception("cannot create the metrics")
                    raise  # the library answers 500

        self.set_app(answer)

    def server_bind(self) -> None:
        """As in the library, but without looking up the host name, which may take minutes."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scraper went away", exc_info=True)


class _Request(WSGIRequestHandler):
    timeout = 5.0  # seconds without a byte

    def get_stderr(self) -> io.StringIO:
        """Does not report scrapers that stall."""
        return io.StringIO()

    def log_message(self, format: str, *arguments: object) -> None:
        """Does not log scrapes."""
